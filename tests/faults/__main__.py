"""`python -m tests.faults`: every scenario, a line each; exit code 1 if a bound did not hold.

Rows run alone with `--only 7` or `--only "5 % loss,killed"`. With `--tight` the target has a small KV cache. With
`--json OUT` the table is written after each row, and as Markdown beside it.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Sequence
from pathlib import Path

from edgespec.core.errors import ConfigError
from edgespec_lab import verbs
from tests.faults.run import Report, Scenes
from tests.faults.scene import Scene
from tests.faults.table import TABLE, Scenario


def chosen(only: str) -> list[tuple[int, Scenario]]:
    """Rows and their numbers, from 1, that one of the parts of `only`, between commas, names: a number or a text."""
    parts = [part.strip() for part in only.split(",")]
    return [
        (number, row)
        for number, row in enumerate(TABLE, 1)
        if any(str(number) == part if part.isdigit() else part in row.name for part in parts)
    ]


def run_rows(options: argparse.Namespace) -> int:
    """Runs the chosen rows. Raises ConfigError."""
    rows = chosen(options.only)
    if not rows:
        raise ConfigError(f"No row has the number or text `{options.only}`; --list shows all.")
    if options.list:
        print("\n".join(f"{number:2} {row.name}" for number, row in rows))
        return 0
    report = Report(options.json)
    with Scenes(functools.partial(Scene, tight=options.tight)) as scenes:
        for number, row in rows:
            print(report.add(number, row, scenes.run(row)), flush=True)
    print(f"{len(rows) - report.failed} of {len(rows)} scenarios held their bounds")
    return int(report.failed > 0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument(
        "--only", default="", metavar="N|TEXT[,...]", help="the rows of these numbers, or with one of these texts"
    )
    parser.add_argument("--list", action="store_true", help="print the rows and run none")
    parser.add_argument("--tight", action="store_true", help="with a small KV cache, under `exact`")
    parser.add_argument(
        "--json", type=Path, metavar="OUT", help="write the table here after each row, OUT.md beside it"
    )
    parser.set_defaults(run=run_rows)
    return verbs.run(parser, arguments)


if __name__ == "__main__":
    sys.exit(main())
