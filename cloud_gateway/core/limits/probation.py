"""Which workers get no requests for a while, because their links keep ending; pure, `now` is passed in.

When a link ends, its requests move to other workers or to the local draft, which costs each of them a stall. One end
is normal; a worker whose links end again and again, or end by its own fault, must not cause one stall after another.
"""

from __future__ import annotations

END, FAULT = 0.5, 2.0
"""Points of a link's end, and of one by the worker's own fault."""
FORGIVEN_S = 30.0
"""Time in which a point is forgiven, so that a worker which restarts every 15 s stays in good standing."""
LIMIT = 1.5
"""Points from which on a new link begins with a probation: four quick ends, or one by the worker's own fault."""
FIRST_S, MAX_S = 10.0, 600.0
"""Shortest and longest probation; each further point doubles it."""


class Probation:
    """Points of each worker, by its id. Only paired workers have a link to lose, so the table is bounded by those."""

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
        return min(FIRST_S * 2.0 ** min(points - LIMIT, 10.0), MAX_S) if points >= LIMIT else 0.0

    def _now(self, worker: str, now: float) -> float:
        points, since = self._points.get(worker, (0.0, now))
        return max(0.0, points - (now - since) / FORGIVEN_S)
