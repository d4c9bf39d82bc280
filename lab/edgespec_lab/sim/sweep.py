"""`python -m edgespec_lab.sim sweep`: `adaptive` over the ratio of steps, curves, match rates, round trips and faults.

Each answer is held against the best of plain decoding and co-located k = 2 on the same tokens, and beside it stands the
best `wanspec` (any phi and k of the configuration, the same worker and local draft). All arms pay for what their local
draft reads. Finished places are kept in OUT with the suffix `.part`, so that an interrupted sweep goes on.
"""

from __future__ import annotations

import json
import statistics
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from cloud_gateway.core.policies.registry import Policies
from edgespec_lab import verbs
from edgespec_lab.link_model import LinkModel
from edgespec_lab.sim import plots
from edgespec_lab.sim.config import load
from edgespec_lab.sim.experiment import Arm, Cell, Row, Simulator, WorkerSpec, simulate, spread
from edgespec_lab.sim.tokens import Iid
from edgespec_lab.sim.world import Curve, Result, Steps

MEDIAN = 1.00
HIGH = 1.05
"""Goals for the median and the 90th percentile of a place, relative to the best of plain and co-located k = 2."""
BETTER = 0.98
"""A `wanspec` at no more passes is better where its latency is below this share of ours."""
ALONE = 1.05
"""Goal for the time of all completions with a bad worker, relative to the same gateway alone; not for `offload`, which
makes no passes of its own while a worker drafts."""
WORKER = WorkerSpec("bestfirst", 4, 0.0, 16)


@dataclass(frozen=True, slots=True)
class Place:
    """Where the policies are compared."""

    curve: str
    ratio: float
    match: float
    rtt_ms: float
    case: str = ""
    tokens: int = 100
    jitter_ms: float = 0.0
    loss: float = 0.0
    noise: float = 0.0
    slower: float = 1.0
    """The worker is so many times slower than it reports."""
    beside: str = ""
    """Each worker's draft, names of `DRAFTS` with spaces between; empty: one worker with the gateway's own model."""
    changes_after: int = 1 << 30
    """Completions after which the workers draft with the gateway's own model."""
    late_passes: float = 0.0
    """Passes of the target for which each commit waits at the worker."""
    local_match: float | None = None
    """Of the gateway's own draft, if not `match`."""


DRAFTS: Mapping[str, Callable[[float], Iid]] = {
    "wrong": lambda match: Iid(match=match, wrong=True),
    "second": lambda match: Iid(match=0.01),
    "right": lambda match: Iid(match=match),
}
"""Drafts of workers by name, for the match rate of a place: all that it names wrong, only its best token wrong, or as
often right as the gateway's own draft, and elsewhere."""


def worst_places(config: Mapping[str, Any]) -> Iterator[Place]:
    """Those at which the same gateway alone is the control."""
    worst = config["worst"]
    for case, settings in worst["cases"].items():
        rtts = [settings["rtt_ms"]] if "rtt_ms" in settings else worst["rtt_ms"]
        for curve, ratio, match, rtt in product(worst["curve"], worst["ratio"], worst["match"], rtts):
            yield Place(**{"curve": curve, "ratio": ratio, "match": match, "rtt_ms": rtt, "case": case,
                           "tokens": config["run"]["tokens"], **settings})  # fmt: skip


def places(config: Mapping[str, Any], *, quick: bool = False) -> Iterator[Place]:
    """The grid, then the cases around it."""
    run = config["run"] | (config["quick"] if quick else {})
    around = config["around"]
    for curve in config["curves"]:
        for ratio in run["ratio"]:
            for match in run["match"]:
                for rtt in run["rtt_ms"]:
                    yield Place(curve, ratio, match, rtt, tokens=run["tokens"])
    for case, settings in {} if quick else around["cases"].items():
        for curve in around["curve"]:
            for ratio in around["ratio"]:
                for match in around["match"]:
                    for rtt in around["rtt_ms"]:
                        yield Place(**{
                            "curve": curve, "ratio": ratio, "match": match, "rtt_ms": rtt,
                            "case": case, "tokens": run["tokens"], **settings,
                        })  # fmt: skip


def steps_at(place: Place, config: Mapping[str, Any]) -> Steps:
    """Step times: the draft's is fixed, the target's follows from the ratio."""
    draft_s = config["run"]["draft_ms"] / 1000
    curve = config["curves"][place.curve]

    def scaled(points: Mapping[str, float], factor: float) -> Curve:
        return Curve({int(rows): share * factor for rows, share in points.items()})

    local = scaled(curve["draft"], draft_s)
    verify = scaled(curve["verify"], draft_s / place.ratio)
    slow = scaled(curve["draft"], draft_s * place.slower)
    says = None if place.slower == 1 else local
    return Steps(
        verify, local, slow, unread=config["run"]["unread"], worker_noise=place.noise, worker_says=says,
        worker_behind_s=place.late_passes * verify(1),
    )  # fmt: skip


