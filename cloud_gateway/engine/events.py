"""The closed set of events from the event loop to the engine's thread, and where the links post theirs.

Three of them are inputs of the request machine (cloud_gateway/core/requests/steps.py) and go to it unchanged.
"""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from cloud_gateway.core.requests.steps import Declined, FrameArrived, WorkerGone
from cloud_gateway.engine.active import Active


class WorkerReady(Struct, frozen=True):
    """A worker was linked or resumed: requests without one may use it."""

    worker: str


class ClientLeft(Struct, frozen=True):
    """The client left, or has enough."""

    active: Active


LinkEvent = WorkerReady | WorkerGone | FrameArrived | Declined
InboxEvent = LinkEvent | ClientLeft


class Inbox(Protocol):
    """The engine as the links see it."""

    def post(self, event: LinkEvent) -> None:
        """Queues one event, with the time of the call; returns at once."""
