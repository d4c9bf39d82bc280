"""A model of a network path under one TCP connection, for the simulator and for the proxy that emulates one.

The delay of a message is half the round trip, a random extra delay, and TCP's repair time for each loss; messages stay
in order. The parameters and their sources:

- Extra delay is exponential, as the wait in a queue fed at random (M/M/1: Kleinrock, Queueing Systems, volume 1, 1975).
- A loss is repaired by RACK (RFC 8985, section 6.2): it shows when a packet sent later is acknowledged, a round trip
  after that one was sent, plus a quarter of a round trip to allow for reordering. The repair may be lost as well.
- The packet after a lost one follows within 4 ms: a worker sends a frame each draft step, of 3 to 8 ms on the machines
  measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

REORDERING_SHARE = 0.25
"""Of a round trip: RACK's reordering window (RFC 8985, section 6.2)."""


@dataclass(frozen=True, slots=True)
class LinkModel:
    """A path between two hosts."""

    rtt_s: float = 0.0
    jitter_s: float = 0.0
    """Mean of the exponential extra delay of each message, each way."""
    loss: float = 0.0
    """Share of packets lost. TCP repairs a loss, so it shows as delay."""
    bandwidth_bps: float = 1e9
    """Bits per second each way; infinite for no limit."""
    probe_gap_s: float = 0.004
    """How soon after a lost packet another is sent, whose acknowledgement shows the loss."""

    @property
    def varies(self) -> bool:
        """Whether round trips differ."""
        return self.jitter_s > 0 or self.loss > 0

    @property
    def repair_s(self) -> float:
        """Delay of a packet that was lost once."""
        return (1 + REORDERING_SHARE) * self.rtt_s + self.probe_gap_s

    def delay(self, rng: Random) -> float:
        """One draw of the one-way delay."""
        delay = self.rtt_s / 2
        if self.jitter_s:
            delay += rng.expovariate(1 / self.jitter_s)
        if self.loss:
            while rng.random() < self.loss:
                delay += self.repair_s
        return delay


class OneWay:
    """One direction of a connection: what was sent first arrives first, so one late packet delays those behind it."""

    def __init__(self, model: LinkModel, rng: Random) -> None:
        self.model = model
        self._rng = rng
        self._free_at = 0.0
        self._last_arrival = 0.0

    @property
    def busy_until(self) -> float:
        """When all that was sent has left the sender."""
        return self._free_at

    def arrival(self, now: float, size: int) -> float:
        """When `size` bytes sent now have arrived."""
        self._free_at = max(now, self._free_at) + size * 8 / self.model.bandwidth_bps
        self._last_arrival = max(self._last_arrival, self._free_at + self.delay())
        return self._last_arrival

    def delay(self) -> float:
        """One draw of the one-way delay, of a message that waits for no other."""
        return self.model.delay(self._rng)
