"""Threads of a model on driven clocks: the fastest at the start, fewer when held up, a try between requests."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

import pytest

from edgespec.shared.threads import RETRY_S, OtherLoad, Threads, thread_counts


class Machine:
    """Passes on a clock of their own: others keep some of the cores busy."""

    def __init__(self, cores: int = 4, others: int = 0) -> None:
        self.now, self.cpu_s, self.cores, self.others, self.count = 0.0, 0.0, cores, others, cores
        self.readable = True
        clocks = {"clock": lambda: self.now, "cpu_clock": lambda: self.cpu_s}
        self.threads = Threads(thread_counts(cores), self.use, **clocks, load=self.load, cores=cores)

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
        machine.threads.measure(machine.step)
    assert (machine.threads.count, machine.count) == (chosen, chosen)
    assert f"takes {chosen} of 4 threads" in caplog.text


def test_at_the_start_the_load_of_others_counts_too() -> None:
    machine = Machine(cores=2, others=1)
    machine.threads.measure(lambda: setattr(machine, "now", machine.now + 0.1 / machine.count))  # none is held up
    assert machine.count == 1


def test_no_pass_of_a_request_has_more_threads_than_the_one_before() -> None:
    machine = Machine(cores=2, others=1)
    machine.threads.measure(machine.step)
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
    machine.threads.measure(machine.step)
    machine.others, machine.readable = 0, False
    machine.now += 100 * RETRY_S
    machine.threads.idle(machine.step)
    assert machine.count == 1


def test_a_given_number_is_never_changed() -> None:
    used = list[int]()
    threads = Threads([3], used.append, load=lambda now: 8.0)
    threads.measure(lambda: None)
    for _ in range(3):
        with threads.watched(1):
            time.sleep(0.01)
        threads.idle(lambda: None)
    assert (threads.count, used) == (3, [])


def test_the_load_is_what_others_use_of_these_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 2})
    tick = os.sysconf("SC_CLK_TCK")
    load, own = OtherLoad(tmp_path), tmp_path / "proc/self/stat"
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
