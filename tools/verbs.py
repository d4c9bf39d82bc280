"""One command with verbs: `python -m tools.PACKAGE [VERB] [OPTION ...]`.

A verb is a module of the package with a docstring, `add_arguments(parser)` and `run(options) -> exit status`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console

from edgespec.core.errors import EdgespecError


def command(package: str, names: Sequence[str], about: str) -> argparse.ArgumentParser:
    """The parser of a package's verbs; the chosen verb's `run` is in the parsed options."""
    parser = argparse.ArgumentParser(prog=f"python -m {package}", description=about)
    verbs = parser.add_subparsers(dest="name", metavar="VERB", required=True)
    for name in names:
        module = import_module(f"{package}.{name}")
        about = module.__doc__ or ""
        verb = verbs.add_parser(name, help=about.partition("\n")[0], description=about)
        module.add_arguments(verb)
        verb.set_defaults(run=module.run)
    return parser


def run(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> int:
    """Runs one verb. A failure of the project's own is one sentence on standard error and its exit status."""
    options = parser.parse_args(arguments)
    try:
        return int(options.run(options))
    except EdgespecError as error:
        print(error, file=sys.stderr)
        return error.exit_code


def console() -> Console:
    """Where tables go: as wide as the terminal, or 120 columns in a file."""
    return Console() if sys.stdout.isatty() else Console(width=120)


def write_json(path: Path | None, report: Any) -> None:
    """Writes a report where one was asked for."""
    if path is not None:
        path.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
