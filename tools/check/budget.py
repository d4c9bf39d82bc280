"""`python -m tools.check.budget` measures how the code reads, and fails if it reads worse than its ceilings allow.

A line that holds two thoughts is read twice. Four figures of density are bounded for each package: tokens a code line,
parallel assignments (`a, b = c, d`) and conditional expressions in 1,000 code lines, and the blank lines within
functions, in percent. A package that is not in CEILINGS is held to NEW_PACKAGE. Three figures are bounded for the
product (tools/check/core.py): the size of its core, the public names that two modules define, and the files outside a
part that name it.

Ceilings are set at what the code had, and only fall: lower one when the code has become easier to read. A package has
no limit on its lines, which would reward lines that hold more; the core has one, with room for dividing its lines.

A code line has something other than a comment or a docstring. Tokens are names, operators and numbers.
"""

from __future__ import annotations

import argparse
import ast
import io
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.check.core import Definition, is_core, naming, naming_faults, part_folders, taken_twice
from tools.check.sizes import python_files

WHOLE = ("integrations", "tests", "tools")
"""Folders that are one package each; a folder directly inside the others is a package of its own."""


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The highest density that a package may have."""

    tokens_a_line: float
    parallel_in_1000: float
    conditional_in_1000: float
    blank_percent: float
    """The fewest blank lines within its functions."""


CEILINGS: Mapping[str, Ceiling] = {
    "cloud_gateway": Ceiling(8.5, 1, 5, 4.6),
    "cloud_gateway/api": Ceiling(8.1, 2, 15, 4.2),
    "cloud_gateway/core": Ceiling(8.9, 1, 7, 5.3),
    "cloud_gateway/engine": Ceiling(8.5, 1, 1, 7),
    "cloud_gateway/links": Ceiling(8.1, 1, 3, 4.8),
    "cloud_gateway/models": Ceiling(8.8, 1, 1, 7.3),
    "cloud_gateway/parts": Ceiling(9.2, 2, 9, 4.9),
    "cloud_gateway/process": Ceiling(8.3, 2, 17, 4.8),
    "edgespec": Ceiling(9.2, 1, 9, 9.2),
    "edgespec/core": Ceiling(8.2, 2, 6, 5.1),
    "edgespec/llamacpp": Ceiling(8.7, 2, 1, 8.5),
    "edgespec/models": Ceiling(8.4, 1, 1, 6.2),
    "edgespec/parts": Ceiling(8.4, 2, 11, 4.9),
    "edgespec/shared": Ceiling(7.8, 1, 10, 3.8),
    "edgespec/worker": Ceiling(7.8, 1, 4, 4.8),
    "integrations": Ceiling(9.8, 1, 14, 3.4),
    "lab/edgespec_lab": Ceiling(10.4, 1, 22, 3.4),
    "tests": Ceiling(10.8, 1, 9, 1.5),
    "tools": Ceiling(10.3, 2, 19, 3.5),
}
"""Today's figures, rounded in favor of the package; what moves into a part brings its own density with it."""
NEW_PACKAGE = Ceiling(tokens_a_line=7.5, parallel_in_1000=4, conditional_in_1000=12, blank_percent=4)

MAX_CORE_TOKENS = 181_700
MAX_CORE_LINES = 24_230
"""At the 7.5 tokens a line that a new package may have: dividing lines needs no higher ceiling."""
MAX_NAMES_TWICE = 17

NAMING: Mapping[str, frozenset[str]] = {}
"""Exceptions: files of the product that still name a part, by its name. One that is not needed any more is a fault."""


@dataclass(slots=True)
class Density:
    """Counts of one file, or sums over files."""

    code_lines: int = 0
    tokens: int = 0
    parallel: int = 0
    conditional: int = 0
    function_lines: int = 0
    blank_function_lines: int = 0

    def add(self, other: Density) -> None:
        """Adds the counts of `other` to these."""
        self.code_lines += other.code_lines
        self.tokens += other.tokens
        self.parallel += other.parallel
        self.conditional += other.conditional
        self.function_lines += other.function_lines
        self.blank_function_lines += other.blank_function_lines

    @property
    def tokens_a_line(self) -> float:
        return self.tokens / max(self.code_lines, 1)

    @property
    def parallel_in_1000(self) -> float:
        return 1000 * self.parallel / max(self.code_lines, 1)

    @property
    def conditional_in_1000(self) -> float:
        return 1000 * self.conditional / max(self.code_lines, 1)

    @property
    def blank_percent(self) -> float:
        """Blank lines among the lines of functions, without those of docstrings."""
        return 100 * self.blank_function_lines / max(self.function_lines, 1)


def density(source: str) -> Density:
    """The counts of one Python source."""
    tree = ast.parse(source)
    lines = source.splitlines()
    documentation = docstring_lines(tree)
    counts = Density()

    for number, line in enumerate(lines, 1):
        text = line.strip()
        if text and not text.startswith("#") and number not in documentation:
            counts.code_lines += 1

    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        counts.tokens += token.type in (tokenize.NAME, tokenize.OP, tokenize.NUMBER)

    for node in ast.walk(tree):
        counts.parallel += is_parallel_assignment(node)
        counts.conditional += isinstance(node, ast.IfExp)

        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            end = node.end_lineno or node.lineno
            body = [lines[number - 1] for number in range(node.lineno, end + 1) if number not in documentation]
            counts.function_lines += len(body)
            counts.blank_function_lines += sum(not line.strip() for line in body)

    return counts


def is_parallel_assignment(node: ast.AST) -> bool:
    """Whether a node is `a, b = c, d`; `a, b = pair` unpacks one value and is none."""
    if not isinstance(node, ast.Assign):
        return False
    return isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple)


