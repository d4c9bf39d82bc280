"""`python -m tools.check.sizes` holds the sizes that the house style keeps.

Limits: 600 lines a file, 60 a function, 39 a main loop. The limit of a file leaves room for one statement a line and a
blank line between steps; 400 lines had files joined up to 399. A main loop is a function marked by a comment
`# main loop` on its `def` line or the line above; the files in MAIN_LOOPS must have one.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

FILE_LIMIT = 600
FUNCTION_LIMIT = 60
LOOP_LIMIT = 39
MAIN_LOOPS = ("cloud_gateway/engine/loop.py", "edgespec/worker/daemon.py")
MARK = "# main loop"


@dataclass(frozen=True, slots=True)
class Function:
    """A function: its place, how many lines it has from `def` to its end, and whether it is marked as a main loop."""

    name: str
    line: int
    lines: int
    is_main_loop: bool


def functions(source: str) -> Iterator[Function]:
    """Every function of a module, nested ones too."""
    rows = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            above = node.decorator_list[0].lineno - 1 if node.decorator_list else node.lineno - 1
            marked = any(MARK in rows[n] for n in {above - 1, node.lineno - 1} if n >= 0)
            yield Function(node.name, node.lineno, (node.end_lineno or node.lineno) - node.lineno + 1, marked)


def faults(path: str, source: str) -> Iterator[str]:
    """The sizes of one file that are above a limit, one sentence each."""
    lines = len(source.splitlines())
    if lines > FILE_LIMIT:
        yield f"{path}: {lines} lines, over {FILE_LIMIT}; divide it by what its parts are about"
    marked = 0
    for function in functions(source):
        marked += function.is_main_loop
        limit = LOOP_LIMIT if function.is_main_loop else FUNCTION_LIMIT
        if function.lines > limit:
            kind = "main loop" if function.is_main_loop else "function"
            yield f"{path}:{function.line}: {kind} {function.name} has {function.lines} lines, over {limit}"
    if path in MAIN_LOOPS and not marked:
        yield f"{path}: no function is marked `{MARK}`"


def python_files(root: Path) -> list[Path]:
    """The project's Python files: tracked, or new and not ignored."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.py"]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    return [root / name for name in sorted(filter(None, listed.split("\0"))) if (root / name).is_file()]


def main(argv: Sequence[str] | None = None) -> int:
    """Prints each fault; returns 1 when there is one."""
    root = Path((argv or ["."])[0])
    sources = {str(path.relative_to(root)): path.read_text() for path in python_files(root)}
    found = [fault for path, source in sources.items() for fault in faults(path, source)]
    found += [f"{path} does not exist" for path in MAIN_LOOPS if path not in sources]
    print(f"sizes: {len(sources)} files, {len(found)} faults")
    for fault in found:
        print(fault, file=sys.stderr)

    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
