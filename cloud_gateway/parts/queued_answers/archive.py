"""Completions that are kept for later requests of the same conversation."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from msgspec import Struct

KEPT_TOKENS = 262_144
"""Tokens of earlier prompts and completions: 2 MB."""
MAX_FOUND = 4
"""Completions given to one request: more of them rarely agree better and cost memory."""
MAX_SHARE = 4
"""One scope holds at most the fourth part, so that no key displaces all that others have."""


class KeptCompletion(Struct, frozen=True):
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
        self._entries: deque[KeptCompletion] = deque()
        """Oldest first."""
        self._held: dict[bytes, int] = {}
        """Scope -> tokens."""

    def __len__(self) -> int:
        return len(self._entries)

    def keep(self, scope: bytes, prompt: Sequence[int], completion: Sequence[int]) -> None:
        """Keeps a completion, and drops the oldest ones that there is no room for: first those of its own scope."""
        entry = KeptCompletion(scope, prompt, completion)
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

    def _drop(self, entry: KeptCompletion) -> None:
        self._entries.remove(entry)
        self.tokens -= entry.size
        self._held[entry.scope] -= entry.size
        if not self._held[entry.scope]:
            del self._held[entry.scope]
