"""`python -m tools.check.parts` tests what is left of the tree without its parts.

A part is removed as docs/architecture.md says: its folders, its tests and tools, the pages of docs/ that its docstring
names, and its lines in the lists of parts. Three kinds of copies are tested:

- *without one part*, for each: ruff, mypy of the product, both programs start, every module is importable,
  every test is collected.
- *the core and one part*, for each: the part's own tests pass, so it needs no other part.
- *the core alone*, named `core`: the checks of format, sizes and structure, all unit tests, and a chat with a paired
  worker on real models. The unit tests of the core run here once, without any part, and not once for each part:
  `--units` adds some of them to each.

`--whole NAME` tests the tree without one part in the same way as the core alone.
Documents and claims are not checked without parts: they speak of the whole product.

Each copy is a fresh one. Copies that are tested one after the other lie at the same path and have the same compiled
modules and mypy's cache, which lie elsewhere: both are valid as long as a file has the time and size it had.

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
from queue import SimpleQueue

from tools.check.budget import Density, density, python_sources
from tools.check.core import PROGRAMS, PartFolders, is_core, naming, part_folders

CORES = len(os.sched_getaffinity(0))
PAGE = re.compile(r"docs/[\w-]+\.md")
LINE_LENGTH = 120
OUTPUT_LINES = 30
"""The last lines of a step that failed, which are shown."""
UNIT_TESTS = ("tests/cloud_gateway/core", "tests/edgespec/core", "tests/cloud_gateway/process", "tests/test_layers.py")
"""Tests of the core that end within about a minute, for `--units`."""
IN_PARALLEL = ("-n", str(CORES + 1), "--dist", "worksteal")
"""As in `make test`: some tests wait."""
CORE = "core"
"""The name, among those of parts, of the tree without any."""
NEEDS_ALL_PARTS = "tests/test_surfaces.py::test_what_is_listed_is_used_by_another_package"
"""Of all unit tests, the one that is left out: names which only the part imported stay public for others."""
TESTS = ("tests", "integrations/vllm/tests")
CHAT = "tests/live/test_main_job.py::test_remote_drafts_save_passes_and_change_nothing"
IMPORT_ALL = """\
import importlib, pathlib
for path in sorted(pathlib.Path().glob("*/**/*.py")):
    if path.parts[0] in ("cloud_gateway", "edgespec") and path.stem != "__main__":
        importlib.import_module(".".join(path.with_suffix("").parts).removesuffix(".__init__"))
"""


@dataclass(frozen=True, slots=True)
class Step:
    """A command that must succeed in a copy."""

    name: str
    command: Sequence[str]


@dataclass(frozen=True, slots=True)
class Trial:
    """Parts to remove from a fresh copy, and the steps that must succeed there."""

    removed: Sequence[PartFolders]
    steps: Sequence[Step]


@dataclass(frozen=True, slots=True)
class Bench:
    """A place for copies, one after the other: two folders, which exist."""

    copies: Path
    caches: Path
    """Compiled modules and mypy's cache of all copies that were here."""

    @property
    def environment(self) -> Mapping[str, str]:
        """That of a step; what the caller says about compiled modules does not hold."""
        variables = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        return variables | {
            "PYTHONPYCACHEPREFIX": str(self.caches / "modules"),
            "MYPY_CACHE_DIR": str(self.caches / "mypy"),
        }


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
    """One part: its size, who names it, and how the steps of its trials ended. Or the core, after all parts went."""

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

    @property
    def verdict(self) -> str:
        if self.failed:
            return f"fails: {', '.join(self.failed)}"
        return "all pass"


def python(*arguments: str) -> tuple[str, ...]:
    """A command of this interpreter."""
    return (sys.executable, "-m", *arguments)


def quick_steps(*, with_units: bool) -> list[Step]:
    """The steps that test the tree without any one part."""
    steps = [
        Step("ruff", python("ruff", "check", "--quiet", ".")),
        # The lab may import any part, so its types, and those of the tools and tests that use it, need all parts.
        Step("mypy", python("mypy", "-p", "edgespec", "-p", "cloud_gateway")),
        Step("gateway starts", python("cloud_gateway", "--help")),
        Step("worker starts", python("edgespec", "--help")),
        Step("imports", (sys.executable, "-c", IMPORT_ALL)),
        Step("collection", python("pytest", "-q", "--collect-only", *TESTS)),
    ]
    if with_units:
        steps.append(Step("unit tests", python("pytest", "-q", "-x", "-m", "not live", *UNIT_TESTS)))
    return steps


def whole_steps() -> list[Step]:
    """The steps that test the core alone, and the tree without a part of `--whole`."""
    return [
        Step("format", python("ruff", "format", "--check", "--quiet", ".")),
        *quick_steps(with_units=False),
        Step("sizes", python("tools.check.sizes")),
        Step("structure", python("tools.check.structure")),
        Step(
            "all unit tests",
            python("pytest", "-q", "-m", "not live", *IN_PARALLEL, "--deselect", NEEDS_ALL_PARTS, *TESTS),
        ),
        Step("chat", python("pytest", "-q", "-m", "live", CHAT)),
    ]


def own_tests(part: PartFolders, root: Path) -> list[Step]:
    """The step that tests the core with this part and no other; none for a part without tests that are not live."""
    if not (root / part.tests).exists():
        return []
    return [Step("its tests, without the others", python("pytest", "-q", "-x", "-m", "not live", part.tests))]


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


