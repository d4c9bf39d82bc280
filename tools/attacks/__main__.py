"""`python -m tools.attacks [NAME...]`: what each flood costs another client of a real gateway, in one table.

Each flood runs in turns with a control, in which the same party keeps quiet and its process burns as much CPU. Exit
code 1 where a bound is broken: p99 of another key's inter-token latency at most 1.25 times, no completion failed, no
worker given up, the gateway still there, at most 10 KB of log a minute.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from tools import options, verbs
from tools.attacks import measure
from tools.attacks.floods import all_floods
from tools.attacks.report import table
from tools.attacks.runner import ROOT, Runner
from tools.attacks.scene import Scene


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    return verbs.run(parser(), argv)


def attack(args: argparse.Namespace) -> int:
    """Prints a table; 1 where a bound is broken. Raises EdgespecError."""
    console, floods = Console(stderr=True), all_floods()
    if args.list:
        for name, flood in floods.items():
            print(f"{name:18} {flood.sender:9} {flood.text}")
        return 0
    rows: list[dict[str, Any]] = []
    try:
        with tempfile.TemporaryDirectory(prefix="attacks-") as folder:
            console.print(f"starting the gateway and {args.workers} worker(s) of {args.checkout}")
            with Scene(Path(args.keep or folder), args.checkout, args.workers) as scene:
                runner = Runner(scene, args.seconds, console.print, args.control)
                for name in args.names or floods:
                    rows.append(measure.row(runner.run(name, floods[name])))
                    console.print(f"  {_line(rows[-1])}")
                    verbs.write_json(args.json, {"checkout": str(args.checkout), "floods": rows})
    except KeyboardInterrupt:
        console.print("stopped")
    out = Console() if sys.stdout.isatty() else Console(width=200)
    out.print(table(rows))
    return int(any(row["broken"] for row in rows) or not rows)


def parser() -> argparse.ArgumentParser:
    """Names of floods and how long they last."""
    made = argparse.ArgumentParser(prog="python -m tools.attacks", description=__doc__)
    name = options.known(sorted(all_floods()), "flood")
    made.add_argument("names", nargs="*", type=name, metavar="NAME", help="floods of --list (default: all)")
    made.add_argument("--list", action="store_true", help="print the floods and end")
    made.add_argument(
        "--seconds", type=options.number(float, 2, 600), default=60.0, help="of each flood (default %(default)g)"
    )
    made.add_argument(
        "--control",
        type=options.number(float, 0.1, 10),
        default=1.0,
        help="seconds of control for each second of flood (default %(default)g)",
    )
    made.add_argument("--workers", type=options.number(int, 1, 4), default=1, help="honest ones (default 1)")
    made.add_argument(
        "--checkout", type=Path, default=ROOT, metavar="DIR", help="of the gateway and worker (default: this one)"
    )
    made.add_argument("--json", type=options.output, metavar="OUT", help="write all figures to this file")
    made.add_argument("--keep", type=Path, metavar="DIR", help="leave state and logs in this folder")
    made.set_defaults(run=attack)
    return made


def _line(row: dict[str, Any]) -> str:
    calm, under = row["control"]["p99_ms"], row["under_flood"]["p99_ms"]
    return f"{row['flood']}: p99 {calm} → {under} ms; {'; '.join(row['broken']) or 'all bounds hold'}; {row['sent']}"


if __name__ == "__main__":
    sys.exit(main())
