"""The demo's results: one JSON object, and the same as a table."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table as RichTable

from edgespec.lab.demo.arms import ALONE, BASE, CONTROL, KS, REMOTE, Run, Table, high


def decoding(run: Run) -> float:
    """Milliseconds per token while decoding."""
    return run.ms_per_token


def whole(run: Run) -> float:
    """Milliseconds per token of the whole completion, prompt included."""
    return run.total_ms_per_token


def named_arms(table: Table) -> dict[str, str]:
    """The rows of the table: name -> arm; `colocated_best` has the k that turned out fastest."""
    local = {"plain": "plain", BASE: BASE, "colocated_best": f"colocated_k{table.best_k()}"}
    return local | {arm: arm for arm in (CONTROL, *REMOTE) if table.has(arm)}


def summary(table: Table, identity: Mapping[str, Sequence[bool]], context: Mapping[str, Any]) -> dict[str, Any]:
    """All figures of one run. Times are medians over prompts, ratios medians of ratios."""
    arms = named_arms(table)
    remote = [runs["remote"].usage for runs in table.runs]
    drafted = sum(one["drafted"].get("worker", 0) + one["drafted"].get("local", 0) for one in remote)
    accepted = sum(sum(one["accepted"].values()) for one in remote)
    return {
        **context,
        "prompts": len(table.runs),
        "prompts_dropped": table.dropped,
        "disturbed": not table.clean,
        "tokens": int(table.total("remote", lambda run: run.tokens)),
        "identical": all(all(equal) for equal in identity.values()) if identity else None,
        "identical_by_arm": {arm: sum(equal) for arm, equal in identity.items()},
        "match_rate": round(match_rate(table), 4),
        "candidates_accepted": round(accepted / max(drafted, 1), 4),
        "best_k": table.best_k(),
        **_passes(table, arms),
        **_times(table, arms),
        "frames": {
            kind: sum(one["frames"][kind] for one in remote) for kind in ("received", "used", "stale", "rejected")
        },
        "fallbacks": sum(one["fallbacks"] for one in remote),
        "waited_share": round(max(run.waited_share for runs in table.runs for run in runs.values()), 4),
        "others_share": round(max(run.others_share for runs in table.runs for run in runs.values()), 4),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "runs": [{arm: run.figures() for arm, run in runs.items()} for runs in table.every],
    }


def _passes(table: Table, arms: Mapping[str, str]) -> dict[str, Any]:
    """Passes of target and local draft, by arm."""
    drafts = {name: int(table.total(arm, lambda run: run.usage["local_draft_passes"])) for name, arm in arms.items()}
    offloaded = {name: round(1 - drafts[name] / max(drafts[BASE], 1), 4) for name in arms if name in REMOTE}
    return {
        "tokens_per_round_by_arm": {name: round(_per_round(table, arm), 3) for name, arm in arms.items()},
        "draft_passes_by_arm": drafts,
        "offload_share_by_arm": offloaded,
    }


def _times(table: Table, arms: Mapping[str, str]) -> dict[str, Any]:
    """Times and ratios, beside the neighbour and alone, medians and high quantiles."""
    local = {name: arm for name, arm in arms.items() if name not in REMOTE}
    alone = {name: arm + ALONE for name, arm in local.items() if table.has(arm + ALONE)}
    pairs = {f"{arm}_to_{name}": (arm, base) for arm in arms if arm in REMOTE for name, base in local.items()}
    pairs_alone = {f"{arm}_to_{name}": (arm, base) for arm in arms if arm in REMOTE for name, base in alone.items()}
    figures: dict[str, Any] = {
        "ms_per_token_colocated": {
            k: round(table.median(f"colocated_k{k}", decoding), 3) for k in KS if table.has(f"colocated_k{k}")
        }
    }
    for prefix, value in (("", decoding), ("total_", whole)):
        figures |= {
            f"{prefix}ms_per_token": {name: _median(table.values(arm, value)) for name, arm in arms.items()},
            f"{prefix}ms_per_token_p90": {name: _high(table.values(arm, value)) for name, arm in arms.items()},
            f"{prefix}ms_per_token_alone": {name: _median(table.values(arm, value)) for name, arm in alone.items()},
            f"{prefix}ratio": {name: _median(table.ratios(*pair, value)) for name, pair in pairs.items()},
            f"{prefix}ratio_p90": {name: _high(table.ratios(*pair, value)) for name, pair in pairs.items()},
            f"{prefix}ratio_alone": {name: _median(table.ratios(*pair, value)) for name, pair in pairs_alone.items()},
        }
    return figures


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return round((ordered[middle] + ordered[~middle]) / 2, 4)


def _high(values: Sequence[float]) -> float:
    return round(high(values), 4)


def match_rate(table: Table) -> float:
    """Share of the draft's first choices that were the target's token, from co-located k = 1: accepted over drafted."""
    usage = [runs["colocated_k1"].usage for runs in table.runs]
    drafted = sum(one["drafted"].get("local", 0) for one in usage)
    return sum(one["accepted"].get("local", 0) for one in usage) / max(drafted, 1)


def _per_round(table: Table, arm: str) -> float:
    return table.total(arm, lambda run: run.tokens) / max(table.total(arm, lambda run: run.usage["rounds"]), 1)


TITLES = {
    "plain": "plain",
    BASE: "co-located k=2",
    "colocated_best": "co-located best k={best_k}",
    CONTROL: "adaptive, no worker",
    "remote": "remote wanspec",
    "adaptive": "remote adaptive",
    "adaptive_latency": "same, latency first",
}
COLUMNS: Mapping[str, Callable[[Mapping[str, Any], str], str]] = {
    "ms per token": lambda figures, arm: f"{figures['ms_per_token'][arm]:.1f}",
    "p90": lambda figures, arm: f"{figures['ms_per_token_p90'][arm]:.1f}",
    "alone": lambda figures, arm: f"{alone:.1f}" if (alone := figures["ms_per_token_alone"].get(arm)) else "",
    "to k=2": lambda figures, arm: _ratio(figures["ms_per_token"], arm),
    "whole to k=2": lambda figures, arm: _ratio(figures["total_ms_per_token"], arm),
    "each pass": lambda figures, arm: f"{figures['tokens_per_round_by_arm'][arm]:.2f}",
    "drafts": lambda figures, arm: str(figures["draft_passes_by_arm"][arm]),
}


def _ratio(times: Mapping[str, float], arm: str) -> str:
    return f"{times[arm] / times[BASE]:.2f}"


def show(figures: Mapping[str, Any], console: Console) -> None:
    """Prints the table of the arms, and its conditions."""
    scene = f"{figures['prompts']} prompts, {figures['tokens']} tokens, draft {figures['draft']}"
    table = RichTable(title=f"{scene}, {figures['rtt_ms']:g} ms away", box=box.SIMPLE)
    table.add_column("arm", no_wrap=True)
    for column in COLUMNS:
        table.add_column(column, justify="right", min_width=max(map(len, column.split())))
    for arm in figures["ms_per_token"]:
        title = TITLES[arm].format(best_k=figures["best_k"])
        table.add_row(title, *(cell(figures, arm) for cell in COLUMNS.values()))
    console.print(table)
    for line in remarks(figures):
        console.print(line, highlight=False)


def remarks(figures: Mapping[str, Any]) -> list[str]:
    """Remarks beside the table, a line each."""
    lines = []
    if neighbour := figures.get("neighbour"):
        times = f"{neighbour['beside_ms']:.1f} ms beside a neighbour that drafts, {neighbour['alone_ms']:.1f} alone"
        lines.append(f"A plain pass takes {times} ({neighbour['factor']:.2f}); `alone`: without the neighbour.")
    lines.append('The worker has `daemon.priority = "normal"` and `owner.mode = "always"`, which are not the defaults.')
    lines.append(f"The draft's first choice is right {figures['match_rate']:.0%} of the time.")
    shares = ", ".join(f"{share:.0%} ({arm})" for arm, share in figures["offload_share_by_arm"].items())
    lines.append(f"Draft passes taken off the gateway (`drafts` is what is left): {shares}.")
    if figures["identical"] is not None:
        differ = f"texts differ: {figures['identical_by_arm']}"
        how = "With `exact`" if figures.get("engine") == "llamacpp" else "In fp32"
        lines.append(f"{how}, {'the same text in every arm' if figures['identical'] else differ}.")
    return lines
