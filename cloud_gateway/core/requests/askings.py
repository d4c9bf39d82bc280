"""Which answers to a prompt that waits are still to be asked for (QueueSpec), and how long a worker may be silent.

Each answer is asked for once, and again where its worker was lost to it: it left, was needed elsewhere, declined, broke
the protocol or was silent. A worker that was lost to a request is not asked again for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cloud_gateway.core.sources.settings import MAX_ANSWERS

MAX_AGAIN = 3
"""Askings of one request beyond one for each answer: with more, workers that write nothing would cost the others."""
MIN_PATIENCE_S = 2.0
STEPS = 16
"""Draft steps without a further token of the answer: a worker that drafts for others too may be that late."""
READ = 2
"""Tokens of a prompt that a worker reads in the time of a step, at least: a batch computes several at once."""


def patience(rtt_s: float, step_s: float, unread: int) -> float:
    """Seconds in which a worker has to bring an answer further; `unread`: tokens of the prompt to be read before."""
    return MIN_PATIENCE_S + rtt_s + step_s * (STEPS + unread / READ)


@dataclass(slots=True)
class Askings:
    """The answers of one request that waits, counted from 0."""

    lost_by: set[str] = field(default_factory=set)
    """Workers that were lost to it."""
    _begun: int = 0
    _again: int = 0
    _lost: list[int] = field(default_factory=list)

    @property
    def next(self) -> int:
        """Number of the answer to ask for: a lost one first."""
        return min(self._lost, default=self._begun)

    def take(self) -> int:
        """The same; it counts as asked for from now on."""
        number = self.next
        if self._lost:
            self._lost.remove(number)
        else:
            self._begun += 1
        return number

    def lose(self, number: int, worker: str) -> None:
        """The worker does not end this answer."""
        self.lost_by.add(worker)
        if self._again < MAX_AGAIN:
            self._again += 1
            self._lost.append(number)

    def stop(self) -> None:
        """Nothing more is asked for."""
        self._begun, self._again = MAX_ANSWERS, MAX_AGAIN
        self._lost.clear()
