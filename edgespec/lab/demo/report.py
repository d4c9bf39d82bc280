"""The demo's results: one JSON object, and the same as a table."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

from edgespec.lab.demo.arms import KS, REMOTE, Run, Table


def summary(table: Table, identity: Mapping[str, Sequence[bool]], context: Mapping[str, Any]) -> dict[str, Any]:
    """All figures of one run (docs/demo.md explains each). Times are medians over prompts, ratios medians of ratios."""
    best_k = min(KS, key=lambda k: table.median(f"colocated_k{k}", lambda run: run.ms_per_token))
    best = f"colocated_k{best_k}"
    arms = {"plain": "plain", "colocated_k2": "colocated_k2", "colocated_best": best}
    arms |= {arm: arm for arm in REMOTE}
    usage = [runs["remote"].usage for runs in table.runs]
    drafted = sum(one["drafted"].get("worker", 0) + one["drafted"].get("local", 0) for one in usage)
    accepted = sum(sum(one["accepted"].values()) for one in usage)
    passes, base_passes = _passes(table, "remote"), _passes(table, "colocated_k2")
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
        "tokens_per_round": round(_per_round(table, "remote"), 3),
        "tokens_per_round_by_arm": {name: round(_per_round(table, arm), 3) for name, arm in arms.items()},
        "offload_share": round(1 - passes / max(base_passes, 1), 4),
        "controller_draft_passes": int(passes),
        "adaptive_offload_share": round(1 - _passes(table, "adaptive") / max(base_passes, 1), 4),
        "adaptive_draft_passes": int(_passes(table, "adaptive")),
        "colocated_k2_draft_passes": int(base_passes),
        "ms_per_token": {name: round(table.median(arm, lambda run: run.ms_per_token), 3) for name, arm in arms.items()},
        "total_ms_per_token": {
            name: round(table.median(arm, lambda run: run.total_ms_per_token), 3) for name, arm in arms.items()
        },
        "ratio": _ratios(table, best, lambda run: run.ms_per_token),
        "total_ratio": _ratios(table, best, lambda run: run.total_ms_per_token),
        "best_k": best_k,
        "ms_per_token_colocated": {
            k: round(table.median(f"colocated_k{k}", lambda run: run.ms_per_token), 3) for k in KS
        },
        "frames": {
            kind: sum(one["frames"][kind] for one in usage) for kind in ("received", "used", "stale", "rejected")
        },
        "fallbacks": sum(one["fallbacks"] for one in usage),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
    }


def _ratios(table: Table, best: str, value: Callable[[Run], float]) -> dict[str, float]:
    bases = {"plain": "plain", "colocated_k2": "colocated_k2", "colocated_best": best}
    return {
        f"{arm}_to_{name}": round(table.ratio(arm, base, value), 4) for arm in REMOTE for name, base in bases.items()
    }


def _passes(table: Table, arm: str) -> float:
    return table.total(arm, lambda run: run.usage["local_draft_passes"])


def match_rate(table: Table) -> float:
    """Share of the draft's first choices that were the target's token, from co-located k = 1: accepted over drafted."""
    usage = [runs["colocated_k1"].usage for runs in table.runs]
    drafted = sum(one["drafted"].get("local", 0) for one in usage)
    return sum(one["accepted"].get("local", 0) for one in usage) / max(drafted, 1)


def _per_round(table: Table, arm: str) -> float:
    return table.total(arm, lambda run: run.tokens) / max(table.total(arm, lambda run: run.usage["rounds"]), 1)


def show(figures: Mapping[str, Any], console: Console) -> None:
    """Prints the table of the arms, and its conditions."""
    best = figures["best_k"]
    titles = {
        "plain": "plain",
        "colocated_k2": "co-located k=2",
        "colocated_best": f"co-located k={best} (best)",
        "remote": "remote wanspec",
        "adaptive": "remote adaptive",
    }
    scene = f"{figures['prompts']} prompts, {figures['tokens']} tokens, draft {figures['draft']}"
    table = RichTable(title=f"{scene}, {figures['rtt_ms']:g} ms away")
    for column in ("arm", "ms per token", "against k=2", "with prompt", "tokens a pass", "drafts here"):
        table.add_column(column, justify="left" if column == "arm" else "right", no_wrap=column == "arm")
    times, totals = figures["ms_per_token"], figures["total_ms_per_token"]
    passes = {
        "plain": 0,
        "colocated_k2": figures["colocated_k2_draft_passes"],
        "remote": figures["controller_draft_passes"],
        "adaptive": figures["adaptive_draft_passes"],
    }
    for arm, title in titles.items():
        table.add_row(
            title,
            f"{times[arm]:.1f}",
            f"{times[arm] / times['colocated_k2']:.2f}",
            f"{totals[arm]:.1f}",
            f"{figures['tokens_per_round_by_arm'][arm]:.2f}",
            str(passes.get(arm, "")),
        )
    console.print(table)
    console.print(f"The draft's first choice is right {figures['match_rate']:.0%} of the time.", highlight=False)
    shares = f"{figures['offload_share']:.0%} (wanspec), {figures['adaptive_offload_share']:.0%} (adaptive)"
    console.print(f"Draft passes taken off the gateway: {shares}.", highlight=False)
    if figures["identical"] is not None:
        verdict = (
            "the same text in every arm" if figures["identical"] else f"texts differ: {figures['identical_by_arm']}"
        )
        console.print(f"In fp32, {verdict}.", highlight=False)
