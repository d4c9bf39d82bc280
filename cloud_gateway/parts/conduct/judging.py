"""Which workers are to be quarantined: worthless drafts, or protocol faults again and again. Pure.

A quarantine lasts until the operator ends it, so nobody but the worker may cause it. API clients choose the prompts,
and a prompt can make any draft wrong, or find a bug in a worker. Therefore everything that a prompt can influence is
counted by API key, and several keys must agree: one key, however many requests it sends, quarantines nobody.
The core's probation acts sooner, on each link's end, and passes by itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import TypeVar

from cloud_gateway.links.judge import Judge

WINDOW_S = 3600.0
"""Time for which evidence counts."""
MAX_REQUESTS = 16
MAX_KEYS = 64
"""Latest requests of a key, and latest keys of a worker, that are kept."""
MAX_CLAIM = 8.0
"""What one request may count for: a longer one is scaled to it, so that no single request decides."""
MIN_CLAIM = 24.0
"""Acceptances that a worker must have claimed to a key before that key judges it: at least three requests."""
WORTH = 0.2
"""Share of the claimed acceptances below which drafts are worthless. With a claim of 24 a worker whose claims are true
falls below it once in a million (Poisson: at most 4 of 24), and one that claims twice what is true once in 130."""
MAX_FAULTS = 6
"""Protocol faults within the window. Of those in trees each key's requests explain at most an equal share."""
HARMLESS = frozenset({"fault", "slow"})
"""Ends by the worker's fault that say too little for a quarantine: a fault of the gateway's own code over its data, and
a machine that was suspended."""


T = TypeVar("T")
Books = dict[Hashable, deque[T]]
"""Notes about one worker, by API key; the key of the latest note is the last one."""


class Conduct(Judge):
    """The record of each worker, by its id. Only paired workers have a link, so the table is bounded by those."""

    def __init__(self, keys: int = 3) -> None:
        """`keys`: API keys that must agree; 0 never quarantines."""
        self._keys = keys
        self._drafts: dict[str, Books[tuple[float, float, float]]] = {}
        self._faults: dict[str, Books[float]] = {}

    def drafted(self, worker: str, key: str, claimed: float, accepted: int, now: float) -> str | None:
        if claimed <= 0 or not self._keys:
            return None

        books = self._drafts.setdefault(worker, {})
        scale = min(1.0, MAX_CLAIM / claimed)
        _enter(books, key, (now, claimed * scale, accepted * scale))

        sums = [_sum(book, now - WINDOW_S) for book in books.values()]
        judged = [(claims, hits) for claims, hits in sums if claims >= MIN_CLAIM]
        bad = [(claims, hits) for claims, hits in judged if hits < WORTH * claims]
        if len(bad) < self._keys or 2 * len(bad) <= len(judged):
            return None

        won = sum(hits for _, hits in bad) / sum(claims for claims, _ in bad)
        return f"{len(bad)} of {len(judged)} API keys accepted {won:.0%} of what its probabilities claim"

    def fault(self, worker: str, reason: str, request_of: Hashable, now: float) -> str | None:
        if not self._keys or reason in HARMLESS:
            return None

        books = self._faults.setdefault(worker, {})
        of_one_key = max(1, MAX_FAULTS // self._keys)
        _enter(books, request_of, now)
        recent = {whose: sum(then > now - WINDOW_S for then in book) for whose, book in books.items()}
        count = sum(n if whose is None else min(n, of_one_key) for whose, n in recent.items())
        if count >= MAX_FAULTS:
            return f"{count} protocol faults within an hour, the last one {reason}"
        return None

    def renamed(self, worker: str, to: str) -> None:
        self._drafts[to] = self._drafts.pop(worker, {})
        self._faults[to] = self._faults.pop(worker, {})

    def forget(self, worker: str) -> None:
        self._drafts.pop(worker, None)
        self._faults.pop(worker, None)


def _enter(books: Books[T], key: Hashable, note: T) -> None:
    book = books.pop(key, None) or deque(maxlen=MAX_REQUESTS)
    book.append(note)
    books[key] = book
    if len(books) > MAX_KEYS:
        del books[next(iter(books))]


def _sum(book: deque[tuple[float, float, float]], since: float) -> tuple[float, float]:
    recent = [(claimed, accepted) for then, claimed, accepted in book if then > since]
    return sum(claimed for claimed, _ in recent), sum(accepted for _, accepted in recent)
