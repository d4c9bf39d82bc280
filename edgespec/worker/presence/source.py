"""A source of signs of the owner."""

from __future__ import annotations

from typing import Protocol


class Unavailable(Exception):
    """A source cannot be read on this machine; the text says why and completes "off: …"."""


class Source(Protocol):
    """One kind of sign. Any method may raise Unavailable; the source is opened again later."""

    name: str
    """A key of `edgespec.core.presence.REASONS`."""
    period_s: float
    """Seconds between two reads."""

    async def open(self) -> None:
        """Finds what is read; the first read gives the state that later ones are compared with."""

    def read(self, now: float) -> float:
        """The latest value, in at most some hundred microseconds; it never waits for another process."""

    async def close(self) -> None:
        """Releases what `open` took."""
        return