def measure(place: Place, config: Mapping[str, Any], runs: int, policies: Policies) -> Row:
    """All arms at one place."""
    steps = steps_at(place, config)
    net = LinkModel(place.rtt_ms / 1000, place.jitter_ms / 1000, place.loss)

    def results(arm: Arm) -> Sequence[Result]:
        return simulate(Cell(arm, Iid(match=place.match), net, steps, place.tokens, runs), policies)

    plain = results(Arm("plain", "plain"))
    colocated = results(Arm("co-located k=2", "colocated"))

    # The better one is chosen for the place, as an operator would, not answer by answer with hindsight.
    better = min(plain, colocated, key=lambda arm: statistics.median(one.seconds for one in arm))
    row: Row = asdict(place) | {"base": "plain" if better is plain else "co-located k=2"}
    for prefer in config["run"]["prefer"]:
        row[prefer] = _against(results(Arm(prefer, "adaptive", WORKER, prefer=prefer)), better, colocated)
    row["wanspec"] = {
        f"k={k} φ={phi:g}": _against(results(Arm("wanspec", "wanspec", WORKER, k=k, phi=phi)), better, colocated)
        for k in config["run"]["wanspec"]["k"]
        for phi in config["run"]["wanspec"]["phi"]
    }
    return row


def measure_worst(place: Place, config: Mapping[str, Any], runs: int, policies: Policies) -> Row:
    """The time of each completion with a bad worker, relative to the same gateway alone, and of all together."""
    steps = steps_at(place, config)
    net = LinkModel(place.rtt_ms / 1000, place.jitter_ms / 1000, place.loss)
    local = Iid(match=place.match if place.local_match is None else place.local_match)
    beside = tuple(DRAFTS[name](place.match) for name in place.beside.split())
    worker = replace(WORKER, count=max(len(beside), 1))
    row: Row = asdict(place) | {"base": "alone"}
    for prefer in config["worst"]["prefer"]:
        control = Arm("alone", "adaptive", prefer=prefer)
        alone = simulate(Cell(control, local, net, steps, place.tokens, runs), policies)
        arm = Arm(prefer, "adaptive", worker, prefer=prefer)
        cell = Cell(arm, local, net, steps, place.tokens, runs, workers=beside, changes_after=place.changes_after)
        ours = simulate(cell, policies)
        row[prefer] = {
            "all": round(sum(mine.seconds for mine in ours) / sum(other.seconds for other in alone), 4),
            "each": [round(mine.seconds / other.seconds, 3) for mine, other in zip(ours, alone, strict=True)],
        }

    return row


def _against(ours: Sequence[Result], base: Sequence[Result], colocated: Sequence[Result]) -> dict[str, float]:
    ratios = [mine.seconds / other.seconds for mine, other in zip(ours, base, strict=True)]
    passes = statistics.median(
        mine.local_passes / other.local_passes for mine, other in zip(ours, colocated, strict=True)
    )
    high = float(np.percentile(ratios, 90, method="nearest"))
    return {"median": round(statistics.median(ratios), 4), "p90": round(high, 4), "passes": round(passes, 3)}


def sweep(out: Path, simulator: Simulator, runs: int | None = None, quick: bool = False) -> dict[str, Any]:
    """One row a place; places that `OUT.part` holds are not simulated again."""
    config = load("sweep")
    runs = runs or (config["quick"] if quick else config["run"])["runs"]
    grid = list(places(config, quick=quick))
    worst = [] if quick else list(worst_places(config))
    kept = verbs.Kept(out.with_suffix(".part"))
    stamp = zlib.crc32(json.dumps(config, sort_keys=True).encode())
    wanted = {place: (*asdict(place).values(), runs, stamp) for place in (*grid, *worst)}
    left = [place for place in wanted if wanted[place] not in kept]
    simulator.progress(len(wanted) - len(left), len(wanted))
    row_of = partial(_row, config=config, runs=runs, policies=simulator.policies)
    for number, (place, row) in enumerate(spread(row_of, left, simulator.processes), 1):
        kept.get(wanted[place], lambda: row)  # noqa: B023  called at once
        simulator.progress(len(wanted) - len(left) + number, len(wanted))
    rows = [kept.get(wanted[place], dict) for place in grid]
    bad = [kept.get(wanted[place], dict) for place in worst]
    _plot(rows, out, config["run"]["prefer"])
    answer = {"figure": "sweep", "rows": rows, "worst": bad, **verdict(rows, config["run"]["prefer"])}
    lines = [text(rows, config["run"]["prefer"]), *map(worst_text, bad)]
    return answer | {"text": "\n".join(lines)}


