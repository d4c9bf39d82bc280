"""Threads of a model: the fastest at the start, fewer when held up, more only after a comparison between requests."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from edgespec.parts.thread_choice import FASTEST
from edgespec.parts.thread_choice.chosen import ChosenThreads, OtherLoad
from edgespec.parts.thread_choice.count import (
    FASTER,
    MAX_RETRY_S,
    MIN_SHARE,
    QUIET_S,
    RETRY_S,
    ThreadCount,
    thread_counts,
)


class Machine:
    """Passes on a clock of their own: others keep some of the cores busy."""

    def __init__(self, cores: int = 4, others: int = 0) -> None:
        self.now = 0.0
        self.cpu_s = 0.0
        self.cores = cores
        self.others = others
        self.count = cores
        self.readable = True
        clocks = {"clock": lambda: self.now, "cpu_clock": lambda: self.cpu_s}
        self.threads = ChosenThreads(thread_counts(cores), self.use, **clocks, load=self.load, cores=cores)

    def use(self, count: int) -> None:
        self.count = count

    def load(self, now: float) -> float | None:
        return float(self.others) if self.readable else None

    def step(self) -> None:
        """A second's work, shared by the threads; forty times as long if two of them share a core with others."""
        held_up = self.count > max(self.cores - self.others, 1)
        seconds = (40.0 if held_up else 1.0) / self.count
        self.now += seconds
        self.cpu_s += seconds * self.count * (0.5 if held_up else 1.0)

    def run(self) -> None:
        with self.threads.watched(1):
            self.step()


@pytest.mark.parametrize(("others", "chosen"), [(0, 4), (1, 2), (2, 2), (3, 1)])
def test_at_the_start_it_takes_the_fastest_number_and_says_so(
    others: int, chosen: int, caplog: pytest.LogCaptureFixture
) -> None:
    machine = Machine(others=others)
    with caplog.at_level(logging.INFO):
        machine.threads.begin(machine.step)
    assert (machine.threads.count, machine.count) == (chosen, chosen)
    assert f"takes {chosen} of 4 threads" in caplog.text


def test_at_the_start_the_load_of_others_counts_too() -> None:
    machine = Machine(cores=2, others=1)
    machine.threads.begin(lambda: setattr(machine, "now", machine.now + 0.1 / machine.count))  # none is held up
    assert machine.count == 1


def test_no_pass_of_a_request_has_more_threads_than_the_one_before() -> None:
    machine = Machine(cores=2, others=1)
    machine.threads.begin(machine.step)
    machine.others = 0
    counts = []
    for _ in range(1000):
        machine.run()
        counts.append(machine.count)
    assert set(counts) == {1}
    machine.threads.idle(machine.step)
    assert machine.count == 2, "one comparison between requests"


def test_without_a_reading_of_the_load_more_threads_are_not_tried() -> None:
    machine = Machine(cores=2, others=1)
    machine.threads.begin(machine.step)
    machine.others = 0
    machine.readable = False
    machine.now += 100 * RETRY_S
    machine.threads.idle(machine.step)
    assert machine.count == 1


def test_one_number_is_set_once_and_never_changed() -> None:
    used = list[int]()
    threads = FASTEST.use([3], used.append, "target")
    threads.begin(lambda: None)
    for _ in range(3):
        with threads.watched(1):
            time.sleep(0.01)
        threads.idle(lambda: None)
    assert used == [3]


def test_the_load_is_what_others_use_of_these_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 2})
    tick = os.sysconf("SC_CLK_TCK")
    load = OtherLoad(tmp_path)
    own = tmp_path / "proc/self/stat"
    own.parent.mkdir(parents=True)
    for second, (user, niced, elsewhere, own_s, expected) in enumerate(
        [(0, 0, 0, 0, 0.0), (2, 0, 0, 2, 0.0), (4, 0, 0, 3, 1.0), (4, 8, 9, 3, 0.0)]
    ):
        cores = [f"cpu0 {user * tick} 0 0 5 5 0 0 0", f"cpu1 {elsewhere * tick} 0 0 5 5 0 0 0"]
        lines = ["cpu 7 7 7 7 7 7 7 7", *cores, f"cpu2 0 {niced * tick} 0 5 5 0 0 0", "intr 1 2"]
        (tmp_path / "proc/stat").write_text("\n".join(lines))
        own.write_text(f"1 (name) R {' 0' * 10} {own_s * tick} 0 0 0 20 0 0")
        assert load(float(second)) == expected
    own.unlink()
    assert load(9.0) is None


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
    now = 0.0
    busy_until = 3 * QUIET_S
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
    threads = made()
    tries = list[float]()
    now = 0.0
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
        self.now = 0.0
        self.cores = 8
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
        self.before = 1
        self.must_be_below = 2

    @invariant()
    def what_was_held_up_has_fewer(self) -> None:
        assert 1 <= self.threads.count < self.must_be_below


TestWalk: Any = Walk.TestCase
TestWalk.settings = settings(max_examples=30, stateful_step_count=30)
