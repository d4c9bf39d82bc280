"""Sources `medusa` and `eagle`: what heads over the target's hidden states expect of the next tokens.

Medusa heads (Cai et al. 2024) look at one distance each, so that their tokens form a tree of all combinations; an EAGLE
head (Li et al. 2024) drafts a tree of its own. How far their probabilities can be trusted is learnt from this
completion and those of its kind before it, and so is whether asking them pays.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from cloud_gateway.core.sources.interface import ROOT, SourceMaker, SourceStart, StateSource, Suggestion
from cloud_gateway.core.sources.lookup import MAX_WEIGHT, MIN_SURVIVAL, PRIOR_WEIGHT

MAX_CHANCE = 0.99
TRIAL = 4
AGAIN = 16
"""Times that heads are asked before it is judged whether they pay, and rounds after which they are asked again."""
WEIGHT = 1 / AGAIN
"""Weight of the newest round in what they save and cost."""


class HeadLevel(Struct, frozen=True):
    """What heads expect at one place: the most probable tokens, with their probabilities."""

    tokens: Sequence[int]
    chances: Sequence[float]
    below: list[int]
    """After each token: the index in the list of what is expected then; outside of it, nothing is."""


class Heads(Protocol):
    """Heads over the target's hidden states; on the engine's thread."""

    def read(self, slot: int) -> None:
        """Takes in what the target has just read of the prompt in this slot."""

    def ask(self, slot: int, token: int) -> Sequence[HeadLevel]:
        """What they expect after the tokens of this slot and `token`, which the target has just chosen.

        The first level follows directly.
        """


def source_maker(name: str, heads: Heads | None) -> SourceMaker:
    """Makes the source of this name for each request. `heads`: None if none are loaded."""

    def make(start: SourceStart) -> HeadSource:
        return HeadSource(name, heads, start.learnt)

    return make


class HeadSource(StateSource):
    """One request's source. It asks its heads after each pass while that pays."""

    def __init__(self, name: str, heads: Heads | None, learnt: Sequence[float] = ()) -> None:
        """`learnt`: the `state` of an earlier completion of this kind."""
        self.name = name
        self._heads = heads
        self._not_asked = f"no {name} heads are loaded (`sources.heads`), or there was no pass yet"
        self.why: str | None = self._not_asked
        self._coming: Sequence[HeadLevel] = ()
        self._levels: Sequence[HeadLevel] = ()
        self._right: list[float] = []
        self._expected: list[float] = []
        """By depth: tokens that were right, and the sum of the probabilities given to them."""
        self._asked = 0
        self._rounds = 0
        self._saved = 0.0
        self._cost = 0.0
        """Passes over one row, of a round: what the heads save, and what asking them takes."""
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
        """Whether the heads are asked after the next pass."""
        if self._heads is None:
            return False
        return self._asked < TRIAL or self._saved >= self._cost or self._rounds % AGAIN == 0

    def prompt_read(self, slot: int) -> None:
        if self._heads is not None:
            self._heads.read(slot)

    def path_kept(self, slot: int, token: int) -> None:
        assert self._heads is not None  # it is not `wanted` otherwise
        self._coming = self._heads.ask(slot, token)
        self._asked += 1

    def charged(self, passes: float) -> None:
        self._cost += (passes - self._cost) * max(WEIGHT, 1 / self._asked)

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

        # If more was committed, another source had these tokens, and more.
        saved = 0
        if right + 1 >= len(tokens):
            saved = right
        self._saved += (saved - self._saved) * max(WEIGHT, 1 / self._asked)

    def propose(self, room: int) -> Sequence[Suggestion]:
        """The most likely paths, by their survival."""
        suggestions: list[Suggestion] = []
        ahead = [(-1.0, ROOT, 0, 0)]
        """(-survival, index of the suggestion, depth below it, index of what is expected there)."""
        while ahead and len(suggestions) < room:
            negative, parent, depth, number = heapq.heappop(ahead)
            if not 0 <= number < len(self._levels):
                continue

            level = self._levels[number]
            for token, chance, below in zip(level.tokens, self._trusted(depth, level), level.below, strict=True):
                if -negative * chance >= MIN_SURVIVAL and len(suggestions) < room:
                    suggestions.append(Suggestion(parent, token, chance))
                    heapq.heappush(ahead, (negative * chance, len(suggestions) - 1, depth + 1, below))

        self.why = None
        if not suggestions:
            self.why = self._refusal()
        return suggestions

    def _trusted(self, depth: int, level: HeadLevel) -> Sequence[float]:
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
