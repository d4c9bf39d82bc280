"""Source `medusa`: what heads over the target's last hidden state expect of the next tokens (Medusa, Cai et al. 2024).

Each head looks at one distance, independently of the others, so that their tokens form a tree of all combinations. How
far a head's probabilities can be trusted is learnt from the completion, and so is whether asking it pays.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from msgspec import Struct

from cloud_gateway.core.sources.interface import ROOT, Suggestion
from cloud_gateway.core.sources.rates import MAX_WEIGHT, MIN_SURVIVAL, PRIOR_WEIGHT

MAX_CHANCE = 0.99
NOT_ASKED = "no heads are loaded (`sources.medusa`), or there was no pass yet"
TRIAL = 16
"""Times that heads are asked before it is judged whether they pay, and rounds after which they are asked again."""
WEIGHT = 1 / TRIAL
"""Weight of the newest round in what they save and cost."""


class Level(Struct, frozen=True):
    """What one head expects at its distance: its most probable tokens, with their probabilities."""

    tokens: Sequence[int]
    chances: Sequence[float]


class Medusa:
    """One request's source. The engine gives it what the heads expect (`seen`) after each pass in which `wanted`."""

    name = "medusa"

    def __init__(self) -> None:
        self.why: str | None = NOT_ASKED
        self._coming: Sequence[Level] = ()
        self._levels: Sequence[Level] = ()
        self._right: list[float] = []
        self._expected: list[float] = []
        """By level: tokens that were right, and the sum of the probabilities given to them."""
        self._asked = self._rounds = 0
        self._saved = self._cost = 0.0

    @property
    def wanted(self) -> bool:
        """Whether the heads are to be asked after this pass."""
        return self._asked < TRIAL or self._saved >= self._cost or self._rounds % TRIAL == 0

    def seen(self, levels: Sequence[Level], cost: float) -> None:
        """What the heads expect after the tokens of the pass just made; `cost`: what asking took, in passes."""
        self._coming = levels
        self._asked += 1
        self._cost += (cost - self._cost) * max(WEIGHT, 1 / self._asked)

    def committed(self, tokens: Sequence[int]) -> None:
        """Compares these tokens with what was expected in their place."""
        self._rounds += 1
        if self._levels:
            self._learn(tokens)
        self._levels, self._coming = self._coming, ()

    def _learn(self, tokens: Sequence[int]) -> None:
        right = 0
        for number, (level, token) in enumerate(zip(self._levels, tokens, strict=False)):
            if number == len(self._right):
                self._right.append(PRIOR_WEIGHT)
                self._expected.append(PRIOR_WEIGHT)
            self._expected[number] += sum(level.chances)
            if self._expected[number] > MAX_WEIGHT:
                self._right[number] *= MAX_WEIGHT / self._expected[number]
                self._expected[number] = MAX_WEIGHT
            if token not in level.tokens:  # what follows was not reached by a tree of theirs
                break
            self._right[number] += 1
            right += 1
        self._saved += (right - self._saved) * WEIGHT

    def propose(self, room: int) -> Sequence[Suggestion]:
        """The most likely combinations, by their survival."""
        found: list[Suggestion] = []
        ahead = [(-1.0, ROOT, 0)]
        """(-survival, index of the suggestion, level below it)."""
        while ahead and len(found) < room:
            negative, parent, number = heapq.heappop(ahead)
            if number == len(self._levels):
                continue
            level = self._levels[number]
            for token, chance in zip(level.tokens, self._trusted(number, level), strict=True):
                if -negative * chance >= MIN_SURVIVAL and len(found) < room:
                    found.append(Suggestion(parent, token, chance))
                    heapq.heappush(ahead, (negative * chance, len(found) - 1, number + 1))
        self.why = None if found else self._refusal()
        return found

    def _trusted(self, number: int, level: Level) -> Sequence[float]:
        """The head's probabilities, scaled by how often it was right so far."""
        scale = self._right[number] / self._expected[number] if number < len(self._right) else 1.0
        return [min(scale * chance, MAX_CHANCE) for chance in level.chances]

    def _refusal(self) -> str:
        if self._levels:
            return "no token that the heads expect is likely enough"
        if not self._asked:
            return NOT_ASKED
        return f"the heads save {self._saved:.2f} passes a round and cost {self._cost:.2f}"
