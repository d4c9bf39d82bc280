"""Source `lookup`: what followed, in prompt and completion, where the text was as it ends now.

The longest end of a text that occurs in it before is found by a suffix automaton (Blumer et al. 1985). A state stands
for all substrings that end at the same positions; its link leads to the longest suffix of these that ends at more
positions. So the link of the whole text is its longest end that occurs earlier.

What it suggests is a small tree, as in SuffixDecoding (docs/architecture.md, bibliography): all continuations of the
longest match, by how often each followed. How often one is right is learnt for each length of the match, from the
completion itself (`Rates`). A part's source may find other texts again in the same way.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence

from cloud_gateway.core.sources.interface import ROOT, DraftSource, Suggestion

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
        if rate >= MIN_RATE:
            return None
        return f"a match of {match} tokens was right {rate:.0%} of the time"


def likeliest(rates: Rates, match: int, ends: Sequence[int], following: Following, room: int) -> Sequence[Suggestion]:
    """At most `room` continuations of a match that ended at `ends` before, by their survival."""
    suggestions: list[Suggestion] = []
    ahead = [(-1.0, 0, ROOT, ends, 0)]
    """(-survival, serial number, index of the suggestion, where it is found, its level)."""
    serial = 0
    while ahead and len(suggestions) < room:
        negative, _, parent, ends, level = heapq.heappop(ahead)
        rate = rates(match + level)
        by_token = continuations(following, ends, level)
        for token, places in sorted(by_token.items(), key=lambda item: -len(item[1])):
            chance = rate * len(places) / len(ends)
            survival = -negative * chance
            if survival >= MIN_SURVIVAL and len(suggestions) < room:
                suggestions.append(Suggestion(parent, token, chance))
                serial += 1
                heapq.heappush(ahead, (-survival, serial, len(suggestions) - 1, places, level + 1))

    return suggestions


def continuations(following: Following, ends: Sequence[int], distance: int) -> dict[int, list[int]]:
    """Token -> those of `ends` that it followed at this distance."""
    by_token: dict[int, list[int]] = {}
    for end in ends:
        token = following(end, distance)
        if token is not None:
            by_token.setdefault(token, []).append(end)
    return by_token


def _class(match: int) -> int:
    """Index in PRIORS of the rate after a match of so many tokens."""
    return min(match.bit_length(), len(PRIORS) - 1)


MAX_TEXT = 16_384
"""Tokens that are kept, at up to two states and about 1 kB each; beyond, the earlier half is dropped."""
MAX_VISITS = 64
"""States looked at for one match: enough for every text that does not repeat itself without end."""


class Suffixes:
    """Takes a text token by token, each in constant time on the average."""

    def __init__(self, max_text: int = MAX_TEXT) -> None:
        self.max_text = max_text
        self._clear()

    def _clear(self) -> None:
        self.text: list[int] = []
        self._next: list[dict[int, int]] = []
        self._link: list[int] = []
        self._length: list[int] = []
        self._end: list[int] = []
        """Position of the last token where the state is that of a beginning of the text; -1 for others."""
        self._linked: list[dict[int, None]] = []
        """States that link to this one."""
        self._last = self._state({}, 0, -1)

    @property
    def match(self) -> int:
        """Tokens of the longest end of the text that occurs earlier too; 0 for none."""
        if self.text:
            return self._length[self._link[self._last]]
        return 0

    def append(self, token: int) -> None:
        """The text has grown."""
        if len(self.text) >= self.max_text:
            kept = self.text[self.max_text // 2 :]
            self._clear()
            for old in kept:
                self._append(old)
        self._append(token)

    def earlier(self) -> Iterator[int]:
        """Where the longest match ended before: positions of its last token, at most MAX_VISITS."""
        if self.match:
            return self.ends(self._link[self._last])
        return iter(())

    def ends(self, state: int) -> Iterator[int]:
        """Where the substrings of a state end: positions of the last token, at most MAX_VISITS."""
        stack = [state]
        visits = 0
        while stack and visits < MAX_VISITS:
            state = stack.pop()
            visits += 1
            if self._end[state] >= 0 and state != self._last:
                yield self._end[state]
            stack.extend(self._linked[state])

    def following(self, end: int, distance: int) -> int:
        """The token so far behind position `end`, the text being continued as it went on there."""
        return self.text[end + 1 + distance % (len(self.text) - 1 - end)]

    def _state(self, following: dict[int, int], length: int, end: int) -> int:
        self._next.append(following)
        self._link.append(-1)
        self._length.append(length)
        self._end.append(end)
        self._linked.append({})
        return len(self._next) - 1

    def _attach(self, state: int, to: int) -> None:
        self._link[state] = to
        self._linked[to][state] = None

    def _append(self, token: int) -> None:
        follow = self._next
        link = self._link
        length = self._length
        new = self._state({}, len(self.text) + 1, len(self.text))
        state = self._last
        self.text.append(token)
        self._last = new
        while state >= 0 and token not in follow[state]:
            follow[state][token] = new
            state = link[state]
        if state < 0:
            self._attach(new, 0)
            return

        found = follow[state][token]
        if length[found] != length[state] + 1:
            found = self._split(found, state, token)
        self._attach(new, found)

    def _split(self, found: int, state: int, token: int) -> int:
        """A state of its own for the substrings of `found` that end in more places now."""
        follow = self._next
        link = self._link
        part = self._state(dict(follow[found]), self._length[state] + 1, -1)
        above = link[found]
        del self._linked[above][found]
        self._attach(part, above)
        self._attach(found, part)
        while state >= 0 and follow[state].get(token) == found:
            follow[state][token] = part
            state = link[state]

        return part


class Lookup(DraftSource):
    """One request's source."""

    name = "lookup"

    def __init__(self, prompt_len: int) -> None:
        """`prompt_len`: tokens that teach nothing, since the target did not choose them."""
        self.rate = Rates()
        self._suffixes = Suffixes()
        self._unlearnt = prompt_len
        self.why = self.rate.refusal(0)

    def committed(self, tokens: Sequence[int]) -> None:
        """Extends the text, and compares each token of the completion with what would have been suggested."""
        for token in tokens:
            if self._unlearnt:
                self._unlearnt -= 1
            elif self._suffixes.match:
                self._learn(token)
            self._suffixes.append(token)

    def _learn(self, token: int) -> None:
        """Compares the token that follows with what followed the longest match before."""
        suffixes = self._suffixes
        right = any(token == suffixes.following(end, 0) for end in suffixes.earlier())
        self.rate.learn(suffixes.match, right=right)

    def propose(self, room: int) -> Sequence[Suggestion]:
        """The most likely continuations of the longest match, by their survival."""
        match = self._suffixes.match
        self.why = self.rate.refusal(match)
        if self.why is not None:
            return ()

        ends = list(self._suffixes.earlier())
        suggestions = likeliest(self.rate, match, ends, self._suffixes.following, room)
        if not suggestions:
            self.why = f"no continuation of a match of {match} tokens is likely enough"
        return suggestions
