"""Analysis of samples: percentiles by endpoint and hour of the day.

A *series* is one endpoint measured from one machine. Percentiles interpolate linearly between order statistics. A
request that timed out before its first token counts with its waiting time, since leaving out the slowest would bias the
tail; other failures have no time and are reported as a rate.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec_lab.survey.sample import Sample

Floats = NDArray[np.float64]
HOURS = 24
ARROW = " → "
"""Between machine and endpoint in labels, where there are several machines."""
FEW = {"p50": 5, "p95": 20}
"""Minimum samples for a meaningful percentile: with 19, the p95 lies beyond all but the slowest."""


@dataclass(frozen=True, slots=True)
class Series:
    """One endpoint from one machine; arrays are aligned, one entry a sample, in order of time; NaN: not measured."""

    source: str
    endpoint: str
    region: str
    model: str
    label: str
    at: Floats
    hour: NDArray[np.int64]
    """Of the day, 0 to 23, in the report's time zone."""
    ok: NDArray[np.bool_]
    values: Mapping[str, Floats]
    """By quantity. `wait_ms` is the time to the first token minus the TCP handshake: the part not due to distance."""
    outcomes: Mapping[str, int]
    skipped: int

    @property
    def target(self) -> str:
        """The label without the machine."""
        return self.label.removeprefix(f"{self.source}{ARROW}")

    def of_hour(self, quantity: str, hour: int) -> Floats:
        """The measured values of one hour of the day."""
        return measured(self.values[quantity][self.hour == hour])


def series(samples: Sequence[Sample], zone: dt.tzinfo = dt.UTC) -> list[Series]:
    """The samples by endpoint and machine, ordered by machine, region, endpoint and model."""
    groups: dict[tuple[str, str, str, str], list[Sample]] = {}
    for sample in sorted(samples, key=lambda one: one.at):
        groups.setdefault((sample.source, sample.region, sample.endpoint, sample.model), []).append(sample)
    models = Counter(key[:2] for key in {key[1:] for key in groups})
    many = len({key[0] for key in groups}) > 1
    found = []
    for key in sorted(groups):
        source, region, endpoint, model = key
        label = f"{endpoint} ({region})" if region else endpoint
        label += f" {model}" if models[region, endpoint] > 1 else ""
        label = f"{source}{ARROW}{label}" if many else label
        found.append(_series(groups[key], label, zone))

    return found


def _series(samples: Sequence[Sample], label: str, zone: dt.tzinfo) -> Series:
    first = samples[0]
    ttft = np.array([_ttft(sample) for sample in samples])
    values = {name: _column(samples, name) for name in ("connect_ms", "tls_ms", "dns_ms", "stalled_ms")}
    values |= {name: _column(samples, name, only_ok=True) for name in ("total_ms", "tokens_per_s")}
    return Series(
        source=first.source,
        endpoint=first.endpoint,
        region=first.region,
        model=first.model,
        label=label,
        at=np.array([sample.at for sample in samples]),
        hour=np.array([dt.datetime.fromtimestamp(sample.at, zone).hour for sample in samples]),
        ok=np.array([sample.outcome == "ok" for sample in samples]),
        values={**values, "ttft_ms": ttft, "wait_ms": np.maximum(ttft - values["connect_ms"], 0.0)},
        outcomes=dict(Counter(sample.outcome for sample in samples).most_common()),
        skipped=sum(sample.skipped for sample in samples),
    )


def _ttft(sample: Sample) -> float:
    if sample.outcome == "timeout":
        waited = sample.ttft_ms if sample.ttft_ms is not None else sample.total_ms
        if waited is None:
            return np.nan
        return waited
    if sample.outcome == "ok" and sample.ttft_ms is not None:
        return sample.ttft_ms

    return np.nan


def _column(samples: Sequence[Sample], name: str, only_ok: bool = False) -> Floats:
    values = (None if only_ok and sample.outcome != "ok" else getattr(sample, name) for sample in samples)
    return np.array([np.nan if value is None else value for value in values])


def measured(values: Floats) -> Floats:
    """The values without NaN."""
    return values[~np.isnan(values)]


def percentiles(groups: Iterable[Floats], q: float) -> Floats:
    """The q-th percentile (0 to 100) of each group of values; NaN where nothing was measured."""
    return np.array([np.percentile(there, q) if there.size else np.nan for there in map(measured, groups)])


def percentile(values: Floats, q: float) -> float | None:
    """The q-th percentile (0 to 100); None without values."""
    (found,) = percentiles([values], q)
    if np.isnan(found):
        return None
    return round(float(found), 3)


def hourly(one: Series, quantity: str, q: float) -> tuple[Floats, NDArray[np.int64]]:
    """A percentile for each hour of the day [24], NaN where there is nothing, and the numbers of values [24]."""
    groups = [one.of_hour(quantity, hour) for hour in range(HOURS)]
    return percentiles(groups, q), np.array([group.size for group in groups])


def summary(samples: Sequence[Sample], several: Sequence[Series], zone: dt.tzinfo) -> dict[str, Any]:
    """All figures of a report as one JSON object (docs/survey.md explains each)."""
    return {
        "samples": len(samples),
        "from": _moment(min(sample.at for sample in samples), zone),
        "to": _moment(max(sample.at for sample in samples), zone),
        "timezone": str(zone),
        "few_samples": FEW,
        "endpoints": [_endpoint(one) for one in several],
        "hours": [row for one in several for row in _hours(one)],
    }


def _endpoint(one: Series) -> dict[str, Any]:
    failures = int((~one.ok).sum())
    quantities = {
        name: {"n": int(measured(values).size), "p50": percentile(values, 50), "p95": percentile(values, 95)}
        for name, values in one.values.items()
    }
    return {
        "label": one.label,
        "target": one.target,
        "source": one.source,
        "endpoint": one.endpoint,
        "region": one.region,
        "model": one.model,
        "samples": one.at.size,
        "failures": failures,
        "failure_rate": round(failures / one.at.size, 4),
        "outcomes": one.outcomes,
        "skipped": one.skipped,
        **quantities,
    }


def _hours(one: Series) -> list[dict[str, Any]]:
    rows = []
    for hour in range(HOURS):
        here = one.hour == hour
        if not here.any():
            continue
        row: dict[str, Any] = {"label": one.label, "hour": hour, "samples": int(here.sum())}
        row["failures"] = int((~one.ok[here]).sum())
        for quantity in ("ttft_ms", "connect_ms", "wait_ms"):
            values = one.of_hour(quantity, hour)
            row[quantity] = {"n": values.size, "p50": percentile(values, 50), "p95": percentile(values, 95)}
        rows.append(row)

    return rows


def _moment(at: float, zone: dt.tzinfo) -> str:
    return dt.datetime.fromtimestamp(at, zone).isoformat(timespec="seconds")
