"""`python -m tools.mutants [AREA ...]`: plants each fault of `tests/mutants/AREA.toml` alone and runs the tests.

A fault is one replacement in one product file. It is planted in a copy of the files that git tracks, so that the
checkout stays as it is. The tests that the list names run first; with `--suite`, a fault that they do not find is given
to every test that is not live. A fault that no test finds is a promise that nothing holds: the exit status is then 1,
unless the list says why no test can tell (`equivalent`).

Coverage was not chosen as the measure: it says that a line ran, not that a test would notice if it were wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Literal

from edgespec_lab.options import number

ROOT = Path(__file__).parents[2]
LISTS = ROOT / "tests" / "mutants"
MAX_RUN_S = 600.0
"""A fault that makes its tests hang is found; the tests' own time-outs end most of them sooner."""
PYTEST = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider", "-m", "not live"]

Verdict = Literal["killed", "survived", "equivalent", "invalid"]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault: `old` stands exactly once in `file` and is replaced by `new`."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    """Paths that pytest takes, the likeliest to find it first."""
    equivalent: str = ""
    """Why no test can tell it from the product, if that is so."""


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one fault."""

    area: str
    name: str
    verdict: Verdict
    by: str
    """The test that failed, or why the fault could not be tried."""
    seconds: float


class ControlFailed(Exception):
    """A test that fails without a fault would find every one."""


class InvalidMutant(Exception):
    """The list is wrong about the code: the text is not there, stands twice, or the result cannot be imported."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=__doc__)
    parser.add_argument("areas", nargs="*", metavar="AREA", help="default: every list")
    parser.add_argument("--only", metavar="TEXT", default="", help="faults whose name contains it")
    parser.add_argument("--suite", action="store_true", help="give survivors to every test that is not live")
    parser.add_argument("--processes", type=number(int, 1, 64), default=os.cpu_count() or 1, help="default: one a core")
    parser.add_argument("--json", type=Path, metavar="FILE", help="one line a fault")
    options = parser.parse_args(argv)

    work = [
        (area, mutant)
        for area in options.areas or sorted(path.stem for path in LISTS.glob("*.toml"))
        for mutant in read(LISTS / f"{area}.toml")
        if options.only in mutant.name
    ]
    try:
        results = run_all(work, options.processes, suite=options.suite)
    except ControlFailed as error:
        print(f"error: without any fault, {error} fails; repair it first", file=sys.stderr)
        return 1

    if options.json:
        options.json.write_text("".join(json.dumps(asdict(result)) + "\n" for result in results))
    return report(results)


def read(path: Path) -> list[Mutant]:
    """The faults of one list."""
    tables = tomllib.loads(path.read_text())["mutant"]
    return [Mutant(**(table | {"tests": tuple(table["tests"])})) for table in tables]


def run_all(work: Sequence[tuple[str, Mutant]], processes: int, *, suite: bool) -> list[Result]:
    """Tries all faults, several at once, each in a copy that no other one uses meanwhile."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copies: SimpleQueue[Path] = SimpleQueue()
        for index in range(min(processes, len(work))):
            copies.put(copy_of_checkout(Path(folder) / str(index)))
        control(copy_of_checkout(Path(folder) / "control"), [mutant for _, mutant in work], suite=suite)

        def attempt(item: tuple[str, Mutant]) -> Result:
            copy = copies.get()
            try:
                result = try_mutant(copy, *item, suite=suite)
            finally:
                copies.put(copy)
            print(f"{result.verdict:10} {result.area}/{result.name}  {result.by}  ({result.seconds:.0f} s)", flush=True)
            return result

        with ThreadPoolExecutor(max_workers=processes) as pool:
            return list(pool.map(attempt, work))


def control(copy: Path, mutants: Sequence[Mutant], *, suite: bool) -> None:
    """Runs all the tests once without a fault. Raises `ControlFailed` with the first that fails."""
    named = sorted({test for mutant in mutants for test in mutant.tests})
    failed = first_failure(copy, () if suite else named)
    if failed is not None:
        raise ControlFailed(failed)


def copy_of_checkout(target: Path) -> Path:
    """The tracked files as they are in the working tree."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        source = ROOT / name
        if source.is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).write_bytes(source.read_bytes())

    return target


def try_mutant(copy: Path, area: str, mutant: Mutant, *, suite: bool) -> Result:
    """Plants one fault, runs its tests, and takes it out again."""
    began = time.monotonic()
    path = copy / mutant.file
    original = path.read_text()
    try:
        path.write_text(planted(mutant, original))
        failed = first_failure(copy, mutant.tests)
        if failed is None and suite and not mutant.equivalent:
            failed = first_failure(copy, ())
    except InvalidMutant as error:
        return Result(area, mutant.name, "invalid", str(error), time.monotonic() - began)
    finally:
        path.write_text(original)

    seconds = time.monotonic() - began
    if failed is not None:
        return Result(area, mutant.name, "killed", failed, seconds)
    if mutant.equivalent:
        return Result(area, mutant.name, "equivalent", mutant.equivalent, seconds)

    return Result(area, mutant.name, "survived", " ".join(mutant.tests), seconds)


def planted(mutant: Mutant, text: str) -> str:
    """The file with the fault in it.

    Raises `InvalidMutant` if the replaced text does not stand there exactly once, or the result is no Python.
    """
    times = text.count(mutant.old)
    if times != 1:
        raise InvalidMutant(f"{mutant.file} has the text {times} times")

    changed = text.replace(mutant.old, mutant.new)
    if changed == text:
        raise InvalidMutant("the fault changes nothing")

    if mutant.file.endswith(".py"):
        try:
            compile(changed, mutant.file, "exec")
        except SyntaxError as error:
            raise InvalidMutant(f"no Python: {error}") from None
    return changed


def first_failure(copy: Path, tests: Iterable[str]) -> str | None:
    """The first test that fails; None if all pass. No tests named: all that are not live."""
    environment = os.environ | {
        # Children that the tests start must load the copy too, not the installed package.
        "PYTHONPATH": f"{copy}:{copy / 'integrations' / 'vllm'}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    try:
        done = subprocess.run(
            [*PYTEST, *tests], cwd=copy, env=environment, capture_output=True, text=True, timeout=MAX_RUN_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"no end within {MAX_RUN_S:g} s"

    if done.returncode == 0:
        return None

    # The summary's lines name a test; a captured log line may begin with ERROR too.
    failures = re.findall(r"^(?:FAILED|ERROR) (\S+\.py\S*)", done.stdout, re.MULTILINE)
    if done.returncode == 1 and failures:
        return str(failures[0])

    raise InvalidMutant(f"pytest ended with {done.returncode}: {(done.stdout + done.stderr).strip()[-300:]}")


def report(results: Sequence[Result]) -> int:
    """Prints the totals and every fault that needs a reader; 1 if one survived or could not be tried."""
    counts = dict.fromkeys(("killed", "survived", "equivalent", "invalid"), 0)
    for result in results:
        counts[result.verdict] += 1

    print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    for result in results:
        if result.verdict in ("survived", "invalid"):
            print(f"{result.verdict}: {result.area}/{result.name}: {result.by}")

    return int(counts["survived"] + counts["invalid"] > 0)


if __name__ == "__main__":
    sys.exit(main())
