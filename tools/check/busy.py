"""`python -m tools.check.busy [--runs N] -- COMMAND...`: runs a command again and again while no core is free.

Beside it a process on each core does nothing but count. Exit code 1 if a run failed, with the lines of its output
that say what.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from edgespec_lab.options import number

BUSY = "while True: pass"
MAX_RUN_S = 3600.0
"""A run that takes longer hangs; a suite of a few minutes takes two or three times as long here."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.check.busy", description=__doc__)
    parser.add_argument("--runs", type=number(int, 1, 1000), default=10, help="default %(default)s")
    parser.add_argument("--loops", type=number(int, 0, 256), default=os.cpu_count() or 1, help="default: one a core")
    parser.add_argument("command", nargs="+", metavar="COMMAND")
    args = parser.parse_args(argv)
    failed = 0
    with busy(args.loops):
        for run in range(1, args.runs + 1):
            began = time.monotonic()
            code, output = outcome(args.command)
            failed += code != 0
            print(f"run {run} of {args.runs}: exit code {code} after {time.monotonic() - began:.0f} s", flush=True)
            if code:
                print("\n".join(faults(output)), flush=True)
    print(f"{failed} of {args.runs} runs failed beside {args.loops} busy loops")
    return int(failed > 0)


@contextmanager
def busy(loops: int) -> Iterator[None]:
    """So many processes that only count, at ordinary priority; gone at the end."""
    running = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(loops)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def outcome(command: Sequence[str]) -> tuple[int, str]:
    """Exit code and output of one run; 124 for one that took too long."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=MAX_RUN_S, check=False)
    except subprocess.TimeoutExpired:
        return 124, f"FAILED: no end within {MAX_RUN_S:g} s"
    return done.returncode, done.stdout + done.stderr


def faults(output: str) -> list[str]:
    """The lines that name failed tests and their errors, or the last ones if there is none."""
    lines = output.splitlines()
    return [line for line in lines if line.startswith(("FAILED", "ERROR", "E  "))] or lines[-20:]


if __name__ == "__main__":
    sys.exit(main())
