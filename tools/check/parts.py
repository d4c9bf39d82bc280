"""`python -m tools.check.parts` removes each part from a fresh copy of the tree and tests what is left.

A part is removed as docs/architecture.md says: its folders, its tests and tools, the pages of docs/ that its docstring
names, and its lines in the lists of parts. What is left must pass ruff, both programs must start, every module of the
core must be importable, every test must be collected, and the unit tests of the core must pass. `--types` adds mypy.
`--whole NAME` adds for one part the checks of format, sizes, structure and layers, all unit tests, and a chat with a
paired worker on real models. Documents and claims are not checked without the part: they speak of the whole product.

The table has the part's lines and tokens, the files outside of it that name it, and the seconds that the steps took.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from tools.check.budget import Density, density, python_sources
from tools.check.core import PROGRAMS, PartFolders, naming, part_folders

CORES = len(os.sched_getaffinity(0))
PAGE = re.compile(r"docs/[\w-]+\.md")
LINE_LENGTH = 120
OUTPUT_LINES = 30
"""The last lines of a step that failed, which are shown."""
UNIT_TESTS = ("tests/cloud_gateway/core", "tests/edgespec/core", "tests/cloud_gateway/process", "tests/test_layers.py")
"""Tests of the core that end within about a minute; the other unit tests belong to `--whole`."""
UNIT_TESTS_IN_PARALLEL = ("pytest", "-q", "-m", "not live", "-n", str(CORES + 1), "--dist", "worksteal")
"""As in `make test`: some tests wait."""
NEEDS_ALL_PARTS = "tests/test_surfaces.py::test_what_is_listed_is_used_by_another_package"
"""Of the tests of `--whole`, the one that is left out: names which only the part imported stay public for others."""
CHAT = "tests/live/test_main_job.py::test_remote_drafts_save_passes_and_change_nothing"
IMPORT_ALL = """\
import importlib, pathlib
for path in sorted(pathlib.Path().glob("*/**/*.py")):
    if path.parts[0] in ("cloud_gateway", "edgespec") and path.stem != "__main__":
        importlib.import_module(".".join(path.with_suffix("").parts).removesuffix(".__init__"))
"""


@dataclass(frozen=True, slots=True)
class Step:
    """A command that must succeed without the part; it runs in the copy."""

    name: str
    command: Sequence[str]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a step ended."""

    step: str
    seconds: float
    passed: bool
    output: str
    """The last lines, if it failed."""


@dataclass(frozen=True, slots=True)
class Removal:
    """One part: its size, who names it, and how the steps ended without it."""

    part: str
    code_lines: int
    tokens: int
    named_by: tuple[str, ...]
    outcomes: tuple[Outcome, ...]

    @property
    def seconds(self) -> float:
        return sum(outcome.seconds for outcome in self.outcomes)

    @property
    def failed(self) -> tuple[str, ...]:
        """The names of the steps that failed."""
        return tuple(outcome.step for outcome in self.outcomes if not outcome.passed)


def python(*arguments: str) -> tuple[str, ...]:
    """A command of this interpreter."""
    return (sys.executable, "-m", *arguments)


def quick_steps(*, with_types: bool) -> list[Step]:
    """The steps that test the tree without any one part."""
    steps = [
        Step("ruff", python("ruff", "check", "--quiet", ".")),
        Step("gateway starts", python("cloud_gateway", "--help")),
        Step("worker starts", python("edgespec", "--help")),
        Step("imports", (sys.executable, "-c", IMPORT_ALL)),
        Step("collection", python("pytest", "-q", "--collect-only", "tests")),
        Step("unit tests", python("pytest", "-q", "-x", "-m", "not live", *UNIT_TESTS)),
    ]
    if with_types:
        steps.insert(1, Step("mypy", python("mypy")))
    return steps


def whole_steps() -> list[Step]:
    """The steps that test the tree without a part of `--whole`."""
    return [
        Step("format", python("ruff", "format", "--check", "--quiet", ".")),
        *quick_steps(with_types=True)[:-1],
        Step("sizes", python("tools.check.sizes")),
        Step("structure", python("tools.check.structure")),
        Step("all unit tests", python(*UNIT_TESTS_IN_PARALLEL, "--deselect", NEEDS_ALL_PARTS, "tests")),
        Step("chat", python("pytest", "-q", "-m", "live", CHAT)),
    ]


