"""The schedule: the mean rate holds, an endpoint has one request at a time, and missed slots are not made up for."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from edgespec_lab.survey.schedule import BACK_OFF_INTERVALS, Due, Schedule


def walk(schedule: Schedule, took_s: float, end: float) -> dict[str, list[tuple[float, int]]]:
    """Drives a schedule with requests that each take so long; gives (time, skipped slots) by endpoint."""
    asked: dict[str, list[tuple[float, int]]] = {}
    running: list[tuple[float, str]] = []
    now = 0.0
    while not schedule.is_over(now):
        for due in schedule.due(now):
            asked.setdefault(due.name, []).append((now, due.skipped))
            running.append((now + took_s, due.name))
        next_end = min(running, default=(math.inf, ""))
        now = min(schedule.wake_at(now), next_end[0])
        assert now <= end + took_s, "it must come to an end"
        if now == next_end[0]:
            running.remove(next_end)
            schedule.finished(next_end[1], now)
    return asked


@given(jitter=st.floats(0, 1), seed=st.integers(0, 99), count=st.integers(1, 4))
def test_jitter_stays_within_the_interval_and_keeps_the_mean_rate(jitter: float, seed: int, count: int) -> None:
    names = [str(n) for n in range(count)]
    asked = walk(Schedule(names, 0.0, 3600.0, 60.0, jitter, seed=seed), 0.001, 3600.0)
    for number, name in enumerate(names):
        for slot, (at, skipped) in enumerate(asked[name]):
            early = 60 * (slot + number / count)
            assert early - 1e-6 <= at <= early + 60 * jitter + 0.01
            assert skipped == 0
        assert 58 <= len(asked[name]) <= 60


def test_after_the_machine_slept_only_one_request_follows() -> None:
    schedule = Schedule(["a"], 0.0, 6000.0, 60.0, 0.0)
    assert schedule.due(0.0) == [Due("a", 0)]
    schedule.finished("a", 1.0)
    assert schedule.due(1000.0) == [Due("a", 15)]
    schedule.finished("a", 1001.0)
    assert schedule.due(1001.0) == []
    assert schedule.wake_at(1001.0) == 1020.0


def test_retry_after_is_honoured_to_the_second() -> None:
    schedule = Schedule(["a"], 0.0, 6000.0, 60.0, 0.0)
    schedule.due(0.0)
    schedule.finished("a", 1.0, refused=True, retry_after_s=600.0)
    assert schedule.wake_at(1.0) == 660.0
    assert schedule.due(660.0) == [Due("a", 10)]


def test_a_refusing_endpoint_is_asked_more_rarely_until_it_answers() -> None:
    schedule = Schedule(["a"], 0.0, 1e9, 60.0, 0.0)
    now = 0.0
    gaps = []
    for _ in range(8):
        schedule.due(now)
        schedule.finished("a", now, refused=True)
        gaps.append((schedule.wake_at(now) - now) / 60)
        now = schedule.wake_at(now)
    assert gaps == [2, 4, 8, 16, 32, BACK_OFF_INTERVALS, BACK_OFF_INTERVALS, BACK_OFF_INTERVALS]
    schedule.due(now)
    schedule.finished("a", now)
    assert schedule.wake_at(now) == now + 60
