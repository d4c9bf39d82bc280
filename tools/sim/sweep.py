"""`python -m tools.sim sweep`: policy `adaptive` over the ratio of steps, curves, match rates, round trips and faults.

Each answer is held against the best of plain decoding and co-located k = 2 on the same tokens, and beside it stands the
best `wanspec` (any phi and k of the configuration, the same worker and local draft). All arms pay for what their local
draft reads. Finished places are kept in OUT with the suffix `.part`, so that an interrupted sweep goes on.
"""

from __future__ import annotations

import json
import statistics
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from edgespec.lab.link_model import LinkModel
from edgespec.lab.sim.world import Curve, Result, Steps
from tools import verbs
from tools.sim import plots
from tools.sim.config import load
from tools.sim.experiment import Arm, Cell, Progress, Row, WorkerSpec, simulate, spread
from tools.sim.tokens import Iid

MEDIAN, HIGH = 1.00, 1.05
"""Goals for the median and the 90th percentile of a place, relative to the best of plain and co-located k = 2."""
BETTER = 0.98
"""A `wanspec` at no more passes is better where its latency is below this share of ours."""
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


def places(config: Mapping[str, Any], *, quick: bool = False) -> Iterator[Place]:
    """The grid, then the cases around it."""
    run, around = config["run"] | (config["quick"] if quick else {}), config["around"]
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
    draft_s, curve = config["run"]["draft_ms"] / 1000, config["curves"][place.curve]

    def scaled(points: Mapping[str, float], factor: float) -> Curve:
        return Curve({int(rows): share * factor for rows, share in points.items()})

    local, verify = scaled(curve["draft"], draft_s), scaled(curve["verify"], draft_s / place.ratio)
    slow = scaled(curve["draft"], draft_s * place.slower)
    says = None if place.slower == 1 else local
    return Steps(verify, local, slow, unread=config["run"]["unread"], worker_noise=place.noise, worker_says=says)


def measure(place: Place, config: Mapping[str, Any], runs: int) -> Row:
    """All arms at one place."""
    steps, net = steps_at(place, config), LinkModel(place.rtt_ms / 1000, place.jitter_ms / 1000, place.loss)

    def results(arm: Arm) -> Sequence[Result]:
        return simulate(Cell(arm, Iid(match=place.match), net, steps, place.tokens, runs))

    plain, colocated = results(Arm("plain", "plain")), results(Arm("co-located k=2", "colocated"))
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


def _against(ours: Sequence[Result], base: Sequence[Result], colocated: Sequence[Result]) -> dict[str, float]:
    ratios = [mine.seconds / other.seconds for mine, other in zip(ours, base, strict=True)]
    passes = statistics.median(
        mine.local_passes / other.local_passes for mine, other in zip(ours, colocated, strict=True)
    )
    high = float(np.percentile(ratios, 90, method="nearest"))
    return {"median": round(statistics.median(ratios), 4), "p90": round(high, 4), "passes": round(passes, 3)}


def sweep(
    out: Path, processes: int, progress: Progress, runs: int | None = None, quick: bool = False
) -> dict[str, Any]:
    """One row a place; places that `OUT.part` holds are not simulated again."""
    config = load("sweep")
    runs = runs or (config["quick"] if quick else config["run"])["runs"]
    kept = verbs.Kept(out.with_suffix(".part"))
    wanted = list(places(config, quick=quick))
    stamp = zlib.crc32(json.dumps(config, sort_keys=True).encode())
    keys = {place: (*asdict(place).values(), runs, stamp) for place in wanted}
    left = [place for place in wanted if keys[place] not in kept]
    progress(len(wanted) - len(left), len(wanted))
    for number, (place, row) in enumerate(spread(partial(measure, config=config, runs=runs), left, processes), 1):
        kept.get(keys[place], lambda: row)  # noqa: B023  called at once
        progress(len(wanted) - len(left) + number, len(wanted))
    rows = [kept.get(keys[place], dict) for place in wanted]
    _plot(rows, out, config["run"]["prefer"])
    answer = {"figure": "sweep", "rows": rows, **verdict(rows, config["run"]["prefer"])}
    return answer | {"text": text(rows, config["run"]["prefer"])}


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
    mine, rivals = row[prefer], row["wanspec"]
    fair = [name for name, cell in rivals.items() if cell["passes"] <= mine["passes"] + 0.005]
    best = min(fair, key=lambda name: rivals[name]["median"], default=None)
    return best if best is not None and rivals[best]["median"] < BETTER * mine["median"] else None


def text(rows: Sequence[Row], prefer: Sequence[str]) -> str:
    """A line a place: median and 90th percentile (passes) of each preference, then the fastest `wanspec`."""
    heads = "".join(f"{name:>22}" for name in prefer)
    lines = [f"{'curve':11}{'ratio':>6}{'match':>6}{'rtt':>5}  {'case':36}{heads}   fastest wanspec"]
    for row in rows:
        mine = "".join(f"{c['median']:10.3f} {c['p90']:5.2f} ({c['passes']:.2f})" for c in (row[n] for n in prefer))
        best = min(row["wanspec"], key=lambda name: row["wanspec"][name]["median"])
        cell, marks = row["wanspec"][best], "".join("!" for name in prefer if beaten(row, name))
        place = f"{row['curve']:11}{row['ratio']:6.2f}{row['match']:6.2f}{row['rtt_ms']:5.0f}  {row['case']:36}"
        lines.append(f"{place}{mine}   {cell['median']:.3f} ({cell['passes']:.2f}) {best} {marks}".rstrip())
    return "\n".join(lines)


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
