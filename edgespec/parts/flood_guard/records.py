"""Counts the records of one TLS connection on its encrypted side, by their headers (RFC 8446 section 5.1).

A record may carry one byte or none, and costs decrypting and reading like a full one: 60,000 of them, which budgets of
decrypted bytes allow, held the event loop for more than a second.
"""

from __future__ import annotations

from edgespec.core.protocol.inflow import Bucket

MAX_UNPROVEN_RECORDS = 128
"""Before the proof: the handshake takes about six, and each WebSocket frame of the budget may take one."""
RECORDS_PER_S = 2000.0
RECORDS_BURST = 5000
"""After it: twice the frames that are read in a second, and as many at once as wait in buffers after a pause."""
_HEADER_BYTES = 5


class Records:
    """The `Meter` of one connection."""

    def __init__(self) -> None:
        self.count = 0
        self._header = bytearray()
        self._body = 0
        self._rate = Bucket(RECORDS_PER_S, RECORDS_BURST)

    def take(self, data: memoryview, proven: bool, now: float) -> str | None:
        """Counts what has come; returns the number of records if that is more than allowed."""
        before = self.count
        self._walk(data)
        self._rate.take(self.count - before, now)

        if proven:
            is_too_much = self._rate.free_at > now
        else:
            is_too_much = self.count > MAX_UNPROVEN_RECORDS
        if is_too_much:
            return f"{self.count} TLS records"
        return None

    def _walk(self, data: memoryview) -> None:
        at = 0
        while at < len(data):
            if self._body:
                step = min(self._body, len(data) - at)
                self._body -= step
            else:
                step = min(_HEADER_BYTES - len(self._header), len(data) - at)
                self._header += data[at : at + step]
                if len(self._header) == _HEADER_BYTES:
                    self.count += 1
                    self._body = int.from_bytes(self._header[3:], "big")
                    self._header.clear()
            at += step
