"""Which request of a worker gets the model next: the one that has had it for the shortest time."""

from __future__ import annotations

from collections.abc import Iterable

MAX_CREDIT_S = 0.1
"""Model time that a request which had nothing to draft may catch up on, so that it does not keep the others waiting."""


class Turns:
    """Seconds of model time by request. A long prompt is read in batches and so costs the others half the model."""

    def __init__(self) -> None:
        self._used: dict[int, float] = {}
        self._latest = 0.0
        """Time used by the request that had the latest turn, when it began."""

    def order(self, requests: Iterable[int]) -> list[int]:
        """The requests, the next one first; among equals in the order given."""
        return sorted(requests, key=self._standing)

    def used(self, request: int, seconds: float) -> None:
        """A request has had the model for so long."""
        self._latest = self._standing(request)
        self._used[request] = self._latest + seconds

    def drop(self, request: int) -> None:
        """A request was closed."""
        self._used.pop(request, None)

    def _standing(self, request: int) -> float:
        return max(self._used.get(request, self._latest), self._latest - MAX_CREDIT_S)
