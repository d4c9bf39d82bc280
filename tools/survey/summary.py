"""A report as one JSON object."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

from tools.survey.analysis import FEW, HOURS, Series, measured, percentile
from tools.survey.differences import differences
from tools.survey.sample import Sample


def summary(samples: Sequence[Sample], several: Sequence[Series], zone: dt.tzinfo) -> dict[str, Any]:
    """All figures of a report as one JSON object (docs/survey.md explains each)."""
    return {
        "samples": len(samples),
        "from": _moment(min(sample.at for sample in samples), zone),
        "to": _moment(max(sample.at for sample in samples), zone),
        "timezone": str(zone),
        "clock_scale": max(sample.clock_scale for sample in samples),
        "few_samples": FEW,
        "endpoints": [_endpoint(one) for one in several],
        "hours": [row for one in several for row in _hours(one)],
        "differences": differences(several),
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
