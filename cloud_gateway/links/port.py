"""Bounds of the link port (edgespec/shared/limited_port.py)."""

from __future__ import annotations

from dataclasses import dataclass, field

from cloud_gateway.core.limits.settings import LinkBounds
from edgespec.core.admission import AdmissionLimits
from edgespec.core.protocol.inflow import InflowLimits

TOTAL_RATE = 5.0
"""New connections of all sources, in multiples of one source's rate: by default 100 TLS handshakes a second, which
take a third of a core; the rest is left to linked workers and clients of the API."""
WORKER_FRAMES_PER_S = 200.0
"""Of one worker, which sends at most `TREES_PER_S` trees. A frame with 64 nodes costs up to half a millisecond from TLS
to the merge, so that a flood of them takes a tenth of one core."""
BURST_S = 5.0
"""New connections at once, in seconds of their rate: after a restart all workers behind one address reconnect."""


def link_admission(bounds: LinkBounds, total: int) -> AdmissionLimits:
    """Bounds of the link port, whose share of the descriptors are `total`.

    A source may hold any number of proven connections: the machines of a campus often share one address.
    """
    unproven, rate = max(1, min(bounds.unproven_connections, total // 2)), bounds.connections_per_s
    mine, burst = min(bounds.unproven_per_source, unproven), max(1, round(BURST_S * rate))
    return AdmissionLimits(total, unproven, mine, total, rate, burst, TOTAL_RATE * rate)


@dataclass(frozen=True, slots=True)
class LinkLimits:
    """Bounds on what peers can make the gateway do."""

    admission: AdmissionLimits
    inflow: InflowLimits = field(default_factory=lambda: InflowLimits(frames_per_s=WORKER_FRAMES_PER_S))
