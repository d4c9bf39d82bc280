"""The closed set of events from the event loop to the engine's thread."""

from __future__ import annotations

from msgspec import Struct

from cloud_gateway.engine.active import Active
from edgespec.core.protocol.messages import Tree


class WorkerUp(Struct, frozen=True):
    """A worker was linked or resumed: requests without one may use it."""

    worker: str


class WorkerDown(Struct, frozen=True):
    """A worker went, paused or was revoked: its requests move on at once."""

    worker: str


class FrameReceived(Struct, frozen=True):
    """A frame of checked shape."""

    worker: str
    frame: Tree
    at: float
    """On the engine's clock."""


class RequestDeclined(Struct, frozen=True):
    """A worker will not draft for this request."""

    worker: str
    request: int


class ClientLeft(Struct, frozen=True):
    """The client left, or has enough."""

    active: Active


InboxEvent = WorkerUp | WorkerDown | FrameReceived | RequestDeclined | ClientLeft
