"""`python -m tools.fuzz`: nothing from outside makes anything fail.

Most cases are inputs of decoders: valid ones with a few mutations, and arbitrary bytes. Others are
bodies over the whole parameter space of both endpoints, decoded, sampled and ranked by the real code over
rows of ordinary and extreme logits, some through the whole gateway with a hostile worker; requests made from its
OpenAPI document; and rounds of answers under every policy, with frames of anything that the shape checks let in.
Exit code 1 at the first failure, with the name of the case, which `--case` repeats.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence

from rich.console import Console

from edgespec_lab.demo.scene import progress
from edgespec_lab.options import number, output
from tools.fuzz import api_cases, run

LIMIT = 10**9


def main(argv: Sequence[str] | None = None) -> int:
    """Runs what was asked for; see the module."""
    args = parse(argv)
    os.environ["OMP_NUM_THREADS"] = "1"
    if args.case:
        return _repeat(args.case)

    console = Console(stderr=True)
    began = time.monotonic()
    seen = Counter[str]()
    cases = Counter[str]()
    with progress(console) as bar:
        task = bar.add_task("fuzz", total=args.cases)

        def done(result: run.Result) -> None:
            seen.update({f"{result.piece.kind} {what}": count for what, count in result.seen.items()})
            cases[result.piece.kind] += result.piece.cases
            bar.advance(task, result.piece.cases)

        failure = run.run(run.pieces(args.cases, args.seed, args.kind or list(run.KINDS)), args.jobs, done)
    report = {
        "ok": failure is None, "seed": args.seed, "cases": dict(cases), "seen": dict(sorted(seen.items())),
        "seconds": round(time.monotonic() - began, 1), "failure": failure,
    }  # fmt: skip
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    for what, count in sorted(seen.items()):
        print(f"{count:>10,}  {what}")
    if failure is not None:
        print(f"{failure[1]}\nFAILED: python -m tools.fuzz --case {failure[0]}")
        return 1

    kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(cases.items()))
    print(f"{sum(cases.values()):,} cases ({kinds}) with seed {args.seed} in {report['seconds']:,} s: nothing failed")
    return 0


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.fuzz", description=__doc__)
    parser.add_argument("--cases", type=number(int, 1, LIMIT), default=20_000, help="default %(default)s")
    parser.add_argument("--kind", action="append", choices=run.KINDS, help="only this one; may be given several times")
    parser.add_argument("--seed", type=number(int, 0, LIMIT), default=1, help="the same one repeats a run exactly")
    parser.add_argument("--jobs", type=number(int, 1, 256), default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--json", type=output, metavar="OUT", help="write the counts here")
    parser.add_argument("--case", metavar="NAME", help="repeat one case, as a failure names it")
    return parser.parse_args(argv)


def _repeat(name: str) -> int:
    """Runs one case, showing what it is; lets its exception through."""
    if name.split(":")[1] == "api":
        print(api_cases.shown(name))
    print(dict(run.one(name)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
