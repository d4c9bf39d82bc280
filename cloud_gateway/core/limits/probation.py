"""Links of one key that end each other, and the probation of workers whose links keep ending. Pure, `now` is passed in.

Both act on each link's end, and pass by themselves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

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
        self._points[worker] = (
            self._now(worker, now) + (FAULT if by_its_fault else END),
            now,
        )

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