def _row(place: Place, config: Mapping[str, Any], runs: int, policies: Policies) -> Row:
    """A place of the grid against the better baseline, a bad worker against the gateway alone."""
    if place.case in config["worst"]["cases"]:
        return measure_worst(place, config, config["worst"]["runs"], policies)
    return measure(place, config, runs, policies)


def verdict(rows: Sequence[Row], prefer: Sequence[str]) -> dict[str, Any]:
    """How many places keep the goals, and where a `wanspec` is better in latency at no more passes."""
    found: dict[str, Any] = {"places": len(rows)}
    for name in prefer:
        cells = [row[name] for row in rows]
        found[name] = {
            "median kept": sum(cell["median"] <= MEDIAN for cell in cells),
            "p90 kept": sum(cell["p90"] <= HIGH for cell in cells),
            "worst median": max(cell["median"] for cell in cells),
            "worst p90": max(cell["p90"] for cell in cells),
            "mean median": round(statistics.mean(cell["median"] for cell in cells), 4),
            "wanspec is better": sum(beaten(row, name) is not None for row in rows),
        }

    return found


def beaten(row: Row, prefer: str) -> str | None:
    """The fastest `wanspec` that is better by 2 % at no more passes."""
    mine = row[prefer]
    rivals = row["wanspec"]
    fair = [name for name, cell in rivals.items() if cell["passes"] <= mine["passes"] + 0.005]
    best = min(fair, key=lambda name: rivals[name]["median"], default=None)
    if best is not None and rivals[best]["median"] < BETTER * mine["median"]:
        return best

    return None


def text(rows: Sequence[Row], prefer: Sequence[str]) -> str:
    """A line a place: median and 90th percentile (passes) of each preference, then the fastest `wanspec`."""
    heads = "".join(f"{name:>22}" for name in prefer)
    lines = [f"{'curve':11}{'ratio':>6}{'match':>6}{'rtt':>5}  {'case':36}{heads}   fastest wanspec"]
    for row in rows:
        mine = "".join(f"{c['median']:10.3f} {c['p90']:5.2f} ({c['passes']:.2f})" for c in (row[n] for n in prefer))
        best = min(row["wanspec"], key=lambda name: row["wanspec"][name]["median"])
        cell = row["wanspec"][best]
        marks = "".join("!" for name in prefer if beaten(row, name))
        place = f"{row['curve']:11}{row['ratio']:6.2f}{row['match']:6.2f}{row['rtt_ms']:5.0f}  {row['case']:36}"
        lines.append(f"{place}{mine}   {cell['median']:.3f} ({cell['passes']:.2f}) {best} {marks}".rstrip())

    return "\n".join(lines)


def worst_text(row: Row) -> str:
    """A line for each preference: all completions together, then each, relative to the gateway alone."""
    place = f"{row['curve']:11}{row['ratio']:6.2f}{row['match']:6.2f}{row['rtt_ms']:5.0f}  {row['case']:36}"
    cells = {prefer: row[prefer] for prefer in ("latency", "balanced", "offload") if prefer in row}
    return "\n".join(
        f"{place}{prefer:9}{cell['all']:7.3f} {'!' if cell['all'] > ALONE and prefer != 'offload' else ' '} "
        + " ".join(f"{ratio:.2f}" for ratio in cell["each"])
        for prefer, cell in cells.items()
    )


def _plot(rows: Sequence[Row], out: Path, prefer: Sequence[str]) -> None:
    """Median latency against the round trip, averaged over match rates: a line per curve, ratio and preference."""
    grouped: dict[tuple[str, float, float, str], list[float]] = {}
    for row in rows:
        if not row["case"]:
            for name in prefer:
                grouped.setdefault((row["curve"], row["ratio"], row["rtt_ms"], name), []).append(row[name]["median"])
    lines = [
        {"rtt_ms": rtt, "config": f"{curve}: {ratio:g} {name}", "tokens": curve, "arm": f"{ratio:g} {name}",
         "latency_ratio": statistics.mean(values)}
        for (curve, ratio, rtt, name), values in grouped.items()
    ]  # fmt: skip
    title = "adaptive, latency / best of plain and co-located k = 2, mean over match rates"
    plots.lines(lines, out, title, (("latency_ratio", "latency"),))
