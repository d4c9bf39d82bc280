"""A virtual clock, and a virtual link: one TCP connection over the shared link model, which counts its bytes."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from random import Random

from edgespec.core.protocol.signing import HEADER_BYTES, bucket
from edgespec_lab.link_model import LinkModel, OneWay

CARRIER_BYTES = 6 + 22 + 40
"""WebSocket header, TLS 1.3 record, TCP/IPv4 headers."""


def wire_bytes(payload_bytes: int) -> int:
    """Bytes on the wire of one signed message, padded as the protocol pads it (edgespec/core/protocol/signing.py)."""
    return bucket(HEADER_BYTES + payload_bytes) + CARRIER_BYTES


class Pipe(OneWay):
    """One direction, and what went through it."""

    def __init__(self, model: LinkModel, rng: Random) -> None:
        super().__init__(model, rng)
        self.bytes = self.messages = 0

    def send(self, now: float, payload_bytes: int) -> float:
        """Sends one message; returns when the receiver has it."""
        size = wire_bytes(payload_bytes)
        self.bytes += size
        self.messages += 1
        return self.arrival(now, size)


class Clock:
    """Seconds from 0; events in order of time, ties in order of scheduling."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Runs `action` at `when`, or now where that is past."""
        self._count += 1
        heapq.heappush(self._events, (max(when, self.now), self._count, action))

    def until(self, when: float) -> None:
        """Runs the events up to then, and moves on to it."""
        while self._events and self._events[0][0] <= when:
            self.now, _, action = heapq.heappop(self._events)
            action()
        self.now = max(self.now, when)

    @property
    def next_at(self) -> float:
        """When the next event is due; infinite without one."""
        if self._events:
            return self._events[0][0]
        return math.inf

    def run(self, done: Callable[[], bool], limit_s: float) -> None:
        """Runs events until `done`. Raises TimeoutError past `limit_s` or when no event is left."""
        while not done():
            if not self._events:
                raise TimeoutError(f"nothing is left to happen at {self.now:.3f} s")
            self.now, _, action = heapq.heappop(self._events)
            if self.now > limit_s:
                raise TimeoutError(f"not done after {limit_s} virtual seconds")
            action()
