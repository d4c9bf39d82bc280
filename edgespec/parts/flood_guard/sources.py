"""Who gets the places of a listening port: shares and rates of the sources that connections come from.

A source is one IPv4 address or one /64 network of IPv6. If its share of the places for connections that have proven
nothing is used, a newcomer from it takes the place of its own oldest one. If all places are, the newcomer takes that of
the oldest of the source that holds most. So one source cannot keep another out. It may hold any number of proven
connections: the machines of a campus often share one address.

The guard has no clock and no socket: time is passed in.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection
from dataclasses import dataclass

from edgespec.core.protocol.inflow import Bucket
from edgespec.shared.guards import C, NewcomerRefusal, PortBounds, PortGuard

ROUNDING_S = 1e-9
"""By which sums of a bucket's steps may be off."""
MAX_SOURCES = 4096
"""Sources whose rate is remembered (about 0.5 MB); who commands more sources than that is not bounded by rates."""


@dataclass(frozen=True, slots=True)
class SourceLimits:
    """Bounds of one listening port for its sources."""

    unproven_share: float
    """Part of the places for unproven connections that one source may hold: a machine needs one or two, a network
    behind one address a few at a time."""
    rate_per_s: float
    """New connections a second from one source in the long run."""
    burst: int
    """New connections from one source at once, as when all workers of a campus come back after a restart."""
    total_rate_per_s: float
    """New connections a second from all sources: a bound on the time that TLS takes if somebody has many sources, such
    as the 256 networks of an IPv6 /56."""
    total_burst: int


LINKS = SourceLimits(unproven_share=0.25, rate_per_s=20.0, burst=100, total_rate_per_s=100.0, total_burst=500)
"""A port of the gateway with TLS, whose handshake takes about three milliseconds: all together take a third of a core,
and the rest is left to linked workers and clients of the API. Hundreds of workers behind one address may take minutes
to reconnect, since each waits longer after each refusal."""
PROXIED = SourceLimits(unproven_share=1.0, rate_per_s=1000.0, burst=4001, total_rate_per_s=1e9, total_burst=10**9)
"""A port without TLS. Behind a proxy all clients have one address, which may hold all places; the rate only bounds the
time that accepting takes, a fifth of a millisecond each."""
WORKSTATION = SourceLimits(unproven_share=0.25, rate_per_s=6.0, burst=30, total_rate_per_s=30.0, total_burst=150)
"""A port of a worker. The machines that call a worker are few; TLS handshakes take at most about a tenth of a core of
its owner's machine."""


class SourceGuard(PortGuard):
    """Holds the sources of one port to their shares and rates."""

    def __init__(self, bounds: PortBounds, limits: SourceLimits) -> None:
        super().__init__(bounds)
        self._limits = limits
        self._share = max(1, int(bounds.unproven * limits.unproven_share))
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()
        """By source; the one that connected longest ago comes first."""
        self._all = Bucket(limits.total_rate_per_s, limits.total_burst - 1)

    def refusal(self, source: str, now: float) -> NewcomerRefusal | None:
        """Counts a connection of this source and of all, unless one of them may have none at present."""
        bucket = self._buckets.get(source) or Bucket(self._limits.rate_per_s, self._limits.burst - 1)
        if bucket.free_at > now + ROUNDING_S:
            return NewcomerRefusal("rate", f"{source} opens too many connections")
        if self._all.free_at > now + ROUNDING_S:
            return NewcomerRefusal("total-rate", "the network opens too many connections")

        self._all.take(1, now)
        bucket.take(1, now)
        self._buckets[source] = bucket
        self._buckets.move_to_end(source)
        if len(self._buckets) > MAX_SOURCES:
            self._buckets.popitem(last=False)
        return None

    def leaving(self, unproven: Collection[C], newcomer: str | None) -> C | None:
        """The oldest connection of the newcomer's source if that has its share, or of the source that holds most."""
        held = Counter(connection.source for connection in unproven)
        if newcomer is not None and held[newcomer] >= self._share:
            return _oldest(unproven, newcomer)
        if newcomer is not None and len(unproven) < self.bounds.unproven:
            return None

        if not held:
            return None
        # If several sources hold most, `max` returns the one whose oldest connection is the oldest.
        return _oldest(unproven, max(held, key=held.__getitem__))


def _oldest(unproven: Collection[C], source: str) -> C:
    return next(connection for connection in unproven if connection.source == source)
