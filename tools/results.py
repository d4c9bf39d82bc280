"""`python -m tools.results [OUT ...]`: measured tables of README.md and docs/demo.md, from the files in docs/results.

Each OUT is a file that `python -m tools.places`, `python -m tools.bench worst` or `python -m tools.sim
from-demo` wrote with `--json`. It is copied to docs/results without its single runs, and every block of a document
that has results is written again. `--check` only says which blocks differ.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from edgespec.core.errors import ConfigError
from tools import verbs

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs/results"
DOCUMENTS = ("README.md", "docs/demo.md")
BLOCK = re.compile(r"(<!-- results: (\w+) -->\n)(.*?)(<!-- end of results -->)", re.DOTALL)
LEGEND = """Times are milliseconds per token while decoding, the first pass included; ratios are medians over prompts of
the ratio on the same prompt, in brackets the interval of the median. "Draft passes": at the gateway, over
those of k = 2. "Best k": of k = 2 and the two that were fastest on two other prompts. Workers ran with
`daemon.priority = "normal"` and `owner.mode = "always"`, which are not the defaults."""
MORE = (
    "All round trips, whole completions, and the plain target: [docs/demo.md](docs/demo.md#several-places-in-one-run)."
)
SUMMARY_MS = (20.0, 80.0)
"""Round trips in README."""
Figures = Mapping[str, Any]


def kind_of(figures: Figures) -> str:
    """The block that a file belongs to. Raises ConfigError where it is of none."""
    rows, setting = figures.get("rows"), figures.get("setting")
    if setting and "cases" in figures:
        return "worst"
    if not rows or not setting:
        raise ConfigError("it has no rows: it is no table of several places, of worst cases or of the simulator.")
    if "sim" in rows[0]:
        return "simulator"
    return "places" if tuple(setting["worker_load"]) == ("none",) else "loads"


def name_of(figures: Figures) -> str:
    """The file's name in docs/results."""
    kind, setting = kind_of(figures), figures["setting"]
    return f"{kind}-{setting['target']}-{setting['draft']}.json"


def ratio(figures: Figures, of: str) -> str:
    """Median and interval."""
    found = figures[of]
    return f"{found['median']:.2f} ({found['low']:.2f} to {found['high']:.2f})"


def local_table(every: Sequence[Figures]) -> list[str]:
    """The arms without a worker, milliseconds per token."""
    lines = markdown(("draft", "prompts", "plain", "co-located k = 2", "best k", "plain beside ÷ alone"), [])
    for figures in every:
        rows, setting = figures["local"]["none"], figures["setting"]
        times = [f"{rows[name]['decoding']:.1f}" for name in ("plain", "colocated_k2", "colocated_best")]
        times[2] += f" (k = {figures['best_k']['none']})"
        factor = figures["start"].get("neighbour") or {}
        cells = (setting["draft"], figures["prompts"], *times, f"{factor['factor']:.2f}" if factor else "")
        lines += [line(cells)]
    return lines


def places(every: Sequence[Figures]) -> str:
    """A row for each draft, round trip and preference, by target."""
    parts = [f'{LEGEND} "Better": the better of plain decoding and co-located k = 2.']
    for group in _by_target(every):
        parts += [_conditions(group), "\n".join(local_table(group)), "\n".join(_rows(group, with_load=False))]
    return "\n\n".join(parts)


def summary(every: Sequence[Figures]) -> str:
    """A row for each draft and round trip of the deep target, both preferences in it."""
    deep = [figures for figures in every if figures["setting"]["target"] == "deep"]
    head = (
        "draft",
        "round trip",
        "`balanced` ÷ k = 2",
        "÷ best k",
        "passes",
        "`latency` ÷ k = 2",
        "÷ best k",
        "passes",
    )
    lines = markdown(head, [])
    for figures in deep:
        places: dict[float, dict[str, Figures]] = {}
        for row in figures["rows"]:
            if row["rtt_ms"] in SUMMARY_MS:
                places.setdefault(row["rtt_ms"], {})[row["prefer"]] = row
        for rtt_ms, rows in places.items():
            cells = [cell for prefer in ("balanced", "latency") for cell in _summary_cells(rows[prefer])]
            lines.append(line((figures["setting"]["draft"], f"{rtt_ms:g} ms", *cells)))
    return "\n\n".join((f"{LEGEND}\n{MORE}", _conditions(deep), "\n".join(local_table(deep)), "\n".join(lines)))


def _summary_cells(row: Figures) -> tuple[str, str, str]:
    decoding = row["decoding"]
    return ratio(decoding, "k2"), f"{decoding['best']['median']:.2f}", f"{row['passes_to_k2']:.2f}"


def loads(every: Sequence[Figures]) -> str:
    """The same beside other jobs on the worker's core."""
    groups = _by_target(every)
    return "\n\n".join(f"{_conditions(one)}\n\n{chr(10).join(_rows(one, with_load=True))}" for one in groups)


def _by_target(every: Sequence[Figures]) -> list[list[Figures]]:
    targets = dict.fromkeys(figures["setting"]["target"] for figures in every)
    return [[figures for figures in every if figures["setting"]["target"] == target] for target in targets]


