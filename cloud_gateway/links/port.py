"""Bounds of the link port (edgespec/shared/limited_port.py)."""

from __future__ import annotations

from dataclasses import dataclass, field

from edgespec.core.admission import AdmissionLimits
from edgespec.core.protocol.inflow import InflowLimits

CONNECTIONS = 1024
"""At once, fewer where the limit of open files does not suffice: more workers than one gateway can use."""
UNPROVEN = 64
"""Those whose key is not proven yet. At the limit a new one replaces the oldest of the address that holds most, never a
worker's link."""
UNPROVEN_OF_SOURCE = 16
"""The same of one address (of IPv6: of one /64 network); a handshake takes less than a second."""
CONNECTIONS_PER_S = 20.0
"""New ones of one address: a TLS handshake takes about three milliseconds. Hundreds of workers behind one address may
take minutes to reconnect, since each waits longer after each refusal."""
TOTAL_RATE = 5.0
"""New connections of all sources, in multiples of one source's rate: by default 100 TLS handshakes a second, which
take a third of a core; the rest is left to linked workers and clients of the API."""
WORKER_FRAMES_PER_S = 200.0
"""Of one worker, which sends at most `TREES_PER_S` frames of trees."""
WORKER_BYTES_PER_S, WORKER_BYTES_BURST = 5e5, 1 << 18
"""180 frames a second with trees for eight requests are 370 KB. A node of 8 bytes costs 1.7 µs until it is
merged, so that a flood of full frames takes a tenth of one core."""
BURST_S = 5.0
"""New connections at once, in seconds of their rate: after a restart all workers behind one address reconnect."""


def link_admission(total: int) -> AdmissionLimits:
    """Bounds of the link port, whose share of the descriptors are `total`.

    A source may hold any number of proven connections: the machines of a campus often share one address.
    """
    unproven = max(1, min(UNPROVEN, total // 2))
    mine, burst = min(UNPROVEN_OF_SOURCE, unproven), round(BURST_S * CONNECTIONS_PER_S)
    return AdmissionLimits(total, unproven, mine, CONNECTIONS_PER_S, burst, TOTAL_RATE * CONNECTIONS_PER_S)


@dataclass(frozen=True, slots=True)
class LinkLimits:
    """Bounds on what peers can make the gateway do."""

    admission: AdmissionLimits
    inflow: InflowLimits = field(
        default_factory=lambda: InflowLimits(
            frames_per_s=WORKER_FRAMES_PER_S, bytes_per_s=WORKER_BYTES_PER_S, bytes_burst=WORKER_BYTES_BURST
        )
    )