def docstring_lines(tree: ast.AST) -> set[int]:
    """Numbers of the lines of strings that stand as statements."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
            continue
        if isinstance(node.value.value, str):
            lines.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))

    return lines


def package_of(path: Path) -> str:
    """The package that a file, by its path in the repository, is counted in."""
    folders = path.parts[:-1]
    if not folders or folders[0] in WHOLE:
        if folders:
            return folders[0]
        return "."
    return "/".join(folders[:2])


def packages(sources: Mapping[str, str]) -> dict[str, Density]:
    """The density of each package by its name; `sources` are the texts of its files by path."""
    sums: defaultdict[str, Density] = defaultdict(Density)
    for path, source in sources.items():
        sums[package_of(Path(path))].add(density(source))
    return dict(sorted(sums.items()))


def faults(measured: Mapping[str, Density], ceilings: Mapping[str, Ceiling] = CEILINGS) -> Iterator[str]:
    """One sentence for each figure above its ceiling."""
    for package, counts in measured.items():
        ceiling = ceilings.get(package, NEW_PACKAGE)
        if counts.tokens_a_line > ceiling.tokens_a_line:
            yield (
                f"{package} has {counts.tokens_a_line:.2f} tokens a code line, above its ceiling of"
                f" {ceiling.tokens_a_line}: divide lines that hold more than one step"
            )
        if counts.parallel_in_1000 > ceiling.parallel_in_1000:
            yield (
                f"{package} has {counts.parallel_in_1000:.1f} parallel assignments in 1,000 code lines, above its"
                f" ceiling of {ceiling.parallel_in_1000}: write `a, b = c, d` as two lines"
            )
        if counts.conditional_in_1000 > ceiling.conditional_in_1000:
            yield (
                f"{package} has {counts.conditional_in_1000:.1f} conditional expressions in 1,000 code lines, above its"
                f" ceiling of {ceiling.conditional_in_1000}: write `x if y else z` as an `if`"
            )
        if counts.blank_percent < ceiling.blank_percent:
            yield (
                f"{package} has {counts.blank_percent:.1f} % blank lines within functions, below its minimum of"
                f" {ceiling.blank_percent} %: divide the steps of a function by a blank line"
            )


def core_size(sources: Mapping[str, str]) -> Density:
    """The counts of the product without its parts and its lab."""
    size = Density()
    for path, source in sources.items():
        if is_core(path):
            size.add(density(source))
    return size


def core_faults(size: Density, names: Mapping[str, Sequence[Definition]]) -> Iterator[str]:
    """One sentence for each figure of the core above its ceiling."""
    if size.tokens > MAX_CORE_TOKENS:
        yield f"the core has {size.tokens} tokens, above its ceiling of {MAX_CORE_TOKENS}: move a feature into a part"
    if size.code_lines > MAX_CORE_LINES:
        yield f"the core has {size.code_lines} lines, above its ceiling of {MAX_CORE_LINES}: move a feature into a part"
    if len(names) > MAX_NAMES_TWICE:
        yield (
            f"{len(names)} public names are defined by two modules or more, above the ceiling of {MAX_NAMES_TWICE}:"
            f" rename the new one (`python -m tools.check.budget --names` lists them)"
        )


def table(measured: Mapping[str, Density]) -> str:
    """The figures of all packages, one line each."""
    titles = ("code lines", "tokens", "a line", "parallel", "conditional", "blank")
    rows = [f"{'package':28} " + " ".join(f"{title:>11}" for title in titles)]
    for package, counts in measured.items():
        rows.append(
            f"{package:28} {counts.code_lines:11} {counts.tokens:11} {counts.tokens_a_line:11.2f}"
            f" {counts.parallel_in_1000:11.1f} {counts.conditional_in_1000:11.1f} {counts.blank_percent:10.1f}%"
        )

    return "\n".join(rows)


def naming_table(files: Mapping[str, set[str]]) -> str:
    """The parts, each with the files outside of it that name it, one line a part."""
    rows = [f"{part:28} {len(paths):11} {' '.join(sorted(paths))}".rstrip() for part, paths in files.items()]
    return "\n".join([f"{'part':28} {'named by':>11}", *rows])


def names_table(names: Mapping[str, Sequence[Definition]]) -> str:
    """The names that are defined more than once, each with its places."""
    return "\n".join(
        f"{name:28} {' '.join(f'{place.path}:{place.line}' for place in places)}" for name, places in names.items()
    )


def python_sources(root: Path) -> dict[str, str]:
    """The texts of the repository's Python files, by path."""
    return {path.relative_to(root).as_posix(): path.read_text() for path in python_files(root)}


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the tables; returns 1 if a figure is above its ceiling."""
    parser = argparse.ArgumentParser(prog="python -m tools.check.budget")
    parser.add_argument("root", nargs="?", type=Path, default=Path(), help="the repository (default: this folder)")
    parser.add_argument("--names", action="store_true", help="also list the names that are defined more than once")
    arguments = parser.parse_args(argv)

    root = arguments.root.resolve()
    sources = python_sources(root)
    measured = packages(sources)
    size = core_size(sources)
    names = taken_twice(sources)
    files = naming(part_folders(root), sources)

    print(table({**measured, "core": size}))
    print(naming_table(files))
    print(f"{'names defined twice':28} {len(names):11}")
    if arguments.names:
        print(names_table(names))

    above = [*faults(measured), *core_faults(size, names), *naming_faults(files, NAMING)]
    for fault in above:
        print(fault, file=sys.stderr)
    if above:
        return 1

    return 0


if __name__ == "__main__":
    sys.exit(main())
