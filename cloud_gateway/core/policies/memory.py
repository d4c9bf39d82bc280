"""What policies learnt from earlier answers, kept per worker and kind of answer: plain data, bounded.

A draft's match rate, a worker's pace and the length of answers differ little between answers of one kind, and an answer
of twenty tokens is over before they could be learnt again.
"""

from __future__ import annotations

from collections.abc import Iterable

Learnt = dict[str, list[float]]
"""Named lists of numbers, as `Adaptive.state` makes them."""
Kind = tuple[int, tuple[str, ...]]
"""Answers of one kind teach each other."""
MAX_KEPT = 64
"""Pairs of worker and kind; the one used longest ago is dropped."""
WARM_TEMPERATURE = 0.7
"""From here on an answer counts as sampled freely; chat clients ask for 0, or for 0.7 and more."""


def temperature_class(temperature: float) -> int:
    """0 greedy, 1 cool, 2 warm: drafts match the target less the warmer it samples."""
    return 0 if temperature <= 0 else 1 if temperature < WARM_TEMPERATURE else 2


def kind_of(temperature: float, sources: Iterable[str]) -> Kind:
    """Temperature class, and which sources help: beside `lookup` a draft is worth less than without it."""
    return temperature_class(temperature), tuple(sorted(sources))


class Memory:
    """Keeps the latest state per (worker, kind). Readers on other threads see one whole version."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, Kind], Learnt] = {}

    def keep(self, worker: str, kind: Kind, learnt: Learnt) -> None:
        """An answer ended; `worker` is empty where none drafted for it."""
        others = [(key, state) for key, state in self._kept.items() if key != (worker, kind)]
        self._kept = {**dict(others[1 - MAX_KEPT :]), (worker, kind): learnt}

    def recall(self, workers: Iterable[str], kind: Kind) -> Learnt | None:
        """The latest state of any of these workers, else of answers without one; None where nothing is kept."""
        wanted = set(workers) or {""}
        kept = reversed(self._kept.items())
        return next((state for (worker, of), state in kept if of == kind and worker in wanted), None)
