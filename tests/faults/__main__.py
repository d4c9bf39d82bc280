"""`python -m tests.faults`: every scenario, a line each; exit code 1 where a bound did not hold."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from tests.faults.run import run
from tests.faults.scene import Scene
from tests.faults.table import TABLE


def main() -> int:
    """Runs the table, or the rows whose names contain `--only`."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--only", default="", metavar="TEXT", help="rows whose names contain this")
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write the figures here")
    options = parser.parse_args()
    rows = [row for row in TABLE if options.only in row.name]
    outcomes = []
    with tempfile.TemporaryDirectory() as folder, Scene(Path(folder)) as scene:
        for number, row in enumerate(rows, 1):
            one = run(scene, row)
            outcomes.append(one)
            figures = (
                f"stall {one.stall_s:5.2f} of {row.stall_s:g} s, recovery {one.recovery_s:5.2f} of {row.recovery_s:g} s"
            )
            print(f"{number:2}/{len(rows)} {row.name:58} {figures} {'; '.join(one.faults) or 'ok'}", flush=True)
    if options.json:
        options.json.write_text(json.dumps([one.row() for one in outcomes], indent=1) + "\n")
    failed = sum(bool(one.faults) for one in outcomes)
    print(f"{len(outcomes) - failed} of {len(outcomes)} scenarios held their bounds")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
