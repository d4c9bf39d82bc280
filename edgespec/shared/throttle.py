"""Limits each kind of line to one per interval, with a count of those suppressed."""

from __future__ import annotations

import threading
from collections.abc import Hashable

EVERY_S = 60.0
MAX_KINDS = 512
"""Kinds with a limit of their own; further ones share one, so that many kinds cannot cause a flood of lines."""


class Throttle:
    """Decides for each event whether its line may be printed. Thread-safe."""

    def __init__(self, every_s: float = EVERY_S, kinds: int = MAX_KINDS) -> None:
        self._every_s, self._kinds = every_s, kinds
        self._last: dict[Hashable, float] = {}
        self._held: dict[Hashable, int] = {}
        self._lock = threading.Lock()

    def admit(self, kind: Hashable, now: float) -> int | None:
        """Number of this kind suppressed since the last line, or None: suppress this one too. `now` in seconds."""
        with self._lock:
            if kind not in self._last and len(self._last) >= self._kinds:
                self._forget(now)
                if len(self._last) >= self._kinds:
                    kind = None
            last = self._last.get(kind)
            if last is not None and now - last < self._every_s:
                self._held[kind] = self._held.get(kind, 0) + 1
                return None
            self._last[kind] = now
            return self._held.pop(kind, 0)

    def _forget(self, now: float) -> None:
        """Removes kinds without a line for an interval, with their counts."""
        for kind in [kind for kind, last in self._last.items() if now - last >= self._every_s]:
            del self._last[kind]
            self._held.pop(kind, None)
