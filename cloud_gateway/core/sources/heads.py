"""Sources `medusa` and `eagle`: what heads over the target's hidden states expect of the next tokens.

Medusa heads (Cai et al. 2024) look at one distance each, so that their tokens form a tree of all combinations; an EAGLE
head (Li et al. 2024) drafts a tree of its own. How far their probabilities can be trusted is learnt from this
completion and those of its kind before it, and so is whether asking them pays.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from msgspec import Struct

from cloud_gateway.core.sources.interface import ROOT, DraftSource, Suggestion
from cloud_gateway.core.sources.lookup import MAX_WEIGHT, MIN_SURVIVAL, PRIOR_WEIGHT

MAX_CHANCE = 0.99
TRIAL = 4
AGAIN = 16
"""Times that heads are asked before it is judged whether they pay, and rounds after which they are asked again."""
WEIGHT = 1 / AGAIN
"""Weight of the newest round in what they save and cost."""


class Level(Struct, frozen=True):
    """What heads expect at one place: the most probable tokens, with their probabilities."""

    tokens: Sequence[int]
    chances: Sequence[float]
    below: list[int]
    """After each token: the index in the list of what is expected then; outside of it, nothing is."""


class HeadSource(DraftSource):
    """One request's source. The engine gives it what its heads expect (`seen`) after each pass in which `wanted`."""

    def __init__(self, name: str, learnt: Sequence[float] = ()) -> None:
        """`learnt`: the `state` of an earlier completion of this kind."""
        self.name = name
        self._not_asked = f"no {name} heads are loaded (`sources.heads`), or there was no pass yet"
        self.why: str | None = self._not_asked
        self._coming: Sequence[Level] = ()
        self._levels: Sequence[Level] = ()
        self._right: list[float] = []
        self._expected: list[float] = []
        """By depth: tokens that were right, and the sum of the probabilities given to them."""
        self._asked = self._rounds = 0
        self._saved = self._cost = 0.0
        if learnt:
            self._resume(learnt)

    def _resume(self, learnt: Sequence[float]) -> None:
        asked, rounds, self._saved, self._cost, *sums = learnt
        self._asked = int(asked)
        self._rounds = int(rounds)
        self._right = sums[: len(sums) // 2]
        self._expected = sums[len(sums) // 2 :]

    def state(self) -> list[float]:
        """What the next completion starts with, empty before heads were asked; its own rounds soon count for more."""
        if not self._asked:
            return []
        return [min(self._asked, TRIAL), self._rounds % AGAIN, self._saved, self._cost, *self._right, *self._expected]

    @property
    def wanted(self) -> bool:
        """Whether the heads are to be asked after this pass."""
        return self._asked < TRIAL or self._saved >= self._cost or self._rounds % AGAIN == 0

    def seen(self, levels: Sequence[Level], cost: float) -> None:
        """What the heads expect after the tokens of the pass just made, the first level directly behind them.

        `cost`: what asking took, in passes over one row.
        """
        self._coming = levels
        self._asked += 1
        self._cost += (cost - self._cost) * max(WEIGHT, 1 / self._asked)

    def committed(self, tokens: Sequence[int]) -> None:
        """Compares these tokens with what was expected in their place."""
        self._rounds += 1
        if self._levels:
            self._learn(tokens)
        self._levels = self._coming
        self._coming = ()

    def _learn(self, tokens: Sequence[int]) -> None:
        right = number = 0
        for depth, token in enumerate(tokens):
            if not 0 <= number < len(self._levels):
                break
            level = self._levels[number]
            if depth == len(self._right):
                self._right.append(PRIOR_WEIGHT)
                self._expected.append(PRIOR_WEIGHT)
            self._expected[depth] += sum(level.chances)
            if self._expected[depth] > MAX_WEIGHT:
                self._right[depth] *= MAX_WEIGHT / self._expected[depth]
                self._expected[depth] = MAX_WEIGHT
            if token not in level.tokens:  # what follows was not reached by a tree of theirs
                break
            self._right[depth] += 1
            right += 1
            number = level.below[level.tokens.index(token)]
        saved = right if right + 1 >= len(tokens) else 0  # else another source had them, and more
        self._saved += (saved - self._saved) * max(WEIGHT, 1 / self._asked)

    def propose(self, room: int) -> Sequence[Suggestion]:
        """The most likely paths, by their survival."""
        found: list[Suggestion] = []
        ahead = [(-1.0, ROOT, 0, 0)]
        """(-survival, index of the suggestion, depth below it, index of what is expected there)."""
        while ahead and len(found) < room:
            negative, parent, depth, number = heapq.heappop(ahead)
            if not 0 <= number < len(self._levels):
                continue
            level = self._levels[number]
            for token, chance, below in zip(level.tokens, self._trusted(depth, level), level.below, strict=True):
                if -negative * chance >= MIN_SURVIVAL and len(found) < room:
                    found.append(Suggestion(parent, token, chance))
                    heapq.heappush(ahead, (negative * chance, len(found) - 1, depth + 1, below))
        self.why = None if found else self._refusal()
        return found

    def _trusted(self, depth: int, level: Level) -> Sequence[float]:
        """The heads' probabilities, scaled by how often they were right at this depth so far."""
        if depth < len(self._right):
            scale = self._right[depth] / self._expected[depth]
        else:
            scale = 1.0
        return [min(scale * chance, MAX_CHANCE) for chance in level.chances]

    def _refusal(self) -> str:
        if self._levels:
            return "no token that the heads expect is likely enough"
        if not self._asked:
            return self._not_asked
        return f"the heads save {self._saved:.2f} passes a round and cost {self._cost:.2f}"
