"""docs/architecture.md: each step of "How to find a line" is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STEPS = re.findall(r"`([\w/]+\.py)`: `([\w.]+)` \|", (ROOT / "docs/architecture.md").read_text())


def names(path: str) -> set[str]:
    """Functions and classes of a module, and methods as `Class.method`."""
    found = set()
    for node in ast.parse((ROOT / path).read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{inner.name}" for inner in ast.walk(node) if hasattr(inner, "name")}
    return found


@pytest.mark.parametrize(("path", "name"), STEPS)
def test_a_step_of_a_walk_is_where_the_page_says(path: str, name: str) -> None:
    assert name in names(path)


def test_the_page_has_all_three_walks() -> None:
    assert len(STEPS) >= 20
