"""A virtual link: one TCP connection over the shared link model, which counts the protocol's bytes."""

from __future__ import annotations

from random import Random

from edgespec.core.protocol.signing import HEADER_BYTES, bucket
from edgespec.lab.link_model import LinkModel, OneWay

CARRIER_BYTES = 6 + 22 + 40
"""WebSocket header, TLS 1.3 record, TCP/IPv4 headers."""


def wire_bytes(payload_bytes: int) -> int:
    """Bytes on the wire of one signed message, padded as the protocol pads it (edgespec/core/protocol/signing.py)."""
    return bucket(HEADER_BYTES + payload_bytes) + CARRIER_BYTES


class Pipe:
    """One direction, and what went through it."""

    def __init__(self, model: LinkModel, rng: Random) -> None:
        self._way = OneWay(model, rng)
        self.bytes = 0
        self.messages = 0

    @property
    def model(self) -> LinkModel:
        """The path's."""
        return self._way.model

    def busy_until(self) -> float:
        """When all that was sent has left the sender."""
        return self._way.busy_until

    def send(self, now: float, payload_bytes: int) -> float:
        """Sends one message; returns when the receiver has it."""
        size = wire_bytes(payload_bytes)
        self.bytes += size
        self.messages += 1
        return self._way.arrival(now, size)

    def delay(self) -> float:
        """One draw of the one-way delay."""
        return self._way.delay()
