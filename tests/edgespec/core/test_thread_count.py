"""The number of threads: fewer within one pass of being held up, more only after a comparison between requests."""

from __future__ import annotations

import pytest

from edgespec.shared.threads import FASTER, MAX_RETRY_S, MIN_SHARE, QUIET_S, RETRY_S, ThreadCount, thread_counts


@pytest.mark.parametrize(("cores", "counts"), [(1, [1]), (2, [1, 2]), (6, [1, 3, 6]), (16, [1, 2, 4, 8, 16])])
def test_the_numbers_to_choose_from_are_halves(cores: int, counts: list[int]) -> None:
    assert thread_counts(cores) == counts


def made(cores: int = 2) -> ThreadCount:
    return ThreadCount(thread_counts(cores), cores, 0.0)


def test_one_pass_that_was_held_up_leads_to_fewer_threads() -> None:
    threads = made(4)
    assert not threads.passed(0.1, 0.1 * 4 * (MIN_SHARE + 0.01), 1.0)
    assert threads.count == 4
    assert threads.passed(0.1, 0.1 * 4 * (MIN_SHARE - 0.01), 2.0)
    assert threads.count == 2


def test_a_long_pass_that_had_its_cores_is_not_held_up() -> None:
    threads = made()
    assert not threads.passed(90.0, 180.0, 100.0)
    assert threads.count == 2


def test_one_thread_is_never_reduced() -> None:
    threads = ThreadCount([1], 1, 0.0)
    assert not threads.passed(90.0, 0.1, 100.0) and not threads.loaded(8.0, 101.0)
    assert threads.count == 1 and threads.retry(10_000.0) is None


@pytest.mark.parametrize(("others", "count"), [(0.0, 4), (0.4, 4), (0.6, 2), (2.0, 2), (2.6, 1), (9.0, 1)])
def test_threads_take_the_cores_that_others_leave(others: float, count: int) -> None:
    threads = made(4)
    threads.loaded(others, 1.0)
    assert threads.count == count


def test_more_threads_are_tried_once_others_were_quiet_for_a_while() -> None:
    threads = made()
    threads.passed(1.0, 1.0, 0.0)
    now, busy_until = 0.0, 3 * QUIET_S
    while threads.retry(now) is None:
        now += 1.0
        threads.loaded(1.0 if now < busy_until else 0.0, now)
    assert now == pytest.approx(busy_until - 1.0 + QUIET_S, abs=1.5)


@pytest.mark.parametrize(("more_s", "count"), [(FASTER - 0.01, 2), (FASTER + 0.01, 1), (86.0, 1)])
def test_a_try_is_one_pass_and_the_faster_number_stays(more_s: float, count: int) -> None:
    threads = made()
    threads.choose(1, 0.0)
    assert threads.retry(RETRY_S) == 2
    assert threads.count == 1, "a try changes nothing by itself"
    threads.compared(1.0, more_s, RETRY_S)
    assert threads.count == count


def test_tries_become_rarer_up_to_an_hour() -> None:
    threads, tries, now = made(), list[float](), 0.0
    threads.choose(1, now)
    while len(tries) < 9:
        now += 1.0
        threads.loaded(0.0, now)
        if threads.retry(now) is not None:
            tries.append(now)
            threads.compared(1.0, 1.0, now)
    gaps = [later - earlier for earlier, later in zip([0.0, *tries], tries, strict=False)]
    assert gaps == [min(RETRY_S * 2**n, MAX_RETRY_S) for n in range(9)]
