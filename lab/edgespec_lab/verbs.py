"""One command with verbs: `python -m tools.PACKAGE [VERB] [OPTION ...]`.

A verb is a module of the package with a docstring, `add_arguments(parser)` and `run(options) -> exit status`.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console
from rich.table import Table

from edgespec.core.errors import EdgespecError


@dataclass(frozen=True)
class Verb:
    """A verb that is not a module of its own."""

    name: str
    text: str
    """One line for the help."""
    add_arguments: Callable[[argparse.ArgumentParser], object]
    run: Callable[[argparse.Namespace], int]

    @classmethod
    def of(cls, name: str, module: Any) -> Verb:
        """A module as a verb."""
        return cls(name, (module.__doc__ or "").partition("\n")[0], module.add_arguments, module.run)


def command(package: str, verbs: Iterable[str | Verb], about: str) -> argparse.ArgumentParser:
    """The parser of verbs: modules of the package where only named. The chosen one's `run` is in the options."""
    parser = argparse.ArgumentParser(prog=f"python -m {package}", description=about)
    commands = parser.add_subparsers(dest="name", metavar="VERB", required=True)
    for one in verbs:
        verb = one if isinstance(one, Verb) else Verb.of(one, import_module(f"{package}.{one}"))
        made = commands.add_parser(verb.name, help=verb.text, description=verb.text)
        verb.add_arguments(made)
        made.set_defaults(run=verb.run)

    return parser


def run(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> int:
    """Runs one verb, or a command whose parser has its `run` among the defaults. A failure of the project's own is one
    sentence on standard error and its exit status."""
    options = parser.parse_args(arguments)
    before = signal.signal(signal.SIGTERM, _terminated)
    try:
        return int(options.run(options))
    except EdgespecError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminated(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # another one does not disturb that
    sys.exit(128 + signal.SIGTERM)  # so that the processes of a rig are ended, too


@contextmanager
def asked_to_end() -> Iterator[list[int]]:
    """Holds SIGINT and SIGTERM back, as the signals that came; a second one ends the process as it would have at first.

    For work that can keep what it has: it looks between two steps, and ends.
    """
    came: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        came.append(number)
        for other, handler in before.items():
            signal.signal(other, handler)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def console() -> Console:
    """Where tables go: as wide as the terminal, or 120 columns in a file."""
    if sys.stdout.isatty():
        return Console()
    return Console(width=120)


def table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """At least one row, all with the same keys: these are the head."""
    shown = Table(*rows[0])
    for row in rows:
        shown.add_row(*map(str, row.values()))
    return shown


def print_json(report: Any, path: Path | None) -> None:
    """Prints a report, and writes it where that was asked for."""
    print(json.dumps(report, indent=2))
    write_json(path, report)


def write_json(path: Path | None, report: Any) -> None:
    """Writes a report where one was asked for."""
    if path is not None:
        path.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")


class Kept:
    """Measured figures by key; each is written at once to a file, which is read again if it is there."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known = dict[tuple[Any, ...], Any]()
        for line in path.read_text().splitlines() if path.exists() else ():
            with suppress(json.JSONDecodeError):  # the last line of a run that was cut off
                one = json.loads(line)
                self._known[tuple(one["key"])] = one["v"]

    def __contains__(self, key: tuple[Any, ...]) -> bool:
        return key in self._known

    def get(self, key: tuple[Any, ...], measure: Callable[[], Any]) -> Any:
        """What was measured before, or is now."""
        if key not in self._known:
            self._known[key] = measure()
            with self._path.open("a") as file:
                file.write(json.dumps({"key": key, "v": self._known[key]}) + "\n")
        return self._known[key]
