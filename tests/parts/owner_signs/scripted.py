"""A sign of the owner that a test sets."""

from __future__ import annotations

from edgespec.parts.owner_signs.sources import Source, Unavailable


class Scripted(Source):
    """A source whose value a test sets; None: it cannot be read."""

    def __init__(self, name: str, value: float | None = 0.0, period_s: float = 0.25) -> None:
        self.name = name
        self.value = value
        self.period_s = period_s
        self.reads = self.opened = self.closed = 0

    async def open(self) -> None:
        self.opened += 1
        if self.value is None:
            raise Unavailable("there is none")

    def read(self, now: float) -> float:
        self.reads += 1
        if self.value is None:
            raise Unavailable("it was taken away")
        return self.value

    async def close(self) -> None:
        self.closed += 1
