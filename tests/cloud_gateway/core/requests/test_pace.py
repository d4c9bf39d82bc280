"""The time of completions with a worker, beside the estimate for the gateway alone."""

from __future__ import annotations

import pytest

from cloud_gateway.core.requests.pace import MIN_TOKENS, REMEMBERED, PaceAlone, Span


def test_the_estimate_is_the_reference_until_enough_was_measured() -> None:
    pace = PaceAlone()
    worker = Span(10, 0.8, 1.0)
    pace.add(Span(MIN_TOKENS - 1, 30.0, 20.0))
    assert pace.alone_s(worker) == 1.0
    pace.add(Span(1, 0.0, 0.0))
    assert pace.alone_s(worker) == pytest.approx(1.5)


def test_the_measured_ratio_follows_the_latest_tokens() -> None:
    pace = PaceAlone()
    pace.add(Span(4000, 400.0, 400.0))
    for _ in range(200):
        pace.add(Span(100, 20.0, 10.0))
    assert pace.tokens <= REMEMBERED and pace.ratio == pytest.approx(2.0, rel=0.01)
