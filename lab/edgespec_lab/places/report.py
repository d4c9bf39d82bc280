"""A table with a row for each place and preference: ratios on the same prompt, and what the gateway drafts itself."""

from __future__ import annotations

import math
import os
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table as RichTable

from edgespec_lab.demo.arms import BASE, CONTROL, DISTURBED, MIN_MS, Run, Value
from edgespec_lab.demo.report import decoding, whole
from edgespec_lab.places.series import ALONE, Place, high

CONFIDENCE = 0.95
LIMIT = 1.02
"""Of a time to the better of plain decoding and co-located k = 2: what counts as slower."""
VALUES: Mapping[str, Value] = {"decoding": decoding, "whole": whole}
Runs = Mapping[str, Run]


def summary(every: Sequence[Runs], places: Sequence[Place], start: Mapping[str, Any]) -> dict[str, Any]:
    """All figures: times as medians over prompts, ratios as medians of ratios on the same prompt."""
    clean = [runs for runs in every if max(run.others_share for run in runs.values()) <= DISTURBED]
    runs = clean or list(every)
    best = best_k(runs, start["kept"])
    return {
        "prompts": len(runs),
        "prompts_dropped": len(every) - len(runs),
        "disturbed": not clean,
        "best_k": best,
        "local": _local_rows(runs, best),
        "rows": [
            row(runs, place, name, best)
            for place in places
            for name in ("balanced", "latency")
            if place.arm(name) in runs[0]
        ],
        "same_text": _same_text(runs),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
    }


def _same_text(every: Sequence[Runs]) -> dict[str, str]:
    """On how many prompts an arm wrote plain decoding's text, of those that it has; not exact in bf16."""
    arms = dict.fromkeys(arm for runs in every for arm in runs)
    same = {arm: [runs[arm].text == runs["plain"].text for runs in every if arm in runs] for arm in arms}
    return {arm: f"{sum(found)} of {len(found)}" for arm, found in same.items()}


def best_k(every: Sequence[Runs], kept: Sequence[int]) -> int:
    """The fastest of the kept k and 2, by the median over the prompts, found afterwards."""
    depths = sorted({2, *kept})
    return min(depths, key=lambda k: median([decoding(runs[f"colocated_k{k}"]) for runs in every]))


def _local_rows(every: Sequence[Runs], best: int) -> dict[str, Any]:
    """Milliseconds per token of the arms without a worker, beside the neighbour and alone."""
    rows: dict[str, Any] = {}
    names = {"plain": "plain", BASE: BASE, "colocated_best": f"colocated_k{best}", CONTROL: CONTROL}
    for name, arm in names.items():
        beside = [runs[arm] for runs in every]
        alone = [(runs[arm], runs[arm + ALONE]) for runs in every if arm + ALONE in runs]
        rows[name] = {kind: round(median(map(value, beside)), 3) for kind, value in VALUES.items()}
        rows[name]["passes"] = sum(run.usage["local_draft_passes"] for run in beside)
        rows[name]["accepted_per_round"] = round(_accepted(beside), 3)
        if alone:
            rows[name]["beside_to_alone"] = round(median([decoding(a) / max(decoding(b), MIN_MS) for a, b in alone]), 4)

    return rows


def row(every: Sequence[Runs], place: Place, name: str, best: int) -> dict[str, Any]:
    """One place and preference."""
    arm = place.arm(name)
    mine = [runs[arm] for runs in every]
    theirs = [runs[BASE] for runs in every]
    found: dict[str, Any] = {"rtt_ms": place.rtt_ms, "prefer": name, "arm": arm}
    for kind, value in VALUES.items():
        to = {"plain": ["plain"], "k2": [BASE], "best": [f"colocated_k{best}"], "better": ["plain", BASE]}
        to["control"] = [CONTROL]
        found[kind] = {"ms_per_token": round(median(map(value, mine)), 3)}
        found[kind] |= {name: spread(ratios(every, arm, bases, value)) for name, bases in to.items()}
    passes = sum(run.usage["local_draft_passes"] for run in mine)
    reasons = Counter(str(run.usage.get("why_off") or run.usage.get("why") or "") for run in mine)
    return found | {
        "passes": passes,
        "passes_to_k2": round(passes / max(sum(run.usage["local_draft_passes"] for run in theirs), 1), 4),
        "accepted_per_round": round(_accepted(mine), 3),
        "tokens_per_round": round(sum(run.tokens for run in mine) / max(_rounds(mine), 1), 3),
        "reasons": dict(reasons.most_common()),
    }


