"""The number of the target's threads on a driven clock: what is fastest at the start, fewer when passes stall."""

from __future__ import annotations

import logging

import pytest

from edgespec.shared.threads import MAX_STALLED, RECENT, RETRY_S, Threads


class Machine:
    """Passes whose time depends on the number of threads, on a clock of its own."""

    def __init__(self, limit: int = 4) -> None:
        self.now, self.free, self.used = 0.0, limit, list[int]()
        self.threads = Threads(limit, self.used.append, lambda: self.now)

    def step(self) -> float:
        """A second's work, shared by the threads, or forty seconds where there are more threads than free cores."""
        count = self.used[-1] if self.used else self.threads.limit
        spent = 1.0 / count if count <= self.free else 40.0
        self.now += spent
        return spent

    def run(self, passes: int) -> list[int]:
        for _ in range(passes):
            self.threads.passed(1, self.step())
        return self.used


@pytest.mark.parametrize(("free", "chosen"), [(4, 4), (3, 2), (2, 2), (1, 1)])
def test_at_the_start_it_takes_the_fastest_number_and_says_so(
    free: int, chosen: int, caplog: pytest.LogCaptureFixture
) -> None:
    machine = Machine()
    machine.free = free
    with caplog.at_level(logging.INFO):
        machine.threads.measure(machine.step)
    assert (machine.threads.count, machine.used[-1]) == (chosen, chosen)
    assert f"takes {chosen} of 4 threads" in caplog.text


def test_stalled_passes_lead_to_fewer_threads_and_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine()
    machine.threads.measure(machine.step)
    machine.run(20)
    machine.free = 3
    machine.run(MAX_STALLED)
    assert machine.threads.count == 4, "single slow passes happen"
    machine.run(1)
    assert (machine.threads.count, machine.used[-1]) == (2, 2)
    assert "passes of the target stall (40000 ms): 2 threads" in caplog.text
    machine.run(RECENT * 4)
    assert machine.threads.count == 2, "passes with half the threads take twice as long, which is no stall"


def test_more_threads_are_tried_later_and_more_rarely_each_time() -> None:
    machine = Machine(2)
    machine.run(20)
    machine.free = 1
    machine.run(MAX_STALLED + 1)
    assert machine.threads.count == 1
    tries: list[float] = []
    last = machine.now
    for _ in range(1000):
        before = machine.threads.count
        machine.run(1)
        if machine.threads.count > before:
            tries.append(machine.now - last)
        elif machine.threads.count < before:
            last = machine.now
    assert len(tries) >= 3
    assert tries == pytest.approx([RETRY_S * 2**n for n in range(len(tries))], abs=2)
    machine.free = 2
    machine.run(10_000)
    assert machine.threads.count == 2


def test_a_longer_cache_or_more_rows_are_no_stall() -> None:
    machine = Machine(2)
    for number in range(1000):
        machine.threads.passed(1, 0.010 + number * 0.0001)
        machine.threads.passed(60, 0.5)
    assert machine.threads.count == 2
