"""Builds the wheel, installs it, runs what the pages show, and prints a table: `python -m tools.check.wheel`."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import get_args

from edgespec_lab import verbs
from tools.check.commands import END, PREFIXES, WORD, verbs_of
from tools.check.docs import CODE, load_parsers, prose_and_code
from tools.check.wheel import __doc__ as about
from tools.check.wheel.place import ROOT, Place, Row, Versions, add_lab, build, install
from tools.check.wheel.scenario import EXCUSED, alone, play

PAGES = (
    "README",
    *(f"docs/{page}" for page in ("worker", "gateway", "models", "traces", "api")),
)
"""The pages that show commands to type; one that belongs to a part goes with the part."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.check.wheel", description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--versions", choices=get_args(Versions), default="newest", help="of the packages")
    parser.add_argument("--long", action="store_true", help="also what takes minutes: demo and tune")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="an empty folder, kept with environments and logs")
    parser.set_defaults(run=check)
    return verbs.run(parser, argv)


def check(options: argparse.Namespace) -> int:
    """Prints the table; returns 1 if a command failed or a shown one was not run. Raises ConfigError."""
    rows: list[Row] = []
    with ExitStack() as closing:
        folder = options.keep or Path(closing.enter_context(tempfile.TemporaryDirectory(prefix="edgespec-wheel-")))
        wheel = build(folder)
        places = {}
        for extra in ("worker", "gateway"):
            print(f"installing {wheel.name}[{extra}], {options.versions} packages", flush=True)
            home = folder / f"{extra}-home"
            home.mkdir()
            programs = install(wheel, extra, options.versions, folder / extra)
            places[extra] = Place(extra, home, programs, folder / "cache", rows)
        add_lab(folder, places["gateway"].bin)
        alone(places["worker"])
        play(places["worker"], places["gateway"], long=options.long)
    ran = {verb_path(row.command.split()) for row in rows}
    missing = sorted(" ".join(one) for one in shown() - ran - EXCUSED.keys())
    unneeded = sorted(" ".join(one) for one in EXCUSED.keys() - shown())
    print("| installed with | command | printed | exit code |\n| --- | --- | --- | --- |")
    for row in rows:
        code = f"{row.code}" if row.right else f"**{row.code}**"
        command, said = (text.replace(str(folder), "DIR").replace("|", " ") for text in (row.command, row.said))
        print(f"| {row.place} | `{command}` | {said[:100]} | {code} |")
    for excused, why in EXCUSED.items():
        print(f"not run: {' '.join(excused)} ({why})")
    for one in missing:
        print(f"shown by a page and not run: {one}", file=sys.stderr)
    for one in unneeded:
        print(f"excused, and shown by no page: {one}", file=sys.stderr)

    return int(bool(missing) or bool(unneeded) or not all(row.right for row in rows))


def shown() -> set[tuple[str, ...]]:
    """The programs and verbs that the pages show."""
    found = set()
    pages = [ROOT / f"{page}.md" for page in PAGES]
    for page in filter(Path.exists, pages):
        prose, code = prose_and_code(page.read_text())
        for line in [*CODE.findall(prose), *code]:
            found |= set(map(verb_path, commands(line)))
    return {path for path in found if len(path) > 1}


def commands(line: str) -> Iterator[list[str]]:
    """The project's commands in a line of code, as words."""
    words = line.split()
    while words and words[0] in PREFIXES:
        words = words[1:]
    if words and words[0] in PROGRAMS:
        yield words[: next((n for n, word in enumerate(words) if END.match(word)), len(words))]


def verb_path(words: Sequence[str]) -> tuple[str, ...]:
    """Program, verb and further verbs of a command."""
    parser = PROGRAMS.get(words[0])
    path = [words[0]]
    for word in words[1:]:
        if parser is None or not WORD.match(word) or word not in verbs_of(parser):
            break
        parser = verbs_of(parser)[word]
        path.append(word)

    return tuple(path)


PROGRAMS = load_parsers()

if __name__ == "__main__":
    sys.exit(main())
