"""The demo's results: one JSON object, and the same as a table."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table as RichTable

from edgespec_lab.demo.arms import ARMS, BASE, CONTROL, DISTURBED, LOCAL, REMOTE, Run, Table


def decoding(run: Run) -> float:
    """Milliseconds per token while decoding."""
    return run.ms_per_token


def whole(run: Run) -> float:
    """Milliseconds per token of the whole completion, prompt included."""
    return run.total_ms_per_token


def summary(table: Table, identity: Mapping[str, Sequence[bool]], context: Mapping[str, Any]) -> dict[str, Any]:
    """All figures of one run. Times are medians over prompts, ratios medians of ratios."""
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
        "candidates_accepted": round(accepted / max(drafted, 1), 4),
        **_passes(table),
        **_times(table),
        "frames": {
            kind: sum(one["frames"][kind] for one in remote) for kind in ("received", "used", "stale", "rejected")
        },
        "fallbacks": sum(one["fallbacks"] for one in remote),
        "waited_share": round(max(run.waited_share for runs in table.runs for run in runs.values()), 4),
        "others_share": round(max(run.others_share for runs in table.runs for run in runs.values()), 4),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "runs": [{arm: run.figures() for arm, run in runs.items()} for runs in table.every],
    }


def _passes(table: Table) -> dict[str, Any]:
    """Passes of target and local draft, by arm."""
    drafts = {arm: int(table.total(arm, lambda run: run.usage["local_draft_passes"])) for arm in ARMS}
    return {
        "tokens_per_round_by_arm": {arm: round(_per_round(table, arm), 3) for arm in ARMS},
        "draft_passes_by_arm": drafts,
        "offload_share_by_arm": {arm: round(1 - drafts[arm] / max(drafts[BASE], 1), 4) for arm in REMOTE},
    }


def _times(table: Table) -> dict[str, Any]:
    """Times and ratios, medians over the prompts."""
    pairs = {f"{arm}_to_{base}": (arm, base) for arm in REMOTE for base in LOCAL}
    figures: dict[str, Any] = {}
    for prefix, value in (("", decoding), ("total_", whole)):
        figures |= {
            f"{prefix}ms_per_token": {arm: round(table.median(arm, value), 4) for arm in ARMS},
            f"{prefix}ratio": {name: round(table.ratio(*pair, value), 4) for name, pair in pairs.items()},
        }

    return figures


def _per_round(table: Table, arm: str) -> float:
    return table.total(arm, lambda run: run.tokens) / max(table.total(arm, lambda run: run.usage["rounds"]), 1)


AGAIN = "Run it again when `top` shows nothing else; `--limit` times more prompts."
NEXT = (
    "Next: `edgespec plan` answers for your machines' times; `cloud-gateway serve` and `edgespec pair` are the same on "
    "two machines (README.md, Start)."
)

TITLES = {
    "plain": "plain",
    BASE: "co-located k=2",
    CONTROL: "adaptive, no worker",
    "remote": "remote wanspec",
    "adaptive": "remote adaptive",
    "adaptive_latency": "adaptive, latency first",
}
COLUMNS: Mapping[str, Callable[[Mapping[str, Any], str], str]] = {
    "ms per token": lambda figures, arm: f"{figures['ms_per_token'][arm]:.1f}",
    "÷ k=2": lambda figures, arm: _ratio(figures["ms_per_token"], arm),
    "with prompt ÷ k=2": lambda figures, arm: _ratio(figures["total_ms_per_token"], arm),
    "tokens a pass": lambda figures, arm: f"{figures['tokens_per_round_by_arm'][arm]:.2f}",
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
        table.add_row(TITLES[arm], *(cell(figures, arm) for cell in COLUMNS.values()))
    console.print(table)
    for line in remarks(figures):
        console.print(line, highlight=False)


def remarks(figures: Mapping[str, Any]) -> list[str]:
    """Remarks beside the table, a line each."""
    lines = []
    lines += busy_remarks(figures["prompts"], figures["prompts_dropped"], disturbed=figures["disturbed"])
    lines.append('The worker has `daemon.priority = "normal"` and `owner.mode = "always"`, which are not the defaults.')
    lines.append(f"WANSpec's arm accepted {figures['candidates_accepted']:.0%} of the candidates that it verified.")
    shares = ", ".join(f"{share:.0%} ({arm})" for arm, share in figures["offload_share_by_arm"].items())
    lines.append(f"Draft passes taken off the gateway (`drafts` is what is left): {shares}.")
    if figures["identical"] is not None:
        differ = f"texts differ: {figures['identical_by_arm']}"
        lines.append(f"With an exact target, {'the same text in every arm' if figures['identical'] else differ}.")
    lines.append(NEXT)
    return lines


def busy_remarks(timed: int, dropped: int, *, disturbed: bool) -> list[str]:
    """Which prompts are missing in the table, or timed on a busy machine, why, and what to do; nothing if none is."""
    cause = f"other programs used more than {DISTURBED:.0%} of a core during one of its runs"
    if disturbed:
        return [f"The times are those of a busy machine: for every prompt {cause}. {AGAIN}"]
    if dropped:
        return [f"{dropped} of {timed + dropped} prompts are left out: {cause.replace('its', 'their')}. {AGAIN}"]

    return []