def _conditions(group: Sequence[Figures]) -> str:
    setting = group[0]["setting"]
    every = sorted({rtt_ms for figures in group for rtt_ms in figures["setting"]["rtt_ms"]})
    rtts = ",".join(f"{rtt_ms:g}" for rtt_ms in every)
    command = f"python -m tools.places --target {setting['target']} --draft D --rtt-ms {rtts}"
    if tuple(setting["worker_load"]) != ("none",):
        command += f" --worker-load {','.join(setting['worker_load'])}"
    state = "beside other processes" if any(figures["disturbed"] for figures in group) else "undisturbed"
    what = f"Target `{setting['target']}`, {setting['max_tokens']} tokens a completion, every arm beside a drafting"
    command += f" --max-tokens {setting['max_tokens']} --prompts FILE --limit N"
    return f"{what}\nneighbour or its own worker, {state}:\n\n```\n{command}\n```"


def _rows(every: Sequence[Figures], *, with_load: bool) -> list[str]:
    head = ("draft", "round trip", "prefer", "÷ k = 2", "÷ best k", "÷ better", "whole ÷ k = 2", "draft passes")
    lines = markdown(head, [])
    for figures in every:
        for row in figures["rows"]:
            decoding, whole = row["decoding"], row["whole"]
            place = f"{row['rtt_ms']:g} ms" + (f", {row['load']}" if with_load else "")
            lines.append(line((
                figures["setting"]["draft"], place, row["prefer"], ratio(decoding, "k2"),
                f"{decoding['best']['median']:.2f}", f"{decoding['better']['median']:.2f}",
                f"{whole['k2']['median']:.2f}", f"{row['passes_to_k2']:.2f}",
            )))  # fmt: skip
    return lines


def worst(every: Sequence[Figures]) -> str:
    """A row for each case."""
    head = ("draft", "case", "prompts", "plain ms", "adaptive ms", "ratio", "p90", "above 1.02")
    lines = markdown(head, [])
    for figures in every:
        for name, row in figures["cases"].items():
            base = row[row["base"]]
            lines.append(line((
                figures["setting"]["draft"], name + ("*" if row["base"] != "plain" else ""), row["prompts"],
                f"{base['ms_per_token']:.1f}", f"{row['ms_per_token']:.1f}", f"{base['ratio']:.3f}",
                f"{base['ratio_p90']:.3f}", base["above_limit"],
            )))  # fmt: skip
    return "\n".join(lines)


def simulator(every: Sequence[Figures]) -> str:
    """Live and simulated ratios to co-located k = 2."""
    lines = markdown(("models", "arm", "prompts", "live", "simulated", "points", "own times", "points"), [])
    for figures in every:
        setting = figures["setting"]
        for row in figures["rows"]:
            lines.append(line((
                f"{setting['target']}, {setting['draft']}", row["arm"], row["prompts"], f"{row['live']:.3f}",
                f"{row['sim']:.3f}", f"{row['points']:+.1f}", f"{row['own']:.3f}", f"{row['points_own']:+.1f}",
            )))  # fmt: skip
    return "\n".join(lines)


WRITERS: Mapping[str, tuple[str, Callable[[Sequence[Figures]], str]]] = {
    "summary": ("places", summary), "places": ("places", places), "loads": ("loads", loads), "worst": ("worst", worst),
    "simulator": ("simulator", simulator),
}  # fmt: skip
"""Of each block the kind of results that it shows, and what writes it."""


def line(cells: Sequence[object]) -> str:
    """One row of Markdown."""
    return f"| {' | '.join(map(str, cells))} |"


def markdown(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """A table's lines."""
    return [line(head), line(["---"] * len(head)), *map(line, rows)]


def written(text: str, results: Mapping[str, Sequence[Figures]]) -> str:
    """The document with every block that has results written from them."""

    def block(found: re.Match[str]) -> str:
        kind, write = WRITERS[found[2]]
        body = f"\n{write(results[kind])}\n\n" if results.get(kind) else found[3]
        return found[1] + body + found[4]

    return BLOCK.sub(block, text)


def read(folder: Path) -> dict[str, list[Figures]]:
    """All results by block, in the order of their names."""
    found: dict[str, list[Figures]] = {}
    for path in sorted(folder.glob("*.json")):
        figures = json.loads(path.read_text())
        found.setdefault(kind_of(figures), []).append(figures)
    return found


def take(path: Path, folder: Path) -> Path:
    """Copies a result without its runs; returns the new path. Raises ConfigError naming the file."""
    try:
        figures = json.loads(path.read_text())
        kept = {name: value for name, value in figures.items() if name != "runs"}
        out = folder / name_of(kept)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ConfigError) as error:
        raise ConfigError(f"{path} cannot be taken: {error}") from None
    folder.mkdir(parents=True, exist_ok=True)
    verbs.write_json(out, kept)
    return out


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 1 where `--check` finds a block that differs."""
    parser = argparse.ArgumentParser(prog="python -m tools.results", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, metavar="OUT", help="results to take")
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.set_defaults(run=write)
    return verbs.run(parser, arguments)


def write(options: argparse.Namespace) -> int:
    """Raises ConfigError for a file that cannot be taken."""
    for path in options.files:
        print(f"taken: {take(path, RESULTS).relative_to(ROOT)}")
    results, differ = read(RESULTS), []
    for name in DOCUMENTS:
        path = ROOT / name
        text = path.read_text()
        new = written(text, results)
        if new != text:
            differ.append(name)
            if not options.check:
                path.write_text(new)
    print(f"results: {sum(map(len, results.values()))} files; {'other' if options.check else 'written'}: {differ}")
    return 1 if options.check and differ else 0


if __name__ == "__main__":
    sys.exit(main())
