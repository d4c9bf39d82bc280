"""Source `answers`: what followed in other answers to the prompt where they were as the text ends now.

They are written by a draft while the request waits for a slot (QueueSpec), or are earlier completions of the same
conversation (`Archive`). Each begins with the end of the prompt, so that its first tokens are suggested too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from msgspec import Struct

from cloud_gateway.core.sources.interface import DraftSource, Suggestion
from cloud_gateway.core.sources.lookup import Rates, Suffixes, likeliest

MAX_TOKENS = 8192
"""Tokens of one request's answers, at about 1 kB each: eight answers of a thousand tokens."""
REACH = 16
"""Tokens of a match that are distinguished: the classes of `rates.PRIORS` end there."""
NONE = "there is no other answer to this prompt"


class Answers(DraftSource):
    """One request's source: an automaton of all answers, and the place in it of the text as it ends now."""

    name = "answers"

    def __init__(self, prompt: Sequence[int]) -> None:
        self.rate = Rates()
        self.why: str | None = NONE
        self.count = 0
        self._tail = list(prompt[-REACH:])
        self._suffixes = Suffixes(2 * MAX_TOKENS)
        self._unlearnt = len(prompt)
        self._recent: deque[int] = deque(maxlen=2 * REACH)
        self._state = self._match = 0

    def add(self, answer: Sequence[int]) -> bool:
        """One more answer; whether there was room for it."""
        text = [*self._tail, *answer]
        if not answer or len(self._suffixes.text) + len(text) >= MAX_TOKENS:
            return False

        self.count += 1
        self._suffixes.append(-self.count)  # no token: no match goes from one answer into the next
        for token in text:
            self._suffixes.append(token)
        self._suffixes.append(-self.count - MAX_TOKENS)
        self._state = self._match = 0  # states were split
        for token in self._recent:
            self._state, self._match = self._suffixes.step(self._state, self._match, token)

        return True

    def committed(self, tokens: Sequence[int]) -> None:
        """Follows the text, and compares each token of the completion with what would have been suggested."""
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


MAX_FOUND = 4
"""Completions given to one request: more of them rarely agree better and cost memory."""
MAX_SHARE = 4
"""One scope holds at most the fourth part, so that no key displaces all that others have."""


class Entry(Struct, frozen=True):
    """One completion and its prompt."""

    scope: bytes
    prompt: Sequence[int]
    completion: Sequence[int]

    @property
    def size(self) -> int:
        """Tokens held."""
        return len(self.prompt) + len(self.completion)


class Archive:
    """The latest completions, kept for later requests of the same conversation while there is room.

    What a request finds depends on its own scope only, and the empty scope has nothing.
    """

    def __init__(self, max_tokens: int) -> None:
        """`max_tokens`: of all prompts and completions together; 0 keeps nothing."""
        self.max_tokens = max_tokens
        self.tokens = 0
        self._entries: deque[Entry] = deque()
        """Oldest first."""
        self._held: dict[bytes, int] = {}
        """Scope -> tokens."""

    def __len__(self) -> int:
        return len(self._entries)

    def keep(self, scope: bytes, prompt: Sequence[int], completion: Sequence[int]) -> None:
        """Keeps a completion, and drops the oldest ones that there is no room for: first those of its own scope."""
        entry = Entry(scope, prompt, completion)
        share = self.max_tokens // MAX_SHARE
        if not scope or not completion or entry.size > share:
            return

        while self._held.get(scope, 0) + entry.size > share:
            self._drop(next(old for old in self._entries if old.scope == scope))
        while self.tokens + entry.size > self.max_tokens:
            self._drop(self._entries[0])
        self._entries.append(entry)
        self.tokens += entry.size
        self._held[scope] = self._held.get(scope, 0) + entry.size

    def find(self, scope: bytes, prompt: Sequence[int]) -> list[Sequence[int]]:
        """Completions of prompts that begin as this one does for half of its length or more, latest first."""
        if not scope:
            return []

        half = prompt[: (len(prompt) + 1) // 2]
        found = list[Sequence[int]]()
        for entry in reversed(self._entries):
            if entry.scope == scope and list(entry.prompt[: len(half)]) == list(half):
                found.append(entry.completion)
                if len(found) == MAX_FOUND:
                    break

        return found

    def _drop(self, entry: Entry) -> None:
        self._entries.remove(entry)
        self.tokens -= entry.size
        self._held[entry.scope] -= entry.size
        if not self._held[entry.scope]:
            del self._held[entry.scope]
