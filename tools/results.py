"""`python -m tools.results [OUT ...]`: pages of docs/results, made from docs/results/*.json.

Each OUT is a file that `python -m edgespec_lab.places` or `python -m tools.bench map` wrote with `--json`. It is copied
to docs/results with commit and machine, its single runs into NAME.runs.jsonl beside it. The pages are written again.
`--check` only says which differ.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgespec.core.errors import ConfigError
from edgespec_lab import verbs
from edgespec_lab.markdown import line
from edgespec_lab.markdown import table as markdown
from tools.bench.map import report as map_report

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs/results"
MADE = "Made by `python -m tools.results` of these files. Policies may have changed since a file's commit."
LEGEND = """Times are milliseconds per token while decoding, the first pass included; ratios are medians over prompts of
the ratio on the same prompt, in brackets the interval of the median. "Draft passes": at the gateway, over
those of k = 2. "Best k": of k = 2 and the two that were fastest on two other prompts. "Better": the better of plain
decoding and k = 2. Workers ran with `daemon.priority = "normal"` and `owner.mode = "always"`, which are not the
defaults. `adaptive` also uses `lookup`. "No worker" is the same gateway with the same policy, alone, if a table has
it. `limited` is `balanced` with `policy.phi = 2` (`--phi`, in git at 76a84839), which ends its trust in a worker after
an unsure token."""
Figures = Mapping[str, Any]


def kind_of(figures: Figures) -> str:
    """The kind of page that a file belongs to. Raises ConfigError if it is of none."""
    if "capacity" in figures:
        return "map"
    if not figures.get("rows") or not figures.get("setting"):
        raise ConfigError("it has no rows: it is no table of several places, and no map.")
    return "places"


def name_of(figures: Figures) -> str:
    """The file's name in docs/results."""
    kind = kind_of(figures)
    setting = figures.get("setting", {})
    if kind == "map":
        return "map.json"
    only = "".join(f"-{rtt_ms:g}ms" for rtt_ms in setting["rtt_ms"]) if len(setting.get("rtt_ms", ())) == 1 else ""
    return f"{kind}-{setting['target']}-{setting['draft']}{only}.json"


def ratio(figures: Figures, of: str) -> str:
    """Median and interval."""
    found = figures[of]
    return f"{found['median']:.2f} ({found['low']:.2f} to {found['high']:.2f})"


def local_table(every: Sequence[Figures]) -> list[str]:
    """The arms without a worker, milliseconds per token."""
    lines = markdown(("draft", "prompts", "plain", "co-located k = 2", "best k", "plain beside ÷ alone"), [])
    for figures in every:
        rows = figures["local"]
        setting = figures["setting"]
        times = [f"{rows[name]['decoding']:.1f}" for name in ("plain", "colocated_k2", "colocated_best")]
        times[2] += f" (k = {figures['best_k']})"
        factor = figures["start"].get("neighbour") or {}
        cells = (setting["draft"], figures["prompts"], *times, f"{factor['factor']:.2f}" if factor else "")
        lines += [line(cells)]

    return lines


def places(every: Sequence[Figures]) -> str:
    """A row for each draft, round trip and preference, by target."""
    parts = [LEGEND]
    for group in _by_target(every):
        parts += [_conditions(group), "\n".join(local_table(group)), "\n".join(_rows(group))]
    return "\n\n".join(parts)


def _by_target(every: Sequence[Figures]) -> list[list[Figures]]:
    """Results of the same target and round trips."""
    groups: dict[tuple[str, tuple[float, ...]], list[Figures]] = {}
    for figures in every:
        setting = figures["setting"]
        groups.setdefault((setting["target"], tuple(setting["rtt_ms"])), []).append(figures)
    return list(groups.values())


def _conditions(group: Sequence[Figures]) -> str:
    setting = group[0]["setting"]
    every = sorted({rtt_ms for figures in group for rtt_ms in figures["setting"]["rtt_ms"]})
    rtts = ",".join(f"{rtt_ms:g}" for rtt_ms in every)
    command = f"python -m edgespec_lab.places --target {setting['target']} --draft D --rtt-ms {rtts}"
    state = "beside other processes" if any(figures["disturbed"] for figures in group) else "undisturbed"
    what = f"Target `{setting['target']}`, {setting['max_tokens']} tokens a completion, every arm beside a drafting"
    command += f" --max-tokens {setting['max_tokens']}  --prompts FILE --limit N"
    return f"{what}\nneighbour or its own worker, {state}:\n\n```\n{command}\n```"


