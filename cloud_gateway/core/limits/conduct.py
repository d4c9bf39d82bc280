"""Which workers are to be quarantined: worthless drafts, or protocol faults again and again; which keys several
processes have; and probation. Pure, `now` is passed in.

A quarantine lasts until the operator ends it, so nobody but the worker may cause it. API clients choose the prompts,
and a prompt can make any draft wrong, or find a bug in a worker. Therefore everything that a prompt can influence is
counted by API key, and several keys must agree: one key, however many requests it sends, quarantines nobody.
Probation acts sooner, on each link's end, and passes by itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from typing import TypeVar

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
"""What is noted of one worker, by API key; the key of the latest note is the last one."""


class Conduct:
    """What each worker did, by its id. Only paired workers have a link, so the table is bounded by those."""

    def __init__(self, keys: int = 3) -> None:
        """`keys`: API keys that must agree; 0 never quarantines."""
        self._keys = keys
        self._drafts: dict[str, Books[tuple[float, float, float]]] = {}
        self._faults: dict[str, Books[float]] = {}

    def drafted(self, worker: str, key: str, claimed: float, accepted: int, now: float) -> str | None:
        """One request of an API key has ended; returns why the worker is to be quarantined, or None.

        `claimed`: sum of the probabilities that the worker stated for its verified candidates, where the target chose;
        `accepted`: how many of these it chose.
        """
        if claimed <= 0 or not self._keys:
            return None

        books = self._drafts.setdefault(worker, {})
        share = min(1.0, MAX_CLAIM / claimed)
        _enter(books, key, (now, claimed * share, accepted * share))
        sums = [_sum(book, now - WINDOW_S) for book in books.values()]
        judged = [(claims, hits) for claims, hits in sums if claims >= MIN_CLAIM]
        bad = [(claims, hits) for claims, hits in judged if hits < WORTH * claims]
        if len(bad) < self._keys or 2 * len(bad) <= len(judged):
            return None

        won = sum(hits for _, hits in bad) / sum(claims for claims, _ in bad)
        return f"{len(bad)} of {len(judged)} API keys accepted {won:.0%} of what its probabilities claim"

    def fault(self, worker: str, reason: str, request_of: Hashable, now: float) -> str | None:
        """Its link ended by its own fault; returns why it is to be quarantined, or None.

        `request_of`: whose request a faulty tree was for, anything that differs between API keys; None for a fault that
        no prompt can cause.
        """
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
        """It has another id from now on, and keeps its record."""
        self._drafts[to] = self._drafts.pop(worker, {})
        self._faults[to] = self._faults.pop(worker, {})

    def forget(self, worker: str) -> None:
        """Its record starts afresh: it was quarantined, or the operator ended that."""
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


CONTEST_S = 60.0
"""Time within which links of one key that end each other are counted."""
MIN_TAKEOVERS = 3
"""From so many within that time several processes have the key. One takeover is normal: a machine that lost its network
links again before its former link is given up."""
MAX_TAKEOVERS = 16
"""Latest ones of a worker that are kept."""
CONTEST_PROBATION_S = 15.0
"""For a link while its key is contested. It passes soon after the other processes have stopped, and a link that is not
taken over lasts as long: workers dial again within this time after a takeover (`redial.CONTESTED_S`)."""


class Contest:
    """Links of one key that were ended by newer ones of the same key, by the worker's id.

    The same key on several machines is the fault of the person who copied a state folder, not of the worker. So it
    gets no points of `Probation`, which would keep it out for minutes after the copies have stopped.
    """

    def __init__(self) -> None:
        self._takeovers: dict[str, deque[tuple[float, str]]] = {}

    def taken_over(self, worker: str, address: str, now: float) -> None:
        """A link of this worker was ended by a newer one, which came from this address."""
        self._takeovers.setdefault(worker, deque(maxlen=MAX_TAKEOVERS)).append((now, address))

    def renamed(self, worker: str, to: str) -> None:
        """It has another id from now on; links of the old key no longer count."""
        self._takeovers.pop(worker, None)

    def addresses(self, worker: str, now: float) -> Sequence[str]:
        """Addresses from which several processes link with this worker's key at present; empty if there is only one."""
        recent = [address for then, address in self._takeovers.get(worker, ()) if then > now - CONTEST_S]
        if len(recent) >= MIN_TAKEOVERS:
            return list(dict.fromkeys(recent))
        return []

    def contested(self, now: float) -> list[str]:
        """Ids of the workers whose keys several processes have."""
        return [worker for worker in self._takeovers if self.addresses(worker, now)]


END = 0.5
FAULT = 2.0
"""Points of a link's end, and of one by the worker's own fault."""
FORGIVEN_S = 30.0
"""Time in which a point is forgiven, so that a worker which restarts every 15 s stays in good standing."""
LIMIT = 1.5
"""Points from which on a new link begins with a probation: four quick ends, or one by the worker's own fault."""
FIRST_S = 10.0
MAX_S = 600.0
"""Shortest and longest probation; each further point doubles it."""


class Probation:
    """Points of each worker, by its id. Only paired workers have a link to lose, so the table is bounded by those.

    When a link ends, its requests move to other workers or to the local draft, which costs each of them a stall. One
    end is normal; a worker whose links end again and again, or end by its own fault, must not cause one stall after
    another.
    """

    def __init__(self) -> None:
        self._points: dict[str, tuple[float, float]] = {}

    def ended(self, worker: str, now: float, *, by_its_fault: bool) -> None:
        self._points[worker] = (self._now(worker, now) + (FAULT if by_its_fault else END), now)

    def renamed(self, worker: str, to: str) -> None:
        """It has another id from now on, and keeps its points."""
        if worker in self._points:
            self._points[to] = self._points.pop(worker)

    def length_s(self, worker: str, now: float) -> float:
        """Seconds for which a link that begins now gets no requests; 0 for a worker in good standing."""
        points = self._now(worker, now)
        if points >= LIMIT:
            length_s: float = FIRST_S * 2.0 ** min(points - LIMIT, 10.0)
            return min(length_s, MAX_S)
        return 0.0

    def _now(self, worker: str, now: float) -> float:
        points, since = self._points.get(worker, (0.0, now))
        return max(0.0, points - (now - since) / FORGIVEN_S)
