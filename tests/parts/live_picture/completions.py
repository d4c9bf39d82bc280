"""A completion without an engine, for what the page shows of it."""

from __future__ import annotations

from collections.abc import Callable

from cloud_gateway.core.requests import events
from cloud_gateway.core.requests.events import Listener, Status
from cloud_gateway.core.requests.generation import Generation
from cloud_gateway.part import PastRequest
from tests.cloud_gateway.core.requests.test_generation import COSTS, LINK, decoding, frame, verify

WORKER = "ab" * 8
NAME = "ada's laptop"


def completion(listen: Callable[[Generation], Listener], key: str = "") -> None:
    """A request of this API key, to its end: in each round the worker drafts two tokens, and the target takes them."""
    generation = decoding("wanspec", WORKER, name=NAME, count=12, listen=listen, key=key)
    first = 1
    now = 0.0
    while generation.status is Status.DECODE:
        now += 0.1
        generation.handle(events.FrameArrived(WORKER, frame(generation, first=first)), now)
        first += 2
        generation.decide(LINK, COSTS, now)
        verify(generation, now + 0.03)


def past_completion() -> PastRequest:
    """The same, as a file of another part would hold it."""
    return PastRequest(made_at=1_700_000_000, policy="wanspec", salted=True, play=completion)
