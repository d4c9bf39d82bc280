"""Source `lookup`: what followed, in prompt and completion, where the text was as it ends now.

As SuffixDecoding does (docs/architecture.md, bibliography), a small tree: all continuations of the longest match, by
how often each followed. How often such a continuation is right is learnt for each length of the match, from the
completion itself.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from cloud_gateway.core.sources.interface import ROOT, Suggestion
from cloud_gateway.core.sources.suffixes import Suffixes, continuations

PRIORS = (0.0, 0.15, 0.3, 0.5, 0.7, 0.85)
"""How often a continuation is right after a match of 0, 1, 2, 4, 8 and 16 or more tokens, before anything is learnt."""
PRIOR_WEIGHT = 4.0
"""Of these, in observations."""
MAX_WEIGHT = 40.0
"""Observations that count at most, so that a change of the text shows soon."""
MIN_RATE = 0.25
"""A match that is right less often suggests nothing: with it a row of the pass is wasted three times out of four."""
MIN_SURVIVAL = 0.1
"""Candidates less likely than this are not suggested."""
NO_MATCH = "the text does not end in anything that it holds before"


class Lookup:
    """One request's source."""

    name = "lookup"

    def __init__(self, prompt_len: int) -> None:
        """`prompt_len`: tokens that teach nothing, since the target did not choose them."""
        self.why: str | None = NO_MATCH
        self._suffixes = Suffixes()
        self._unlearnt = prompt_len
        self._right = [rate * PRIOR_WEIGHT for rate in PRIORS]
        self._seen = [PRIOR_WEIGHT] * len(PRIORS)

    def committed(self, tokens: Sequence[int]) -> None:
        """Extends the text, and compares each token of the completion with what would have been suggested."""
        for token in tokens:
            if self._unlearnt:
                self._unlearnt -= 1
            elif match := self._suffixes.match:
                right = any(token == self._suffixes.following(end, 0) for end in self._suffixes.earlier())
                self._learn(_class(match), right=right)
            self._suffixes.append(token)

    def rate(self, match: int) -> float:
        """How often one of the continuations of such a match is right."""
        kind = _class(match)
        return self._right[kind] / self._seen[kind]

    def propose(self, room: int) -> Sequence[Suggestion]:
        """The most likely continuations of the longest match, by their survival."""
        match = self._suffixes.match
        if self.rate(match) < MIN_RATE:
            self.why = f"a match of {match} tokens was right {self.rate(match):.0%} of the time" if match else NO_MATCH
            return ()
        found: list[Suggestion] = []
        ahead = [(-1.0, 0, ROOT, list(self._suffixes.earlier()), 0)]
        """(-survival, serial number, index of the suggestion, where it is found, its level)."""
        serial = 0
        while ahead and len(found) < room:
            negative, _, parent, ends, level = heapq.heappop(ahead)
            rate = self.rate(match + level)
            followed = continuations(self._suffixes, ends, level)
            for token, places in sorted(followed.items(), key=lambda item: -len(item[1])):
                chance = rate * len(places) / len(ends)
                if -negative * chance >= MIN_SURVIVAL and len(found) < room:
                    found.append(Suggestion(parent, token, chance))
                    serial += 1
                    heapq.heappush(ahead, (negative * chance, serial, len(found) - 1, places, level + 1))
        self.why = None if found else f"no continuation of a match of {match} tokens is likely enough"
        return found

    def _learn(self, kind: int, *, right: bool) -> None:
        self._right[kind] += right
        self._seen[kind] += 1
        if self._seen[kind] > MAX_WEIGHT:
            self._right[kind] *= MAX_WEIGHT / self._seen[kind]
            self._seen[kind] = MAX_WEIGHT


def _class(match: int) -> int:
    return min(match.bit_length(), len(PRIORS) - 1)
