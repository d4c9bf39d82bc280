"""The delays of one source of pairing attempts."""

from __future__ import annotations

import pytest

from edgespec.core.pairing.window import FORGET_S, MAX_DELAY_S, MAX_SOURCES, Delays


@pytest.mark.claim("wrong-nameplates-cost-nothing-but-make-their-source-wait")
def test_the_delay_doubles_with_each_failure_and_is_forgotten() -> None:
    delays = Delays()
    waits = []
    for _ in range(10):
        delays.failed("a", 100.0)
        waits.append(delays.wait_s("a", 100.0))
    assert waits == [0, 1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert (delays.wait_s("a", 159.0), delays.wait_s("a", 160.0)) == (1.0, 0.0)
    assert delays.wait_s("b", 100.0) == 0.0
    delays.failed("a", 100.0 + FORGET_S)
    assert delays.wait_s("a", 100.0 + FORGET_S) == 0.0


def test_any_number_of_failures_is_a_number() -> None:
    delays = Delays()
    for _ in range(5000):
        delays.failed("a", 0.0)
    assert delays.wait_s("a", 0.0) == MAX_DELAY_S


def test_the_memory_of_failures_is_bounded_and_keeps_the_latest() -> None:
    delays = Delays()
    for number in range(3 * MAX_SOURCES):
        delays.failed("attacker", 0.0)
        delays.failed(str(number), 0.0)
    assert len(delays._failures) == MAX_SOURCES
    assert delays.wait_s("attacker", 0.0) == MAX_DELAY_S
