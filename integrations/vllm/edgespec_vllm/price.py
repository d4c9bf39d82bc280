"""How many draft tokens pay in a step of vLLM, by what steps took: the rows of a full batch are not free.

A step over r rows, one for each request and one for each draft, takes about a + b·r seconds, measured for batches of
about that size; a step without drafts is measured apart. A draft that is accepted with probability p brings p tokens
and costs b seconds of everybody's time. So drafts are taken in falling order of p while p divided by the tokens of the
step exceeds b divided by its seconds, which maximises tokens a second (Dinkelbach 1967).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

MEMORY = 0.99
"""Weight of a step when the next one of its kind is measured: about a hundred steps count."""
TRIALS = 6
"""Steps of a batch size before its measurements decide: with all drafts, none, and half of them, in turns."""
AGAIN = 128
"""Steps between two with all drafts or without any, in turns, so that an error of the measurement does not stand."""
OUTLIER = 4.0
"""A step that takes so many times the mean, such as one that compiles, is not measured."""
MARGIN = 0.02
"""By so much drafts must be faster than none, since both are estimates."""


class Line:
    """Seconds of steps by their rows, the latest weighing most."""

    __slots__ = ("_rows", "_rows_squared", "_seconds", "_seconds_rows", "_weight")

    def __init__(self) -> None:
        self._weight = 0.0
        self._rows = 0.0
        self._rows_squared = 0.0
        self._seconds = 0.0
        self._seconds_rows = 0.0

    def add(self, rows: int, seconds: float) -> None:
        """Takes in a step over so many rows."""
        if self._weight > 1 and seconds > OUTLIER * self._seconds / self._weight:
            return

        self._weight = self._weight * MEMORY + 1
        self._rows = self._rows * MEMORY + rows
        self._rows_squared = self._rows_squared * MEMORY + rows * rows
        self._seconds = self._seconds * MEMORY + seconds
        self._seconds_rows = self._seconds_rows * MEMORY + seconds * rows

    @property
    def row_s(self) -> float:
        """Seconds of a further row; 0 as long as all steps had equally many."""
        mean_rows = self._rows / self._weight
        spread = self._rows_squared / self._weight - mean_rows * mean_rows
        if spread < 1e-6:
            return 0.0

        together = self._seconds_rows / self._weight - mean_rows * self._seconds / self._weight
        return max(together / spread, 0.0)

    def at(self, rows: int) -> float:
        """Seconds of a step over so many rows."""
        mean_s = self._seconds / self._weight
        by_line_s = mean_s + self.row_s * (rows - self._rows / self._weight)
        return max(by_line_s, mean_s / OUTLIER)


class Steps:
    """Steps over batches of about one size. Those with drafts are apart: the first draft costs more than its row."""

    __slots__ = ("drafted", "plain", "seen")

    def __init__(self) -> None:
        self.seen = 0
        self.plain = Line()
        self.drafted = Line()

    def add(self, requests: int, drafts: int, seconds: float) -> None:
        """Takes in a step."""
        self.seen += 1
        line = self.drafted if drafts else self.plain
        line.add(requests + drafts, seconds)


class Chances:
    """How often drafts were right, relative to what their workers said: of one request, or of all."""

    __slots__ = ("predicted", "right")

    PRIOR = 8.0
    """Drafts that the mean of all requests counts for in that of one."""

    def __init__(self, like: Chances | None = None) -> None:
        """`like`: the record of all requests, which is that of a new one."""
        share = like.trust if like is not None else 1.0
        self.predicted = self.PRIOR
        self.right = self.PRIOR * share

    @property
    def trust(self) -> float:
        """Ratio of right to predicted drafts, at most 1."""
        if self.right < self.predicted:
            return self.right / self.predicted
        return 1.0

    def settled(self, predicted: float, right: int) -> None:
        """So many drafts were right, of as many as were expected."""
        self.predicted += predicted
        self.right += right

    def survival(self, chances: Sequence[float]) -> list[float]:
        """Probability that each draft of a chain is accepted; `chances`: of each after the one before."""
        trust = self.trust
        alive = 1.0
        return [alive := alive * chance * trust for chance in chances]


class RowPrice:
    """Costs of one engine's steps, by the number of requests that decode in them."""

    def __init__(self) -> None:
        self._steps: dict[int, Steps] = {}

    def measured(self, requests: int, drafts: int, seconds: float) -> None:
        """A step that read no prompt took so long."""
        self._of(requests).add(requests, drafts, seconds)

    def allowed(self, requests: int, survivals: Sequence[Sequence[float]]) -> list[int]:
        """How many drafts of each chain to take, from the first on, in a step over so many requests.

        `survivals`: of each chain, falling. Until the batch size has been measured, all, none and half in turns.
        """
        steps = self._of(requests)
        every = [len(survival) for survival in survivals]
        none = [0] * len(survivals)
        if steps.seen < TRIALS:
            return (every, none, [(count + 1) // 2 for count in every])[steps.seen % 3]
        if steps.seen % AGAIN == 0:
            return (every, none)[steps.seen // AGAIN % 2]

        # The least chance that pays: the likeliest drafts of all chains come first.
        least = math.inf
        tokens = float(requests)
        seconds = steps.drafted.at(requests)
        row_s = steps.drafted.row_s
        for chance in sorted([chance for survival in survivals for chance in survival], reverse=True):
            if chance * seconds <= row_s * tokens:
                break
            least = chance
            tokens += chance
            seconds += row_s

        if tokens * steps.plain.at(requests) <= (1 + MARGIN) * requests * seconds:
            return none
        return [_at_least(least, survival) for survival in survivals]

    def _of(self, requests: int) -> Steps:
        """Batches of up to twice as many requests are measured together."""
        size = math.frexp(requests)[1]
        steps = self._steps.get(size)
        if steps is None:
            steps = self._steps[size] = Steps()
        return steps


def _at_least(least: float, falling: Sequence[float]) -> int:
    """How many of these are so likely."""
    if falling and falling[-1] >= least:
        return len(falling)
    return sum([chance >= least for chance in falling])


class BatchLimits:
    """vLLM's own `num_speculative_tokens_per_batch_size`: most drafts of a request, by requests in the batch."""

    def __init__(self, ranges: Sequence[Sequence[int]] | None, default: int) -> None:
        """`ranges`: first and last batch size, and the drafts; None: `default` for all."""
        self._ranges = [tuple(entry) for entry in ranges or ()]
        self._default = default

    def of(self, requests: int) -> int:
        """Most drafts of each request; `default` outside all ranges, and never more than that."""
        for first, last, drafts in self._ranges:
            if first <= requests <= last:
                return min(drafts, self._default)
        return self._default
