"""Guards of a program's listening ports, which a part may bring, and the plain bound of each port without one.

Without a part a port has a number of places, of which some are for connections that have proven nothing yet. If these
are taken, the oldest such connection is dropped for a newcomer: nobody can keep others out by connections that do
nothing. Who connects again and again can, and at which rate is not bounded: that is what a part may add.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol, TypeVar


@dataclass(frozen=True, slots=True)
class PortBounds:
    """The plain bound of one listening port."""

    total: int
    """Open connections; `total - unproven` of them are kept for proven ones: a paired worker, a valid API key."""
    unproven: int
    """Connections that have proven nothing yet, those in the TLS handshake included."""

    @classmethod
    def within(cls, total: int, unproven: int) -> PortBounds:
        """Those of a port that has `total` places: of them `unproven`, but at most half and at least one."""
        return cls(total, max(1, min(unproven, total // 2)))


@dataclass(frozen=True, slots=True)
class NewcomerRefusal:
    """Why a newcomer is closed at once."""

    reason: str
    """A closed label."""
    why: str
    """A clause that the log shows."""


class HasSource(Protocol):
    """A connection, by the machine or network that it came from (`address.source_of`)."""

    @property
    def source(self) -> str: ...


C = TypeVar("C", bound=HasSource)


class PortGuard:
    """Decides who has the places of one listening port. This one, the core's, keeps the plain bound only."""

    def __init__(self, bounds: PortBounds) -> None:
        self.bounds = bounds

    def refusal(self, source: str, now: float) -> NewcomerRefusal | None:
        """Called by the acceptor with each newcomer, before anything is done for it. `now`: seconds, monotonic."""
        return None

    def leaving(self, unproven: Collection[C], newcomer: str | None) -> C | None:
        """Which of the `unproven` connections, oldest first, is dropped; None if none has to be.

        Called by the acceptor before it gives a newcomer a place, with the newcomer's source; and with None if the
        process has no file descriptor left.
        """
        if newcomer is not None and len(unproven) < self.bounds.unproven:
            return None
        return next(iter(unproven), None)


class Meter(Protocol):
    """Watches what comes over one TLS connection, before it is decrypted."""

    def take(self, data: memoryview, proven: bool, now: float) -> str | None:
        """Called with all that comes, in order; what is too much ends the connection, and is returned in words.

        `proven`: whether the peer has proven a key.
        """


class Guards:
    """The guards of one program. This one, the core's, adds nothing to the plain bounds of ports."""

    def port(self, bounds: PortBounds, *, encrypted: bool) -> PortGuard:
        """The guard of a port, with TLS or without. Called once, when the port opens."""
        return PortGuard(bounds)

    def meter(self) -> Meter | None:
        """Called for each TLS connection that a port accepts, and that a worker makes to a machine beside it."""
        return None


PLAIN = Guards()
MakeGuards = Callable[[], Guards]
"""Loads the guards of a part. Each program calls it once, before it opens its first port."""
