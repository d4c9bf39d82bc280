"""`python -m tools.sim tuning`: each number of policy `adaptive`'s `Tuning` half as large and half as large again."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from cloud_gateway.core.policies.adaptive import Adaptive
from cloud_gateway.core.policies.settings import PolicySettings
from cloud_gateway.core.policies.tuning import TUNING, Tuning
from edgespec.lab.link_model import LinkModel
from tools.sim import sweep
from tools.sim.config import load
from tools.sim.experiment import Progress
from tools.sim.field import Condition, seconds

EVERY = 30
"""Of the sweep's places one in so many is run, from the fifth on."""


def changed() -> Iterator[tuple[str, Tuning]]:
    """Each number's two changes; probabilities stay below one."""
    for field in fields(Tuning):
        value = getattr(TUNING, field.name)
        for factor in (0.5, 1.5):
            other = min(value * factor, 0.99) if value < 1 else type(value)(value * factor)
            yield f"{field.name} = {other:g}", replace(TUNING, **{field.name: other})


def places() -> Sequence[sweep.Place]:
    """Those at which they are compared."""
    return [*sweep.places(load("sweep"))][4::EVERY]


def took(tuning: Tuning, place: sweep.Place, runs: int) -> float:
    """Seconds of the completions at a place."""
    make = partial(Adaptive, PolicySettings(prefer="balanced"), tuning)
    net = LinkModel(place.rtt_ms / 1000, place.jitter_ms / 1000, place.loss)
    return sum(one.seconds for one in seconds(make, sweep.WORKER, Condition("", net), place, runs))


def tuning(out: Path, processes: int, progress: Progress, runs: int | None = None) -> dict[str, Any]:
    """A row for each change: the median and the extremes over the places, relative to the numbers as they are."""
    every, rows = [*changed()], list[dict[str, Any]]()
    own = [took(TUNING, place, runs or 2) for place in places()]
    for number, (name, other) in enumerate(every, 1):
        ratios = [took(other, place, runs or 2) / before for place, before in zip(places(), own, strict=True)]
        middle, least, most = statistics.median(ratios), min(ratios), max(ratios)
        rows.append({"change": name, "median": round(middle, 4), "least": round(least, 3), "most": round(most, 3)})
        progress(number, len(every))
    lines = [f"{row['change']:24} {row['median']:.4f} ({row['least']:.3f} to {row['most']:.3f})" for row in rows]
    return {"figure": "tuning", "rows": rows, "text": "\n".join(lines)}
