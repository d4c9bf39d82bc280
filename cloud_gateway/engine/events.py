"""The closed set of events from the event loop to the engine's thread, and where the links post theirs.

A frame is an event of the request machine (cloud_gateway/core/requests/events.py) and goes to it unchanged.
"""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from cloud_gateway.core.requests.events import FrameArrived
from cloud_gateway.engine.active import Active


class WorkerReady(Struct, frozen=True):
    """A worker was linked or resumed: requests without one may use it."""

    worker: str


class WorkerGone(Struct, frozen=True):
    """A worker left, paused or was revoked."""

    worker: str
    why: str = ""


class Declined(Struct, frozen=True):
    """A worker will not draft for this request."""

    worker: str
    request: int
    why: str = ""


class ClientLeft(Struct, frozen=True):
    """The client left, or has enough."""

    active: Active


LinkEvent = WorkerReady | WorkerGone | FrameArrived | Declined
InboxEvent = LinkEvent | ClientLeft


class Inbox(Protocol):
    """The engine as the links see it."""

    def post(self, event: LinkEvent) -> None:
        """Queues one event, with the time of the call; returns at once."""
