"""A rule for numbers of threads that takes another number after each pass, and keeps what it was called for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from edgespec.shared.threads import Step


class Alternating:
    """A `ThreadRule`, and the `ThreadUse` of its one model."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.taken: list[int] = []
        self._take: Callable[[int], object] = self.taken.append

    def counts(self) -> Sequence[int]:
        return [1, 2]

    def use(self, counts: Sequence[int], take: Callable[[int], object], model: str) -> Alternating:
        self._take = take
        self.calls.append(f"use {list(counts)} for the {model}")
        return self

    def begin(self, step: Step) -> None:
        self.calls.append("begin")
        self._change()
        step()

    @contextmanager
    def watched(self, rows: int) -> Iterator[None]:
        self.calls.append(f"{rows} rows")
        yield
        self._change()

    def idle(self, step: Step) -> None:
        self.calls.append("idle")
        step()

    def _change(self) -> None:
        number = 1 + len(self.taken) % 2
        self.taken.append(number)
        self._take(number)
