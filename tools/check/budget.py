"""`python -m tools.check.budget` measures how dense the code is, by package, and fails if a package got denser.

A line that holds two thoughts is read twice. Two figures of density have a ceiling for each package, at what the
package had when the ceiling was set: tokens a code line, and parallel assignments (`a, b = c, d`) in 1,000 code lines.
Lower a ceiling when a package has become easier to read; do not raise one. A package that is not in CEILINGS is held
to NEW_PACKAGE. The number of lines has no limit: it would reward lines that hold more.

A code line has something other than a comment or a docstring. Tokens are names, operators and numbers.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.check.sizes import python_files

WHOLE = ("integrations", "tests", "tools")
"""Folders that are one package each; a folder directly inside the others is a package of its own."""


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The highest density that a package may have."""

    tokens_a_line: float
    parallel_in_1000: float


CEILINGS: Mapping[str, Ceiling] = {
    "cloud_gateway": Ceiling(9.6, 9),
    "cloud_gateway/api": Ceiling(9.2, 18),
    "cloud_gateway/core": Ceiling(10.7, 42),
    "cloud_gateway/engine": Ceiling(10.6, 30),
    "cloud_gateway/links": Ceiling(9.6, 34),
    "cloud_gateway/models": Ceiling(10.8, 33),
    "cloud_gateway/process": Ceiling(8.7, 23),
    "cloud_gateway/ui": Ceiling(11.4, 49),
    "edgespec": Ceiling(10.0, 10),
    "edgespec/core": Ceiling(9.5, 26),
    "edgespec/lab": Ceiling(9.9, 22),
    "edgespec/llamacpp": Ceiling(10.3, 31),
    "edgespec/shared": Ceiling(9.0, 21),
    "edgespec/worker": Ceiling(9.0, 20),
    "integrations": Ceiling(10.4, 24),
    "tests": Ceiling(11.1, 17),
    "tools": Ceiling(11.0, 22),
}
"""Today's figures, rounded up."""
NEW_PACKAGE = Ceiling(tokens_a_line=7.5, parallel_in_1000=4)


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
        return folders[0] if folders else "."
    return "/".join(folders[:2])


def packages(root: Path) -> dict[str, Density]:
    """The density of each package, by its name."""
    sums: defaultdict[str, Density] = defaultdict(Density)
    for path in python_files(root):
        sums[package_of(path.relative_to(root))].add(density(path.read_text()))
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


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the table; returns 1 if a package is above a ceiling."""
    arguments = sys.argv[1:] if argv is None else argv
    root = Path(arguments[0] if arguments else ".").resolve()
    measured = packages(root)
    print(table(measured))

    above = list(faults(measured))
    for fault in above:
        print(fault, file=sys.stderr)
    return 1 if above else 0


if __name__ == "__main__":
    sys.exit(main())