def run_step(step: Step, folder: Path, environment: Mapping[str, str]) -> Outcome:
    """Runs one command in the copy."""
    started = time.monotonic()
    done = subprocess.run(
        step.command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    seconds = time.monotonic() - started

    passed = done.returncode == 0
    output = "" if passed else "\n".join(done.stdout.splitlines()[-OUTPUT_LINES:])
    return Outcome(step.name, round(seconds, 1), passed, output)


def run_trial(trial: Trial, root: Path, bench: Bench) -> tuple[Outcome, ...]:
    """Removes the parts from a fresh copy of `root` and runs the steps there."""
    copy = bench.copies / "tree"
    copy.mkdir()
    try:
        copy_tree(root, copy)
        for part in trial.removed:
            remove(part, copy)

        return tuple(run_step(step, copy, bench.environment) for step in trial.steps)

    finally:
        shutil.rmtree(copy)


def part_size(part: PartFolders, sources: Mapping[str, str]) -> Density:
    """The counts of a part's code, without its tests."""
    size = Density()
    for path, source in sources.items():
        if path.startswith(tuple(f"{folder}/" for folder in part.folders)):
            size.add(density(source))
    return size


def table(removals: Sequence[Removal]) -> str:
    """One line for each part, and for the core."""
    rows = [f"{'without':24} {'lines':>6} {'tokens':>7} {'named by':>8} {'seconds':>7}"]
    for removal in removals:
        rows.append(
            f"{removal.part:24} {removal.code_lines:6} {removal.tokens:7} {len(removal.named_by):8}"
            f" {removal.seconds:7.0f}  {removal.verdict}"
        )

    return "\n".join(rows)


class Tester:
    """Runs the trials of one repository in fresh copies; a context manager, which ends with its copies removed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.parts = part_folders(root)
        self._sources = python_sources(root)
        self._naming = naming(self.parts, self._sources)
        self._folder = tempfile.TemporaryDirectory(prefix="without-parts-")
        self._benches: SimpleQueue[Bench] = SimpleQueue()

        for index in range(CORES):
            bench = Bench(Path(self._folder.name) / f"copies{index}", Path(self._folder.name) / f"caches{index}")
            bench.copies.mkdir()
            bench.caches.mkdir()
            self._benches.put(bench)

    def __enter__(self) -> Tester:
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    def without_part(self, part: PartFolders, steps: Sequence[Step]) -> Removal:
        """The steps without the part, and its own tests with no other part."""

        others = [other for other in self.parts if other != part]
        trials = [Trial([part], steps), Trial(others, own_tests(part, self.root))]
        size = part_size(part, self._sources)
        return self._tested(part.name, size, self._naming[part.name], trials)

    def without_any(self, steps: Sequence[Step]) -> Removal:
        """The steps after all parts went."""
        size = Density()
        for path, source in self._sources.items():
            if is_core(path):
                size.add(density(source))
        return self._tested(CORE, size, (), [Trial(self.parts, steps)])

    def _tested(self, name: str, size: Density, named_by: Iterable[str], trials: Sequence[Trial]) -> Removal:
        bench = self._benches.get()

        outcomes: list[Outcome] = []
        for trial in trials:
            if trial.steps:
                outcomes += run_trial(trial, self.root, bench)
        self._benches.put(bench)

        removal = Removal(name, size.code_lines, size.tokens, tuple(sorted(named_by)), tuple(outcomes))
        print(f"{name}: {removal.seconds:.0f} s, {removal.verdict}", file=sys.stderr)
        return removal


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the table; returns 1 if something fails without a part, 64 for a part that does not exist."""
    parser = argparse.ArgumentParser(prog="python -m tools.check.parts")
    parser.add_argument(
        "parts", nargs="*", metavar="NAME", help="parts to remove; core: all at once (default: each, and core)"
    )
    parser.add_argument("--whole", action="append", default=[], metavar="NAME", help="a part to test by all unit tests")
    parser.add_argument("--units", action="store_true", help="run the core's unit tests without each part")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures and outputs to this file")
    arguments = parser.parse_args(argv)

    with Tester(Path().resolve()) as tester:
        known = {part.name for part in tester.parts} | {CORE}

        chosen = {*arguments.parts, *arguments.whole} if arguments.parts else known

        unknown = {*arguments.parts, *arguments.whole} - known
        if unknown:
            print(f"There is no part {', '.join(sorted(unknown))}.", file=sys.stderr)
            return 64

        quick = [part for part in tester.parts if part.name in chosen and part.name not in arguments.whole]
        whole = [part for part in tester.parts if part.name in arguments.whole]

        # The quick steps use one core; all unit tests use each of them.
        with ThreadPoolExecutor(CORES) as pool:
            steps = quick_steps(with_units=arguments.units)
            removals = list(pool.map(lambda part: tester.without_part(part, steps), quick))

        removals += [tester.without_part(part, whole_steps()) for part in whole]
        if CORE in chosen:
            removals.append(tester.without_any(whole_steps()))

    print(table(removals))

    for removal in removals:
        for outcome in removal.outcomes:
            if not outcome.passed:
                print(f"\n{removal.part}: {outcome.step} fails:\n{outcome.output}", file=sys.stderr)

    if arguments.json is not None:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps([asdict(removal) for removal in removals], indent=2) + "\n")

    return int(any(removal.failed for removal in removals))


if __name__ == "__main__":
    sys.exit(main())
