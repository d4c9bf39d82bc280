"""What sources that find a text again share: how often a continuation is right, and the likeliest continuations.

As SuffixDecoding does (docs/architecture.md, bibliography), a small tree: all continuations of the longest match, by
how often each followed. How often one is right is learnt for each length of the match, from the completion itself.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from cloud_gateway.core.sources.interface import ROOT, Suggestion

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

Following = Callable[[int, int], int | None]
"""(position of a match's last token, distance) -> the token so far behind it, None beyond the end of its text."""


class Rates:
    """How often one of the continuations of a match is right, by the length of the match in tokens."""

    def __init__(self) -> None:
        self._right = [rate * PRIOR_WEIGHT for rate in PRIORS]
        self._seen = [PRIOR_WEIGHT] * len(PRIORS)

    def __call__(self, match: int) -> float:
        kind = _class(match)
        return self._right[kind] / self._seen[kind]

    def learn(self, match: int, *, right: bool) -> None:
        """A continuation of such a match was seen to be right, or not."""
        kind = _class(match)
        self._right[kind] += right
        self._seen[kind] += 1
        if self._seen[kind] > MAX_WEIGHT:
            self._right[kind] *= MAX_WEIGHT / self._seen[kind]
            self._seen[kind] = MAX_WEIGHT

    def refusal(self, match: int) -> str | None:
        """Why nothing is suggested after such a match; None where something may be."""
        if not match:
            return "the text does not end in anything that it holds before"
        rate = self(match)
        return None if rate >= MIN_RATE else f"a match of {match} tokens was right {rate:.0%} of the time"


def likeliest(rates: Rates, match: int, ends: Sequence[int], following: Following, room: int) -> Sequence[Suggestion]:
    """At most `room` continuations of a match that ended at `ends` before, by their survival."""
    found: list[Suggestion] = []
    ahead = [(-1.0, 0, ROOT, ends, 0)]
    """(-survival, serial number, index of the suggestion, where it is found, its level)."""
    serial = 0
    while ahead and len(found) < room:
        negative, _, parent, ends, level = heapq.heappop(ahead)
        rate = rates(match + level)
        for token, places in sorted(continuations(following, ends, level).items(), key=lambda item: -len(item[1])):
            chance = rate * len(places) / len(ends)
            if -negative * chance >= MIN_SURVIVAL and len(found) < room:
                found.append(Suggestion(parent, token, chance))
                serial += 1
                heapq.heappush(ahead, (negative * chance, serial, len(found) - 1, places, level + 1))
    return found


def continuations(following: Following, ends: Sequence[int], distance: int) -> dict[int, list[int]]:
    """Token -> those of `ends` that it followed at this distance."""
    found: dict[int, list[int]] = {}
    for end in ends:
        token = following(end, distance)
        if token is not None:
            found.setdefault(token, []).append(end)
    return found


def _class(match: int) -> int:
    return min(match.bit_length(), len(PRIORS) - 1)
