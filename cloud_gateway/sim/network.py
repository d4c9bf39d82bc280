"""A virtual link: one TCP connection, each direction a pipe with delay, jitter, loss and bandwidth."""

from __future__ import annotations

import random
from dataclasses import dataclass

from edgespec.core.signing import HEADER_BYTES, bucket

CARRIER_BYTES = 6 + 22 + 40
"""WebSocket header, TLS 1.3 record, TCP/IPv4 headers."""


def wire_bytes(payload_bytes: int) -> int:
    """Bytes on the wire of one signed message, padded as the protocol pads it (edgespec/core/signing.py)."""
    return bucket(HEADER_BYTES + payload_bytes) + CARRIER_BYTES


@dataclass(frozen=True, slots=True)
class Net:
    """A path between two hosts."""

    rtt_s: float
    jitter_s: float = 0.0
    """Mean of the exponential delay that each message has on top, each way."""
    loss: float = 0.0
    """Share of packets lost. TCP repairs a loss, so it shows as delay."""
    bandwidth_bps: float = 1e9
    probe_gap_s: float = 0.004
    """How soon after a lost packet another is sent, whose acknowledgement shows the loss."""

    @property
    def repair_s(self) -> float:
        """Delay of a packet that was lost once: one round trip after the next packet, and a quarter more to allow for
        reordering (RACK, RFC 8985 section 6.2)."""
        return 1.25 * self.rtt_s + self.probe_gap_s


class Pipe:
    """One direction. What was sent first arrives first (TCP), so one late packet delays those behind it."""

    def __init__(self, net: Net, rng: random.Random) -> None:
        self.net, self._rng = net, rng
        self._free_at = 0.0
        self._last_arrival = 0.0
        self.bytes = 0
        self.messages = 0

    def busy_until(self) -> float:
        """When all that was sent has left the sender."""
        return self._free_at

    def send(self, now: float, payload_bytes: int) -> float:
        """Sends one message; returns when the receiver has it."""
        net, size = self.net, wire_bytes(payload_bytes)
        self.bytes += size
        self.messages += 1
        self._free_at = max(now, self._free_at) + size * 8 / net.bandwidth_bps
        arrival = self._free_at + self.delay()
        self._last_arrival = max(self._last_arrival, arrival)
        return self._last_arrival

    def delay(self) -> float:
        """One draw of the one-way delay."""
        net = self.net
        delay = net.rtt_s / 2
        if net.jitter_s:
            delay += self._rng.expovariate(1 / net.jitter_s)
        if net.loss:
            while self._rng.random() < net.loss:
                delay += net.repair_s
        return delay