def ratios(every: Sequence[Runs], arm: str, bases: Sequence[str], value: Value) -> list[float]:
    """One figure of an arm over the least of these arms' on the same prompt, prompt by prompt."""
    return [value(runs[arm]) / max(min(value(runs[base]) for base in bases), MIN_MS) for runs in every]


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Median, its interval, the 90th percentile, and how many exceed LIMIT."""
    low, high_end = interval(values)
    return {
        "median": round(median(values), 4), "low": round(low, 4), "high": round(high_end, 4),
        "p90": round(high(values), 4), "above": sum(one > LIMIT for one in values),
    }  # fmt: skip


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Of the median, with at least CONFIDENCE where there are six values or more, from their order alone: the n-th
    smallest and largest, as the number below the median is binomial. With fewer values the smallest and the largest."""
    ordered = sorted(values)
    n = len(values)
    outside = 0.0
    cut = 0
    while cut < n // 2:
        outside += 2 * math.comb(n, cut) / 2**n
        if outside > 1 - CONFIDENCE:
            break
        cut += 1
    cut = max(cut - 1, 0)
    return ordered[cut], ordered[-1 - cut]


def _accepted(runs: Sequence[Run]) -> float:
    return sum(sum(run.usage["accepted"].values()) for run in runs) / max(_rounds(runs), 1)


def _rounds(runs: Sequence[Run]) -> int:
    return sum(int(run.usage["rounds"]) for run in runs)


COLUMNS = ("ms", "prefer", "each", "k=2", "interval", "best", "alone", "whole", "passes", "kept")
"""Round trip; time per token, and its ratio to co-located k = 2 with the interval, to the best k, and to `adaptive`
without a worker; that of whole completions to k = 2; draft passes at the gateway over those of k = 2; candidates
accepted in a round."""


def cells(found: Mapping[str, Any]) -> list[str]:
    """A row of the table."""
    decode = found["decoding"]
    all_of_it = found["whole"]
    return [
        f"{found['rtt_ms']:g}", found["prefer"], f"{decode['ms_per_token']:.1f}",
        f"{decode['k2']['median']:.2f}", f"{decode['k2']['low']:.2f}-{decode['k2']['high']:.2f}",
        f"{decode['best']['median']:.2f}", f"{decode['control']['median']:.2f}",
        f"{all_of_it['k2']['median']:.2f}",
        f"{found['passes_to_k2']:.2f}", f"{found['accepted_per_round']:.2f}",
    ]  # fmt: skip


def show(figures: Mapping[str, Any], console: Console) -> None:
    """Prints the table and what it stands on."""
    setting = figures["setting"]
    title = f"{figures['prompts']} prompts, draft {setting['draft']}, target {setting['target']}; ratios while decoding"
    table = RichTable(title=title, box=box.SIMPLE, padding=(0, 0, 0, 1))
    for column in COLUMNS:
        left = column == "prefer"
        width = 9 if column == "interval" else len(column)
        table.add_column(column, justify="left" if left else "right", min_width=width, no_wrap=True)
    for found in figures["rows"]:
        table.add_row(*cells(found))
    console.print(table)
    for line in remarks(figures):
        console.print(line, highlight=False)


def remarks(figures: Mapping[str, Any]) -> list[str]:
    """The arms without a worker, and the conditions."""
    rows = figures["local"].items()
    parts = [f"{name} {found['decoding']:.1f} ({found['whole']:.1f} whole)" for name, found in rows]
    lines = [f"Beside the neighbour: {', '.join(parts)}; best k = {figures['best_k']}."]
    if neighbour := figures["start"].get("neighbour"):
        lines.append(f"A plain pass takes {neighbour['factor']:.2f} times as long beside the neighbour as alone.")
    if figures["disturbed"]:
        lines.append("Other processes were busy during every prompt: take the times with care.")
    elif figures["prompts_dropped"]:
        lines.append(f"{figures['prompts_dropped']} prompts were disturbed by other processes and left out.")
    return lines
