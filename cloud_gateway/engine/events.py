"""The closed set of events from the event loop to the engine's thread."""

from __future__ import annotations

from dataclasses import dataclass

from cloud_gateway.engine.active import Active
from edgespec.core.protocol.messages import Tree


@dataclass(frozen=True, slots=True)
class WorkerUp:
    """A worker was linked or resumed: requests without one may use it."""

    worker: str


@dataclass(frozen=True, slots=True)
class WorkerDown:
    """A worker went, paused or was revoked: its requests move on at once."""

    worker: str


@dataclass(frozen=True, slots=True)
class FrameReceived:
    """A frame of checked shape."""

    worker: str
    frame: Tree
    at: float
    """On the engine's clock."""


@dataclass(frozen=True, slots=True)
class RequestDeclined:
    """A worker will not draft for this request."""

    worker: str
    request: int


@dataclass(frozen=True, slots=True)
class ClientLeft:
    """The client left, or has enough."""

    active: Active


InboxEvent = WorkerUp | WorkerDown | FrameReceived | RequestDeclined | ClientLeft
