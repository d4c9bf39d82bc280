"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def line(cells: Sequence[object]) -> str:
    """One row."""
    return f"| {' | '.join(map(str, cells))} |"


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """The lines of a table: head, separator and rows."""
    return [line(head), line(["---"] * len(head)), *map(line, rows)]