def copy_tree(root: Path, target: Path) -> None:
    """Copies the tracked files and the new ones that git does not ignore; the copy is a repository, too."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        source = root / name
        if source.is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name)

    # The checks ask git for the list of files, and the tools that write results for the commit: an empty one.
    subprocess.run(["git", "init", "--quiet"], cwd=target, check=True)
    by = ("-c", "user.name=parts", "-c", "user.email=parts@localhost")
    subprocess.run(["git", *by, "commit", "--quiet", "--allow-empty", "--message=a copy"], cwd=target, check=True)


def remove(part: PartFolders, root: Path) -> None:
    """Removes a part from a tree: folders, tests, tools, pages, and its lines in the lists of parts."""
    for folder in part.folders:
        documentation = ast.get_docstring(ast.parse((root / folder / "__init__.py").read_text())) or ""
        for page in PAGE.findall(documentation):
            (root / page).unlink(missing_ok=True)

    for folder in (*part.folders, part.tests, part.tools):
        shutil.rmtree(root / folder, ignore_errors=True)

    for package in (*PROGRAMS, "tools"):
        path = root / package / "parts" / "__init__.py"
        if path.exists():
            path.write_text(without(part.name, path.read_text()))


def without(name: str, source: str) -> str:
    """The text of a list of parts without one of them: neither imported nor an element of PARTS."""
    lines = source.splitlines(keepends=True)

    # From the last statement to the first, so that the numbers of the lines above stay true.
    for node in reversed(ast.parse(source).body):
        replaced: list[str] | None = None
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            replaced = import_without(name, node)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Tuple):
            replaced = tuple_without(name, node, node.value)

        if replaced is not None:
            lines[node.lineno - 1 : node.end_lineno] = replaced

    return "".join(lines)


def import_without(name: str, node: ast.ImportFrom) -> list[str] | None:
    """The lines of an import without a part; None if it does not import the part."""
    module = node.module or ""
    if module.endswith(f".parts.{name}"):
        return []
    if not module.endswith(".parts"):
        return None

    kept = [alias for alias in node.names if alias.name != name]
    if len(kept) == len(node.names):
        return None
    if not kept:
        return []

    statement = ast.unparse(ast.ImportFrom(node.module, kept, node.level))
    if len(statement) <= LINE_LENGTH:
        return [f"{statement}\n"]

    return [f"from {module} import (\n", *(f"    {ast.unparse(alias)},\n" for alias in kept), ")\n"]


def tuple_without(name: str, node: ast.AnnAssign, value: ast.Tuple) -> list[str] | None:
    """The lines of the list itself without a part; None if the part is not in it."""
    elements = [ast.unparse(element) for element in value.elts]
    kept = [element for element in elements if name not in element.split(".") and element != name.upper()]
    if len(kept) == len(elements):
        return None

    head = f"{ast.unparse(node.target)}: {ast.unparse(node.annotation)} ="
    if not kept:
        return [f"{head} ()\n"]
    if len(kept) == 1 and len(statement := f"{head} ({kept[0]},)") <= LINE_LENGTH:
        return [f"{statement}\n"]

    return [f"{head} (\n", *(f"    {element},\n" for element in kept), ")\n"]


def run_step(step: Step, folder: Path) -> Outcome:
    """Runs one command in the copy."""
    started = time.monotonic()
    done = subprocess.run(
        step.command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    seconds = time.monotonic() - started

    passed = done.returncode == 0
    output = "" if passed else "\n".join(done.stdout.splitlines()[-OUTPUT_LINES:])
    return Outcome(step.name, round(seconds, 1), passed, output)


def remove_and_test(part: PartFolders, root: Path, steps: Sequence[Step], named_by: Iterable[str]) -> Removal:
    """Removes a part from a fresh copy of `root` and runs the steps there."""
    size = part_size(part, python_sources(root))
    with tempfile.TemporaryDirectory(prefix=f"without-{part.name}-") as folder:
        copy = Path(folder)
        copy_tree(root, copy)
        remove(part, copy)
        outcomes = tuple(run_step(step, copy) for step in steps)

    return Removal(part.name, size.code_lines, size.tokens, tuple(sorted(named_by)), outcomes)


def part_size(part: PartFolders, sources: Mapping[str, str]) -> Density:
    """The counts of a part's code, without its tests."""
    size = Density()
    for path, source in sources.items():
        if path.startswith(tuple(f"{folder}/" for folder in part.folders)):
            size.add(density(source))
    return size


def table(removals: Sequence[Removal]) -> str:
    """One line for each part."""
    rows = [f"{'part':24} {'lines':>6} {'tokens':>7} {'named by':>8} {'seconds':>7}  without it"]
    for removal in removals:
        verdict = "all pass"
        if removal.failed:
            verdict = f"fails: {', '.join(removal.failed)}"
        rows.append(
            f"{removal.part:24} {removal.code_lines:6} {removal.tokens:7} {len(removal.named_by):8}"
            f" {removal.seconds:7.0f}  {verdict}"
        )

    return "\n".join(rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the table; returns 1 if something fails without a part, 64 for a part that does not exist."""
    parser = argparse.ArgumentParser(prog="python -m tools.check.parts")
    parser.add_argument("parts", nargs="*", metavar="NAME", help="parts to remove (default: each part)")
    parser.add_argument("--whole", action="append", default=[], metavar="NAME", help="a part to test by all unit tests")
    parser.add_argument("--types", action="store_true", help="run mypy without each part")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures and outputs to this file")
    arguments = parser.parse_args(argv)

    root = Path().resolve()
    parts = part_folders(root)
    known = {part.name for part in parts}
    chosen = {*arguments.parts, *arguments.whole} if arguments.parts else known
    unknown = {*arguments.parts, *arguments.whole} - known
    if unknown:
        print(f"There is no part {', '.join(sorted(unknown))}.", file=sys.stderr)
        return 64

    files = naming(parts, python_sources(root))

    def tested(part: PartFolders, steps: Sequence[Step]) -> Removal:
        done = remove_and_test(part, root, steps, files[part.name])
        print(f"{part.name}: {done.seconds:.0f} s", file=sys.stderr)
        return done

    # The quick steps use one core; all unit tests use each of them.
    quick = [part for part in parts if part.name in chosen and part.name not in arguments.whole]
    with ThreadPoolExecutor(CORES) as pool:
        removals = list(pool.map(lambda part: tested(part, quick_steps(with_types=arguments.types)), quick))
    removals += [tested(part, whole_steps()) for part in parts if part.name in arguments.whole]

    print(table(removals))
    for removal in removals:
        for outcome in removal.outcomes:
            if not outcome.passed:
                print(f"\nwithout {removal.part}, {outcome.step} fails:\n{outcome.output}", file=sys.stderr)
    if arguments.json is not None:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps([asdict(removal) for removal in removals], indent=2) + "\n")

    if any(removal.failed for removal in removals):
        return 1

    return 0


if __name__ == "__main__":
    sys.exit(main())
