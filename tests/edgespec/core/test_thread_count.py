"""The number of threads: fewer within one pass of being held up, more only after a comparison between requests."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

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


class Walk(RuleBasedStateMachine):
    """Any passes, loads and tries: nobody stays with threads that were held up, and nothing rises but by a try."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.cores = 0.0, 8
        self.threads = made(self.cores)
        self.before = self.threads.count
        self.must_be_below = self.cores + 1
        self.busy_at = -QUIET_S

    @rule(seconds=st.floats(0.003, 100.0), share=st.floats(0.0, 1.0), pause=st.floats(0.0, 500.0))
    def passed(self, seconds: float, share: float, pause: float) -> None:
        self.now += pause + seconds
        count = self.before = self.threads.count
        self.threads.passed(seconds, share * count * seconds, self.now)
        self.must_be_below = count if share < MIN_SHARE and count > 1 else count + 1

    @rule(others=st.floats(0.0, 12.0), pause=st.floats(0.0, 500.0))
    def loaded(self, others: float, pause: float) -> None:
        self.now += pause
        self.before = self.threads.count
        self.threads.loaded(others, self.now)
        self.must_be_below = self.before + 1
        assert self.threads.count == 1 or self.threads.count <= self.cores - others + 0.5
        if others > 0.5:
            self.busy_at = self.now

    @rule(fewer=st.floats(0.001, 1.0), more=st.floats(0.001, 100.0), pause=st.floats(0.0, 4000.0))
    def idle(self, fewer: float, more: float, pause: float) -> None:
        self.now += pause
        self.before = self.threads.count
        tried = self.threads.retry(self.now)
        assert self.threads.count == self.before
        if tried is not None:
            assert tried == 2 * self.before
            self.threads.compared(fewer, more, self.now)
            assert (self.threads.count == tried) == (more < FASTER * fewer)
        self.must_be_below = 2 * self.before + 1 if tried else self.before + 1

    @precondition(lambda self: self.threads.count > 1)
    @rule()
    def only_held_up_passes(self) -> None:
        for _ in range(3):  # from 8 threads
            self.threads.passed(1.0, 0.0, self.now)
        assert self.threads.count == 1
        self.before, self.must_be_below = 1, 2

    @invariant()
    def what_was_held_up_has_fewer(self) -> None:
        assert 1 <= self.threads.count < self.must_be_below


TestWalk: Any = Walk.TestCase
