"""Where remote drafting wins, in latency, only in capacity, or nowhere: over round trip, acceptance and clients.

Every cell of the map in virtual time, and some over real sockets (`--live`), where engines sleep what accelerators were
measured to take (machine.py names the source of each number). Cells that OUT.part holds are not measured again. Run a
live map with `chrt -r 5` before it: engines that sleep leave the cores to others, and so they wake on time.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from cloud_gateway.core.requests.choices import Choices
from edgespec_lab import verbs
from edgespec_lab.choices import gateway_choices
from edgespec_lab.demo.scene import progress
from tools.bench.map import cells, theory
from tools.bench.map.cells import COMPARED, OURS, Arm, chain, live
from tools.bench.map.machine import LEAVES, LIMIT_ROWS, LIMIT_ROWS_16_BITS, TARGET_MS, Place
from tools.bench.map.report import draw

Figures = dict[str, float]
SCALES = {1: 5.0, 4: 10.0, 64: 40.0}
"""How many times as long everything takes in a live cell, up to so many clients."""
LIVE = [
    *(
        (ratio, acceptance, clients)
        for clients in (1, 4, 16)
        for acceptance in (0.5, 0.75, 0.95)
        for ratio in (0, 2, 8)
    ),
    *((2, 0.75, clients) for clients in (32, 64)),
]
"""Round trip ÷ target pass, acceptance and clients of the cells that are also measured over sockets."""
UNSCALED = [(2, 0.75, clients) for clients in (1, 4, 16)]
CAPACITY = [
    (2, Place(20.0, 0.75, 38), True),
    (4, Place(20.0, 0.75, 31), True),
    (2, Place(20.0, 0.75, 37, leaves=4), False),
    (2, Place(20.0, 0.75, 152, limit=LIMIT_ROWS_16_BITS), False),
]
"""γ, and ours beside co-located speculation with γ whose chains fill a pass; whether that is also measured live."""
POINTS = 7.0
"""Goal for the difference between a live and a simulated ratio."""


@dataclass(frozen=True, slots=True)
class Means:
    """The means by which every cell is measured."""

    choices: Choices
    """All names that the gateway has."""
    kept: verbs.Kept
    """Cells that were measured before."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m tools.bench map`."""
    parser.add_argument("--json", type=Path, default=Path("map.json"), help="output; the figure goes beside it")
    parser.add_argument("--live", action="store_true", help="also the cells over real sockets (half an hour)")


def run(options: argparse.Namespace) -> int:
    """Measures what is missing, writes and prints. Raises RigError, ConfigError."""
    means = Means(gateway_choices(*COMPARED), verbs.Kept(options.json.with_suffix(".part")))
    places = sorted(cells.grid(), key=lambda one: one.clients)
    pairs = [(place, scale_of(place)) for place in map(_place, LIVE)] + [(_place(one), 1.0) for one in UNSCALED]
    with progress(verbs.console()) as bar:

        def made(what: str, measure: Callable[..., Figures], every: Sequence[tuple[Any, ...]]) -> list[dict[str, Any]]:
            return [measure(means, *one) for one in bar.track(every, description=what)]

        rows = made("simulated", _row, [(place,) for place in places])
        ways = [("simulated", "live"), ("simulated",)]
        chosen = [(gamma, place, ways[not (options.live and sockets)]) for gamma, place, sockets in CAPACITY]
        capacity = made("capacity", _capacity, chosen)
        compared = made("live", _compared, pairs if options.live else [])
    rows = [row | {"kind": kind(row, rows)} for row in rows]
    report = {"target_ms": TARGET_MS, "rows": rows, "capacity": capacity, "live": compared, **verdict(rows, compared)}
    verbs.write_json(options.json, report)
    draw(report, options.json)
    print(json.dumps({name: report[name] for name in ("capacity", "cells", "within")}, indent=1))
    return 0


def scale_of(place: Place) -> float:
    """As SCALES has it."""
    return next((scale for clients, scale in SCALES.items() if place.clients <= clients), max(SCALES.values()))


