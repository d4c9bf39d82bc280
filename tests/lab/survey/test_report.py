"""The report: percentiles against a slow twin, tails with time-outs, and markup in names."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec_lab.survey import report
from edgespec_lab.survey.analysis import percentile, series, summary
from edgespec_lab.survey.sample import Sample

DAY = dt.datetime(2026, 3, 2, tzinfo=dt.UTC).timestamp()


def sample(at_h: float, ttft_ms: float | None = 100.0, endpoint: str = "a", **fields: object) -> Sample:
    given_ = {"connect_ms": 10.0, "region": "", "outcome": "ok", "model": "m", "source": "s", **fields}
    return Sample(v=1, at=DAY + 3600 * at_h, endpoint=endpoint, ttft_ms=ttft_ms, **given_)


def quantile(values: list[float], q: float) -> float:
    """The slow twin: between the order statistics around (n − 1) q."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * q / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


@given(st.lists(st.floats(0, 1e5), min_size=1, max_size=60), st.sampled_from([50, 90, 95]))
def test_percentiles_equal_those_by_hand(values: list[float], q: int) -> None:
    assert percentile(np.array(values), q) == pytest.approx(quantile(values, q), abs=1e-3)


def test_timeouts_count_in_the_tail_and_other_failures_do_not() -> None:
    quick = [sample(0.01 * n, 100.0) for n in range(18)]
    slow = [sample(0.5, None, outcome="timeout", total_ms=60_000.0) for _ in range(2)]
    failed = [sample(0.6, None, outcome="server-error", total_ms=5.0), sample(0.6, 7.0, outcome="broken", total_ms=9.0)]
    (one,) = series([*quick, *slow, *failed])
    assert percentile(one.values["ttft_ms"], 50) == 100.0
    assert percentile(one.values["ttft_ms"], 95) == 60_000.0
    assert percentile(one.values["total_ms"], 50) is None
    assert (one.ok.sum(), len(one.ok)) == (18, 22)


@pytest.mark.claim("markup-in-a-trace-is-printed-as-it-stands")
def test_markup_in_samples_is_printed_as_it_stands(capsys: pytest.CaptureFixture[str]) -> None:
    samples = [sample(1.0, endpoint="[/]", source="[red]s[/]")]
    report.show(summary(samples, series(samples), dt.UTC))
    out = capsys.readouterr().out
    assert "[/]" in out and "from [red]s[/]" in out
