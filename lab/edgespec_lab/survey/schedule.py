"""The schedule of requests: pure, with the time passed in (seconds of a clock that may step forward).

Each endpoint has a grid of slots, one interval apart and shifted against the other endpoints', so that requests are not
simultaneous. A slot is delayed at random by up to `jitter` intervals: periodic events at an endpoint are sampled
uniformly, and the mean rate is unchanged. An endpoint has at most one request at a time. Slots that pass meanwhile, or
during its back-off, are skipped and never made up for: a survey must not turn into a burst.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

BACK_OFF_INTERVALS = 32
"""Maximum back-off of an endpoint that refuses repeatedly without `Retry-After`."""


@dataclass(frozen=True, slots=True)
class Due:
    """A request to make now, and how many slots of its endpoint were skipped since the one before."""

    name: str
    skipped: int


@dataclass(slots=True)
class _Endpoint:
    offset: float
    """Shift of its grid, in intervals."""
    left: float
    """Requests still to make; infinite where only the end of the schedule bounds them."""
    slot: int = 0
    jitter: float = 0.0
    """Shift of its next slot, in intervals."""
    skipped: int = 0
    refusals: int = 0
    busy: bool = False


class Schedule:
    """All endpoints' slots from `start` to before `end`."""

    def __init__(
        self,
        names: Sequence[str],
        start: float,
        end: float,
        interval_s: float,
        jitter: float,
        *,
        count: int = 0,
        done: Mapping[str, int] | None = None,
        seed: int | str = 0,
    ) -> None:
        """`jitter` in intervals, 0 to 1. `count`: requests for each endpoint (0: no bound), less those in `done`."""
        self._start = start
        self._end = end
        self._interval_s = interval_s
        self._jitter = jitter
        self._random = random.Random(seed)
        self._endpoints = {}
        for number, name in enumerate(names):
            left = max(count - (done or {}).get(name, 0), 0) if count else math.inf
            self._endpoints[name] = _Endpoint(number / len(names), left, jitter=self._draw())

    def due(self, now: float) -> list[Due]:
        """The requests to make now; `finished` must follow for each."""
        found = []
        for name, endpoint in self._endpoints.items():
            if endpoint.busy or self._is_over(endpoint) or now < self._at(endpoint) or now >= self._end:
                continue
            late = int((now - self._at(endpoint)) / self._interval_s)  # this machine slept, or its clock was set
            found.append(Due(name, endpoint.skipped + late))
            endpoint.slot += late
            endpoint.skipped = 0
            endpoint.busy = True
            endpoint.left -= 1

        return found

    def finished(self, name: str, now: float, *, refused: bool = False, retry_after_s: float | None = None) -> None:
        """A request ended. After a refusal the back-off is `retry_after_s`, else it grows with each one."""
        endpoint = self._endpoints[name]
        endpoint.busy = False
        endpoint.refusals = endpoint.refusals + 1 if refused else 0
        free_at = now
        if refused and retry_after_s is not None:
            free_at += retry_after_s
        elif refused:
            free_at += min(2**endpoint.refusals, BACK_OFF_INTERVALS) * self._interval_s
        endpoint.slot += 1
        endpoint.jitter = self._draw()
        if self._at(endpoint) < free_at:
            missed = math.ceil((free_at - self._at(endpoint)) / self._interval_s)
            endpoint.slot += missed
            endpoint.skipped += missed

    def wake_at(self, now: float) -> float:
        """When to call `due` again; infinite while it waits for `finished` alone."""
        waiting = [self._at(one) for one in self._endpoints.values() if not one.busy and not self._is_over(one)]
        return max(min(waiting, default=math.inf), now)

    def is_over(self, now: float) -> bool:
        """Whether every request is made and finished."""
        return not any(one.busy or (now < self._end and not self._is_over(one)) for one in self._endpoints.values())

    def _is_over(self, endpoint: _Endpoint) -> bool:
        return endpoint.left <= 0 or self._at(endpoint) >= self._end

    def _at(self, endpoint: _Endpoint) -> float:
        return self._start + (endpoint.offset + endpoint.slot + endpoint.jitter) * self._interval_s

    def _draw(self) -> float:
        return self._jitter * self._random.random()