def verdict(rows: list[dict[str, Any]], compared: list[dict[str, Any]]) -> dict[str, Any]:
    """How many cells are what, and how many live ones are near the simulated ones."""
    scaled = [one for one in compared if one["scale"] > 1]
    kinds = [row["kind"] for row in rows]
    return {
        "cells": {one: kinds.count(one) for one in ("latency", "capacity", "nowhere")},
        "below": sum(row["to_chain"] < cells.KEPT for row in rows),
        "within": [sum(abs(one["points"]) <= POINTS for one in scaled), len(scaled)],
    }


def kind(row: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """What remote drafting wins at a cell's round trip and acceptance: `latency` where a single client is faster than
    by any co-located arm, else `capacity` where clients under a full load are, else nothing."""
    there = [one for one in rows if (one["ratio"], one["acceptance"]) == (row["ratio"], row["acceptance"])]
    if any(one["to_best"] >= cells.WINS for one in there if one["clients"] == 1):
        return "latency"
    if any(one["to_best"] >= cells.WINS for one in there):
        return "capacity"
    return "nowhere"


def _place(of: tuple[float, float, int]) -> Place:
    ratio, acceptance, clients = of
    return Place(ratio * TARGET_MS, acceptance, clients)


def _row(means: Means, place: Place) -> dict[str, Any]:
    measured = partial(cells.simulated, choices=means.choices)
    key = ("base", place.acceptance, place.clients, 0)
    base = means.kept.get(key, lambda: cells.without_worker(place, measured))
    return cells.cell(place, base, _simulated(means, OURS, place))


def _simulated(means: Means, arm: Arm, place: Place) -> Figures:
    rtt_ms = place.rtt_ms if arm.workers else 0
    key = (arm.name, place.acceptance, place.clients, rtt_ms, *_unusual(place))
    found: Figures = means.kept.get(key, lambda: cells.simulated(arm, place, means.choices))
    return found


def _unusual(place: Place) -> tuple[int, ...]:
    """What a key says of a place that is not on the map."""
    if (place.limit, place.leaves) == (LIMIT_ROWS, LEAVES):
        return ()
    return (place.limit, place.leaves)


def _live(means: Means, arm: Arm, place: Place, scale: float) -> Figures:
    rtt_ms = place.rtt_ms if arm.workers else 0
    key = ("live", arm.name, place.acceptance, place.clients, rtt_ms, scale)
    found: Figures = means.kept.get(key, lambda: live(arm, place, scale))
    return found


def _compared(means: Means, place: Place, scale: float) -> dict[str, Any]:
    """Ours ÷ the best chain, live and simulated."""
    gamma, _ = theory.best(place)
    line = chain(gamma)
    ours = _live(means, OURS, place, scale)
    base = _live(means, line, place, scale)
    simulated = _simulated(means, OURS, place)["rate"] / _simulated(means, line, place)["rate"]
    ratio = ours["rate"] / base["rate"]
    return {
        "ratio": place.rtt_ms / TARGET_MS, "acceptance": place.acceptance, "clients": place.clients, "scale": scale,
        "gamma": gamma, "live": round(ratio, 3), "simulated": round(simulated, 3),
        "points": round((ratio - simulated) * 100, 1), "ours": _rounded(ours), "chain": _rounded(base),
    }  # fmt: skip


def _capacity(means: Means, gamma: int, ours: Place, ways: Sequence[str]) -> dict[str, Any]:
    """Ours beside co-located speculation with γ at saturation: clients and rates of each."""
    full = theory.saturated(ours, gamma)
    law = theory.capacity(ours, gamma)
    scale = scale_of(ours)
    base = replace(ours, clients=full)
    found: dict[str, Any] = {
        "gamma": gamma, "law": round(law, 3), "clients": [full, ours.clients], "limit": ours.limit,
        "ratio": round(ours.clients / full, 3), "workers": ours.workers,
    }  # fmt: skip
    for name in ways:
        measure = partial(_live, means, scale=scale) if name == "live" else partial(_simulated, means)
        rates = measure(chain(gamma), base)["rate"], measure(OURS, ours)["rate"]
        found[name] = {"rates": [round(rate, 2) for rate in rates], "same": round(rates[1] / rates[0], 3)}

    return found


def _rounded(figures: Figures) -> Figures:
    return {name: round(value, 3) for name, value in figures.items()}
