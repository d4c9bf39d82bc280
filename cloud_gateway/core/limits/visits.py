"""Bounds on the completions and bodies that one API key has in progress, so that none fills queue and memory; pure."""

from __future__ import annotations

from dataclasses import dataclass

from edgespec.core.errors import ClientError

QUEUE_LIMIT = 64
"""Completions that may wait for a slot."""
MAX_BODY_BYTES = 16 * 2**20
"""Of one key's request bodies that are read or wait to be tokenised: four of the longest."""
BUSY_RETRY_S = 2.0
"""When to try again if a completion or a body has to end first: when that is cannot be said."""


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """Of each API key."""

    completions: int
    """In progress at once, those included that wait for a slot."""
    body_bytes: int
    """Of request bodies that are read, or wait for their prompt to be tokenised."""

    @staticmethod
    def of(slots: int) -> KeyLimits:
        """The limits if the target has so many slots: a key may have all slots, and half of the queue."""
        return KeyLimits(slots + QUEUE_LIMIT // 2, MAX_BODY_BYTES)


@dataclass(slots=True)
class _InProgress:
    """Of one key."""

    completions: int = 0
    body_bytes: int = 0


class Visits:
    """The requests of all keys; it has an entry for each key that was used."""

    def __init__(self, limits: KeyLimits) -> None:
        self.limits = limits
        self._in_progress: dict[str, _InProgress] = {}

    @property
    def body_bytes(self) -> int:
        """Bytes of request bodies of all keys."""
        return sum(of_key.body_bytes for of_key in self._in_progress.values())

    def enter(self, key: str) -> Visit:
        """One request begins, as one completion until it says how many it wants. Raises ClientError 429."""
        visit = Visit(self._in_progress.setdefault(key, _InProgress()), self.limits)
        visit.expect_completions(1)
        return visit


class Visit:
    """What one request takes of its key's limits, until `end`. All methods that take raise ClientError 429."""

    def __init__(self, of_key: _InProgress, limits: KeyLimits) -> None:
        self._of_key = of_key
        self._limits = limits
        self._completions = 0
        self._bytes = 0

    def expect_completions(self, completions: int) -> None:
        """The request asks for so many in all."""
        more = completions - self._completions
        running = self._of_key.completions
        most = self._limits.completions
        if more > 0 and running + more > most:
            raise rate_limited(
                f"has {running} of {most} completions under way",
                "wait for one to end",
                BUSY_RETRY_S,
            )

        self._of_key.completions += more
        self._completions = completions

    def hold_bytes(self, size: int) -> None:
        """So many more bytes of the body have arrived."""
        waiting = self._of_key.body_bytes
        if waiting + size > self._limits.body_bytes:
            raise rate_limited(
                f"has {waiting} bytes of request bodies waiting",
                "send fewer at once",
                BUSY_RETRY_S,
            )

        self._of_key.body_bytes += size
        self._bytes += size

    def release_bytes(self) -> None:
        """The body is not needed any more."""
        self._of_key.body_bytes -= self._bytes
        self._bytes = 0

    def end(self) -> None:
        """The request is over."""
        self._of_key.completions -= self._completions
        self._completions = 0
        self.release_bytes()


def rate_limited(what: str, advice: str, retry_after_s: float) -> ClientError:
    """429 for a key that has, or does, too much: `what`, and what to do about it."""
    return ClientError(
        f"Rate limit reached: this API key {what}; {advice}.",
        status=429,
        code="rate_limit_exceeded",
        retry_after_s=retry_after_s,
    )
