"""Source `answers`: what followed in other answers to the prompt where they were as the text ends now.

They are written by a draft while the request waits for a slot (QueueSpec), or are earlier completions of the same
conversation (`Archive`). Each begins with the end of the prompt, so that its first tokens are suggested too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from cloud_gateway.core.requests.generation import Generation
from cloud_gateway.core.sources.interface import DraftSource, SourceMaker, SourceStart, Suggestion
from cloud_gateway.core.sources.lookup import Rates, Suffixes, likeliest
from cloud_gateway.parts.queued_answers.archive import Archive

MAX_TOKENS = 8192
"""Tokens of one request's answers, at about 1 kB each: eight answers of a thousand tokens."""
REACH = 16
"""Tokens of a match that are distinguished: the classes of `rates.PRIORS` end there."""
NONE = "there is no other answer to this prompt"
Earlier = Callable[[], Sequence[Sequence[int]]]
"""Completions that one request may use; called once, on the engine's thread."""


class AnswerSuffixes(Suffixes):
    """The answers as one text, in which the place of another text is followed."""

    def step(self, state: int, length: int, token: int) -> tuple[int, int]:
        """The longest end of another text that occurs in this one, as state and length, when `token` follows there."""
        while state and token not in self._next[state]:
            state = self._link[state]
            length = self._length[state]
        if token in self._next[state]:
            return (self._next[state][token], length + 1)
        return (0, 0)


class Answers(DraftSource):
    """One request's source: an automaton of all answers, and the place in it of the text as it ends now."""

    name = "answers"

    def __init__(self, prompt: Sequence[int], earlier: Earlier = tuple) -> None:
        """`earlier`: completions of the same conversation, which are looked up when the request is drafted for."""
        self.rate = Rates()
        self.why: str | None = NONE
        self.count = 0
        self._tail = list(prompt[-REACH:])
        self._suffixes = AnswerSuffixes(2 * MAX_TOKENS)
        self._earlier = earlier
        self._begun = False
        self._unlearnt = len(prompt)
        self._recent: deque[int] = deque(maxlen=2 * REACH)
        self._state = 0
        self._match = 0

    def add(self, answer: Sequence[int]) -> bool:
        """One more answer; whether there was room for it."""
        text = [*self._tail, *answer]
        if not answer or len(self._suffixes.text) + len(text) >= MAX_TOKENS:
            return False

        # What is no token stands between answers: no match goes from one into the next.
        self.count += 1
        self._suffixes.append(-self.count)
        for token in text:
            self._suffixes.append(token)
        self._suffixes.append(-self.count - MAX_TOKENS)

        # States were split: the place of the text is found again.
        self._state = 0
        self._match = 0
        for token in self._recent:
            self._state, self._match = self._suffixes.step(self._state, self._match, token)

        return True

    def committed(self, tokens: Sequence[int]) -> None:
        """Follows the text, and compares each token of the completion with what would have been suggested."""
        if not self._begun:
            self._begun = True
            for completion in self._earlier():
                self.add(completion)

        for token in tokens:
            if self._unlearnt:
                self._unlearnt -= 1
            elif self._match:
                right = any(token == self.following(end, 0) for end in self._suffixes.ends(self._state))
                self.rate.learn(self._match, right=right)
            self._recent.append(token)
            self._state, self._match = self._suffixes.step(self._state, self._match, token)

    def propose(self, room: int) -> Sequence[Suggestion]:
        """The most likely continuations of the longest match, by their survival."""
        if not self.count:
            return ()

        self.why = self.rate.refusal(self._match)
        if self.why is not None:
            return ()

        ends = list(self._suffixes.ends(self._state))
        found = likeliest(self.rate, self._match, ends, self.following, room)
        if found:
            self.why = None
        else:
            self.why = f"no continuation of a match of {self._match} tokens is likely enough"
        return found

    def following(self, end: int, distance: int) -> int | None:
        """The token so far behind position `end` in the same answer; None beyond its end."""
        at = end + 1 + distance
        text = self._suffixes.text
        if at < len(text) and text[at] >= 0:
            return text[at]
        return None


def answers_of(generation: Generation) -> Answers | None:
    """The request's source `answers`; None if it uses none."""
    if generation.sources is None:
        return None
    return generation.sources.of(Answers)


def maker(archive: Archive) -> SourceMaker:
    """Makes sources that find what this archive has when they begin."""

    def make(start: SourceStart) -> DraftSource:
        return Answers(start.prompt, lambda: archive.find(start.scope, start.prompt))

    return make
