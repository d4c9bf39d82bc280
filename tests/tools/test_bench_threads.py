"""The figures of `python -m tools.bench threads` from lines of a log."""

from __future__ import annotations

import logging

import pytest

from edgespec.shared.threads import Threads
from tools.bench.threads import MIN_PASSES, Pass, compared, passes


def test_passes_are_read_from_the_lines_that_threads_logs(caplog: pytest.LogCaptureFixture) -> None:
    now = iter([0.0, 1.0, 1.25])
    threads = Threads([2], lambda count: None, "draft model", clock=lambda: next(now))
    with caplog.at_level(logging.DEBUG, "edgespec.threads"), threads.watched(7):
        pass
    assert passes(caplog.text) == [Pass("draft model", 7, 250.0, 2)]


def test_a_pass_is_compared_with_one_thread_over_the_same_rows() -> None:
    one = [Pass("target", rows, 10.0 * rows, 1) for rows in (1, 5) for _ in range(MIN_PASSES)]
    chosen = [Pass("target", 1, 29.0, 2), Pass("target", 5, 151.0, 1), Pass("target", 1, 31.0, 2)]
    unknown = Pass("target", 3, 9999.0, 2)
    (found,) = compared({"gateway": [*chosen, unknown]}, {"gateway": one}).values()
    assert (found["passes"], found["compared"], found["above"]) == (4, 3, 2)
    assert found["above, with more than one thread"] == 1
    assert found["ratio p50, p99, max"] == [3.02, 3.1, 3.1]