def _rows(every: Sequence[Figures]) -> list[str]:
    head = ("draft", "round trip", "prefer", "÷ k = 2", "÷ best k", "÷ better", "whole ÷ k = 2", "draft passes")
    controlled = all("control" in row["decoding"] for figures in every for row in figures["rows"])
    lines = markdown((*head, "÷ no worker") if controlled else head, [])
    for figures in every:
        for row in figures["rows"]:
            decoding = row["decoding"]
            whole = row["whole"]
            lines.append(line((
                figures["setting"]["draft"], f"{row['rtt_ms']:g} ms", row["prefer"], ratio(decoding, "k2"),
                f"{decoding['best']['median']:.2f}", f"{decoding['better']['median']:.2f}",
                f"{whole['k2']['median']:.2f}", f"{row['passes_to_k2']:.2f}",
                *([ratio(decoding, "control")] if controlled else []),
            )))  # fmt: skip

    return lines


@dataclass(frozen=True)
class Page:
    """A page of docs/results, made of all files of one kind."""

    kind: str
    title: str
    command: str
    write: Callable[[Sequence[Figures]], str]


PAGES = {
    "demo": Page(
        "places", "The demo at several round trips", "python -m edgespec_lab.places --rtt-ms 0,20,80 --json OUT", places
    ),
    "map": Page("map", "Where remote drafting wins", "python -m tools.bench map --json OUT", map_report.write),
}


def page(shown: Page, every: Sequence[Figures]) -> str:
    """The whole page: what it was made of, with commit and machine, and the tables."""
    rows = [
        (f"[{name_of(one)}]({name_of(one)})", one["measured"]["commit"], one["measured"]["machine"]) for one in every
    ]
    made = "\n".join(markdown(("file", "commit", "machine"), rows))
    return f"# {shown.title}\n\n{MADE}\n\n```\n{shown.command}\n```\n\n{made}\n\n{shown.write(every)}\n"


def pages(results: Mapping[str, Sequence[Figures]]) -> dict[str, str]:
    """Text of every page that has results, by path from the root."""
    return {
        f"docs/results/{name}.md": page(one, results[one.kind]) for name, one in PAGES.items() if one.kind in results
    }


def read(folder: Path) -> dict[str, list[Figures]]:
    """All results by block, in the order of their names."""
    found: dict[str, list[Figures]] = {}
    for path in sorted(folder.glob("*.json")):
        figures = json.loads(path.read_text())
        found.setdefault(kind_of(figures), []).append(figures)
    return found


def take(path: Path, folder: Path, commit: str, machine: str) -> Path:
    """Copies a result with commit and machine, and its single runs beside it. Returns the path. Raises ConfigError."""
    try:
        figures = json.loads(path.read_text())
        kept = {name: value for name, value in figures.items() if name != "runs"}
        out = folder / name_of(kept)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ConfigError) as error:
        raise ConfigError(f"{path} cannot be taken: {error}") from None
    folder.mkdir(parents=True, exist_ok=True)
    verbs.write_json(out, kept | {"measured": {"commit": commit, "machine": machine}})
    write_runs(out.with_suffix(".runs.jsonl"), figures.get("runs", []), commit)
    return out


def write_runs(path: Path, runs: Sequence[Mapping[str, Any]], commit: str) -> None:
    """Writes every arm of every prompt as a line, and nothing for a result whose command keeps no single runs."""
    lines = [
        json.dumps({"commit": commit, "prompt": number, "arm": arm, "run": run}, ensure_ascii=False)
        for number, arms in enumerate(runs)
        for arm, run in arms.items()
    ]
    if lines:
        path.write_text("\n".join(lines) + "\n")


def this_commit() -> str:
    """The commit of the tree, short."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def this_machine() -> str:
    """The processor's name and the number of cores."""
    found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return f"{found[1] if found else 'unknown processor'}, {os.cpu_count()} cores"


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 1 if `--check` finds a page that differs."""
    parser = argparse.ArgumentParser(prog="python -m tools.results", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, metavar="OUT", help="results to take")
    parser.add_argument("--commit", help="the commit that they were measured at (default: this one)")
    parser.add_argument("--machine", help="the machine that they were measured on (default: this one)")
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.set_defaults(run=write)
    return verbs.run(parser, arguments)


def write(options: argparse.Namespace) -> int:
    """Raises ConfigError for a file that cannot be taken."""
    for path in options.files:
        taken = take(path, RESULTS, options.commit or this_commit(), options.machine or this_machine())
        print(f"taken: {taken.relative_to(ROOT)}")
    differ = []
    for name, text in pages(read(RESULTS)).items():
        path = ROOT / name
        if not path.is_file() or path.read_text() != text:
            differ.append(name)
            if not options.check:
                path.write_text(text)
    print(f"results: {'other' if options.check else 'written'}: {differ}")
    if options.check and differ:
        return 1

    return 0


if __name__ == "__main__":
    sys.exit(main())
