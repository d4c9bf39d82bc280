"""`python -m tools.bench [NAME ...]`: runs one benchmark, or all of them in turn with their defaults.

A benchmark is a module here with a docstring, `add_arguments(parser)` and `run(options) -> exit status`.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module

NAMES = ("frames", "rounds", "target")


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit status of the benchmark, or the first bad one of all."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(prog="python -m tools.bench", description="Times the host side; all by default.")
    commands = parser.add_subparsers(dest="name", metavar="NAME")
    for name in NAMES:
        module = import_module(f"tools.bench.{name}")
        command = commands.add_parser(name, help=(module.__doc__ or "").partition("\n")[0])
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    chosen = [parser.parse_args(arguments)] if arguments else [parser.parse_args([name]) for name in NAMES]
    statuses = [int(options.run(options)) for options in chosen]
    return next((status for status in statuses if status), 0)


if __name__ == "__main__":
    sys.exit(main())
