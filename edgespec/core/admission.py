"""Which connections a listening port admits, and which one it drops for a newcomer; pure, `now` is passed in.

Every connection starts unproven: nobody knows yet who sent it. Unproven connections have a pool of their own, which one
source cannot hold: a newcomer takes the place of the oldest unproven connection of the source that holds most. Proven
connections (a paired worker, a valid API key) are never dropped, and their places are never given to unproven ones.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from edgespec.core.protocol.inflow import Bucket

TOTAL_BURST_S = 5.0
ROUNDING_S = 1e-9
"""By which sums of a bucket's steps may be off."""
MAX_SOURCES = 4096
"""Sources whose rate is remembered (about 0.5 MB); who commands more sources than that is not bounded by rates."""
RESERVED_DESCRIPTORS = 192
"""File descriptors that connections never take: control socket, state and model files, traces, mDNS, event loop."""


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """Bounds of one listening port."""

    total: int
    """Open connections; `total - unproven` of them are kept for proven ones."""
    unproven: int
    """Connections that have proven nothing yet, those in the TLS handshake included."""
    unproven_per_source: int
    """The same from one source; a machine needs one or two, a network behind one address a few at a time."""
    rate_per_s: float
    """New connections a second from one source in the long run: a TLS handshake costs about a millisecond."""
    burst: int
    """New connections from one source at once, as when all workers of a campus come back after a restart."""
    total_rate_per_s: float = 1e9
    """New connections a second from all sources, and five seconds of that at once: a bound on the time that TLS takes
    where somebody has many sources, such as the 256 networks of an IPv6 /56."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """The newcomer is in; `evicted` is the connection that has to be dropped for it."""

    ticket: int
    evicted: int | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """The newcomer is to be closed at once; `reason` is a closed label."""

    reason: str


class Admission:
    """The connections of one port, by ticket."""

    def __init__(self, limits: AdmissionLimits) -> None:
        """Raises ValueError for limits that leave no place."""
        if not 1 <= limits.unproven <= limits.total or limits.rate_per_s <= 0 or limits.burst < 1:
            raise ValueError(f"no connection could be admitted under {limits}")

        self.limits = limits
        self._sources: dict[int, str] = {}
        """The source of each open connection."""
        self._waiting: dict[str, OrderedDict[int, None]] = {}
        """Unproven tickets of each source, oldest first; no source with none."""
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()
        total = limits.total_rate_per_s
        self._all = Bucket(total, TOTAL_BURST_S * total - 1)
        self._next_ticket = 1
        self.unproven = 0

    @property
    def total(self) -> int:
        """Open connections."""
        return len(self._sources)

    @property
    def proven(self) -> int:
        """Open connections that are proven."""
        return self.total - self.unproven

    def arrive(self, source: str, now: float) -> Admitted | Refused:
        """Judges a new connection; `source` as `address.source_of` gives it, `now` in seconds, monotonic."""
        refused = self._rate(source, now)
        if refused is not None:
            return refused

        evicted = None
        if len(self._waiting.get(source, ())) >= self.limits.unproven_per_source:
            evicted = self._evict(source)
        elif self.unproven >= self.limits.unproven:
            evicted = self.relieve()
        ticket = self._next_ticket
        self._next_ticket += 1
        self._sources[ticket] = source
        self._waiting.setdefault(source, OrderedDict())[ticket] = None
        self.unproven += 1
        return Admitted(ticket, evicted)

    def prove(self, ticket: int) -> bool:
        """Moves a connection out of the unproven pool; False where no place for proven ones is left, or it is gone."""
        source = self._sources.get(ticket)
        if source is None:
            return False
        if ticket not in self._waiting.get(source, ()):
            return True
        if self.proven >= self.limits.total - self.limits.unproven:
            return False

        self._stop_waiting(ticket, source)
        return True

    def relieve(self) -> int | None:
        """Drops the oldest unproven connection of the source that holds most of them, and returns its ticket."""
        if not self._waiting:
            return None
        return self._evict(max(self._waiting, key=lambda source: (len(self._waiting[source]), -self._oldest(source))))

    def leave(self, ticket: int) -> None:
        """A connection has ended; does nothing for one that is gone already."""
        source = self._sources.pop(ticket, "")
        if ticket in self._waiting.get(source, ()):
            self._stop_waiting(ticket, source)

    def _oldest(self, source: str) -> int:
        return next(iter(self._waiting[source]))

    def _evict(self, source: str) -> int:
        ticket = self._oldest(source)
        self.leave(ticket)
        return ticket

    def _stop_waiting(self, ticket: int, source: str) -> None:
        waiting = self._waiting[source]
        del waiting[ticket]
        if not waiting:
            del self._waiting[source]
        self.unproven -= 1

    def _rate(self, source: str, now: float) -> Refused | None:
        """Counts a connection of this source and of all, if both may have one more."""
        bucket = self._buckets.get(source) or Bucket(self.limits.rate_per_s, self.limits.burst - 1)
        if bucket.free_at > now + ROUNDING_S:
            return Refused("rate")
        if self._all.free_at > now + ROUNDING_S:
            return Refused("total-rate")

        self._all.take(1, now)
        bucket.take(1, now)
        self._buckets[source] = bucket
        self._buckets.move_to_end(source)
        if len(self._buckets) > MAX_SOURCES:
            self._buckets.popitem(last=False)
        return None


def share_descriptors(wanted: Mapping[str, int], limit: int) -> dict[str, int]:
    """Connections that each port may hold under a limit of file descriptors: as wanted, or all scaled down alike."""
    room = max(limit - RESERVED_DESCRIPTORS, limit // 4)
    scale = min(1.0, room / max(1, sum(wanted.values())))
    return {name: max(2, int(number * scale)) for name, number in wanted.items()}
