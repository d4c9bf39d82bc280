"""`python -m tools.sidechannel`: how often an observer of our TLS stream finds out which known prompt was asked.

Real gateways, one for each value of `api.stream`, answer the same requests in turns behind a TLS proxy. The observer
has sizes and times of TLS records to the client, and has profiled the same prompts before with other seeds.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from edgespec.lab.demo.scene import PROMPTS, progress, read_lines
from tools import options, verbs
from tools.sidechannel import judge
from tools.sidechannel.record import ARMS, MODES, Cell, load, record, save, scene
from tools.sim.record import PROMPTS as MORE_PROMPTS


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    return verbs.run(parser(), argv)


def parser() -> argparse.ArgumentParser:
    """What is asked, and where the records go."""
    made = argparse.ArgumentParser(prog="python -m tools.sidechannel", description=__doc__)
    made.add_argument(
        "--cells", nargs="+", type=_cell, metavar="ARM@TEMPERATURE", help=f"of the arms {', '.join(ARMS)}",
        default=[_cell(cell) for cell in ("off@0.3", "local@0.3", "worker@0.3", "local@1")],
    )  # fmt: skip
    made.add_argument("--prompts", nargs="+", type=Path, default=[MORE_PROMPTS, PROMPTS], metavar="FILE")
    made.add_argument("--limit", type=options.number(int, 2, 1000), default=50, help="prompts (default 50)")
    made.add_argument("--profiles", type=options.number(int, 2, 100), default=6, help="of each prompt (default 6)")
    made.add_argument("--tokens", type=options.number(int, 1, 4096), default=48, help="of a completion (default 48)")
    made.add_argument("--records", type=options.output, metavar="OUT", help="write all records to this file")
    made.add_argument("--judge", type=Path, metavar="FILE", help="only judge records that were written before")
    made.set_defaults(run=run)
    return made


def run(args: argparse.Namespace) -> int:
    """Records, unless that was done before, and prints a table."""
    rows = load(args.judge) if args.judge else _recorded(args)
    if args.records:
        save(args.records, rows)
    cells = dict.fromkeys((row["arm"], row["temperature"]) for row in rows)
    verbs.console().print(verbs.table([_figures(rows, *cell) for cell in cells]))
    return 0


def _recorded(args: argparse.Namespace) -> list[judge.Row]:
    prompts = [line.prompt for path in args.prompts for line in read_lines(path)][: args.limit]
    with tempfile.TemporaryDirectory() as folder, progress(Console(stderr=True)) as bar:
        total = len(prompts) * args.profiles * len(args.cells) * len(MODES)
        with scene(Path(folder), MODES) as scenes:
            made = record(scenes, args.cells, prompts, range(args.profiles), args.tokens)
            return list(bar.track(made, total, description="completions"))


def _figures(rows: Sequence[judge.Row], arm: str, temperature: float) -> dict[str, Any]:
    """One line: accuracy with its 95 % interval, and medians of the even form's times over the other's."""
    own = [row for row in rows if (row["arm"], row["temperature"]) == (arm, temperature)]
    by_mode = {mode: [row for row in own if row["mode"] == mode] for mode in MODES}
    made, even = by_mode.values()
    pairs = [(a, b) for a, b in zip(made, even, strict=True) if a["text"] == b["text"]]
    ratios = {what: judge.median_ratio((a[key], b[key]) for a, b in pairs) for key, what in TIMES.items()}
    rounds = sum(row["rounds"] for row in made)
    return {
        "arm": arm, "T": temperature, "chance": f"{1 / len({row['prompt'] for row in own}):.1%}",
        **{mode: _share(*judge.hits(some)) for mode, some in by_mode.items()},
        **{what: f"{ratio:.3f}" for what, ratio in ratios.items()},
        "equal texts": f"{len(pairs)} of {len(made)}",
        "tokens a round": f"{sum(row['tokens'] for row in made) / max(1, rounds):.2f}",
    }  # fmt: skip


TIMES = {"first_s": "first text", "text_s": "last text", "end_s": "end mark"}


def _share(found: int, of: int) -> str:
    low, high = judge.interval(found, of)
    return f"{found / of:.1%} ({low:.1%} to {high:.1%})"


def _cell(text: str) -> Cell:
    arm, _, temperature = text.partition("@")
    return Cell(options.known(list(ARMS), "arm")(arm), options.number(float, 0, 2)(temperature))


if __name__ == "__main__":
    sys.exit(main())
