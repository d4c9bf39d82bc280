"""The report: percentiles against a slow twin, tails with time-outs, significant differences only, and its plots."""

from __future__ import annotations

import datetime as dt
import statistics
import zoneinfo
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib import image

from tools.survey import report
from tools.survey.analysis import above_minimum, differences, hourly, percentile, series, summary
from tools.survey.sample import Sample

DAY = dt.datetime(2026, 3, 2, tzinfo=dt.UTC).timestamp()


def sample(at_h: float, ttft_ms: float | None = 100.0, endpoint: str = "a", **fields: object) -> Sample:
    given_ = {"connect_ms": 10.0, "region": "", "outcome": "ok", "model": "m", "source": "s", **fields}
    return Sample(v=1, at=DAY + 3600 * at_h, endpoint=endpoint, ttft_ms=ttft_ms, **given_)  # type: ignore[arg-type]


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


def test_each_hour_has_its_own_samples() -> None:
    (one,) = series([sample(h + m / 60, 10.0 * h + m) for h in (0, 5, 23, 29) for m in range(7)])
    p50, counts = hourly(one, "ttft_ms", 50)
    assert (p50[0], p50[23]) == (3.0, 233.0)
    assert p50[5] == statistics.median([*range(50, 57), *range(290, 297)]), "hour 5 of both days"
    assert (counts[0], counts[5], counts[6]) == (7, 14, 0)
    assert np.isnan(p50[6])


def test_a_changed_model_makes_two_labelled_series() -> None:
    samples = [sample(1.0, 10.0), sample(2.0, 90.0, model="bigger"), sample(3.0, 30.0, "b")]
    assert [one.label for one in series(samples)] == ["a bigger", "a m", "b"]
    both = series([*samples, sample(1.0, source="t")])
    assert [one.label for one in both] == ["s → a bigger", "s → a m", "s → b", "t → a m"]


def test_hours_are_those_of_the_zone() -> None:
    (one,) = series([sample(12.0)], zoneinfo.ZoneInfo("Asia/Kolkata"))
    assert one.hour.tolist() == [17]


def test_timeouts_count_in_the_tail_and_other_failures_do_not() -> None:
    quick = [sample(0.01 * n, 100.0) for n in range(18)]
    slow = [sample(0.5, None, outcome="timeout", total_ms=60_000.0) for _ in range(2)]
    failed = [sample(0.6, None, outcome="server-error", total_ms=5.0), sample(0.6, 7.0, outcome="broken", total_ms=9.0)]
    (one,) = series([*quick, *slow, *failed])
    assert percentile(one.values["ttft_ms"], 50) == 100.0
    assert percentile(one.values["ttft_ms"], 95) == 60_000.0
    assert percentile(one.values["total_ms"], 50) is None
    assert (one.ok.sum(), len(one.ok)) == (18, 22)


def test_what_a_busy_machine_may_have_added_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    samples = [sample(0, 100.0, stalled_ms=80.0)] * 3 + [sample(0, 100.0, "b", stalled_ms=0.1)] * 3
    report.show(summary(samples, series(samples), dt.UTC))
    shown = capsys.readouterr().out
    assert "a: this machine was busy, and may have added up to 80 ms (p95) itself." in shown
    assert "b: this machine" not in shown


def test_the_wait_is_what_the_network_does_not_explain() -> None:
    (one,) = series([sample(0, 130.0, connect_ms=30.0), sample(0, 5.0, connect_ms=9.0)])
    assert one.values["wait_ms"].tolist() == [100.0, 0.0]


def test_possible_gains_are_reported_by_hour_within_one_model() -> None:
    samples = [sample(h, ttft, e) for h, a, b in ((1, 100, 60), (2, 50, 90)) for e, ttft in (("a", a), ("b", b))]
    samples += [sample(1, 20.0, "c", model="another")]
    above = above_minimum(series(samples))
    assert above[0, 1:3].tolist() == [40.0, 0.0]
    assert above[1, 1:3].tolist() == [0.0, 40.0]
    assert np.isnan(above[2]).all()
    assert np.isnan(above[:, 3]).all()


def test_a_difference_is_claimed_where_there_is_one_and_not_between_equals() -> None:
    rng = np.random.default_rng(1)
    samples = []
    for name, mean in (("a", 100.0), ("b", 100.0), ("c", 40.0)):
        samples += [sample(h, float(rng.gamma(4, mean / 4)), name) for h in np.linspace(0, 24, 600, endpoint=False)]
    pairs = {(pair["home"], pair["other"]): pair for pair in differences(series(samples))}
    assert len(pairs) == 6
    low, high = pairs["a", "c"]["ttft_p95_ms_interval"]
    assert 0 < low <= pairs["a", "c"]["ttft_p95_ms"] <= high
    low, high = pairs["a", "b"]["ttft_p50_ms_interval"]
    assert low < 0 < high
    assert pairs["a", "c"]["ttft_p50_ms"] == -pairs["c", "a"]["ttft_p50_ms"]
    assert pairs["a", "c"]["hours_other_faster_p95"] > 20
    lines = report.findings(list(pairs.values()))
    assert all(": c is" in line for line in lines)
    assert len(lines) == 2, "one for each endpoint that another surpasses"


def test_a_difference_of_few_hours_has_no_interval_and_no_claim() -> None:
    samples = [sample(h / 10, ttft, e) for h in range(50) for e, ttft in (("a", 100.0), ("b", 1.0))]
    pairs = differences(series(samples))
    assert {pair["ttft_p95_ms_interval"] for pair in pairs} == {None}
    assert report.findings(pairs) == []


def many() -> list[Sample]:
    """Two days from two machines."""
    rng = np.random.default_rng(1)
    return [
        sample(24 * day + hour, float(rng.gamma(3, 40)), endpoint, source=source, region=f"r-{endpoint}")
        for source in ("s1", "s2")
        for day in range(2)
        for hour in rng.uniform(0, 24, 40)
        for endpoint in ("alpha", "beta")
    ]


def test_every_plot_is_drawn_as_png_and_svg(tmp_path: Path) -> None:
    samples = many()
    several = series(samples)
    made = report.draw(several, summary(samples, several, dt.UTC), tmp_path / "x.y", dt.UTC)
    plots = {"heatmap", "regions", "sources", "timeline"}
    assert {path.name for path in made} == {f"x.y-{name}.png" for name in plots}
    for path in made:
        picture = image.imread(path)[::8, ::8, :3]
        assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 50, "it is not blank"
        assert path.with_suffix(".svg").read_text().startswith("<?xml")
    assert len(list(tmp_path.iterdir())) == 2 * len(plots)


@pytest.mark.claim("markup-in-a-trace-is-printed-as-it-stands")
def test_markup_in_samples_is_printed_as_it_stands(capsys: pytest.CaptureFixture[str]) -> None:
    samples = [sample(1.0, endpoint="[/]", source="[red]s[/]")]
    report.show(summary(samples, series(samples), dt.UTC))
    out = capsys.readouterr().out
    assert "[/]" in out and "from [red]s[/]" in out
