"""Regular expressions of the product: in Python `$` also matches before a newline at the end of the text."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from cloud_gateway.api.schema import Name

ROOT = Path(__file__).parents[1]
PRODUCT = ("cloud_gateway", "edgespec", "integrations/vllm/edgespec_vllm")
OPEN_END = re.compile(r"(?<!\\)\$\)*\Z")
"""A `$` that ends a pattern; `$(?!\\n)` and `\\Z` pass no newline."""


def open_ends(source: str) -> Iterator[int]:
    """Lines with a pattern that passes a newline at its end, but for those that are matched line by line."""
    tree = ast.parse(source)
    by_line = {
        id(node.args[0])
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and node.args and "re.MULTILINE" in ast.unparse(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in by_line:
            is_pattern = node.value.startswith("^") or re.search(r"\[[^\]]+\][+*{]", node.value)
            if is_pattern and OPEN_END.search(node.value):
                yield node.lineno


def test_no_pattern_of_the_product_passes_a_newline_at_its_end() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for folder in PRODUCT
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line in open_ends(path.read_text())
    ]
    assert found == []


@pytest.mark.parametrize("pattern", ['"^[a-z]+$"', 'r"(tun|br-[0-9a-f]{12}$)"', 'r"^(a|b)$"'])
def test_a_pattern_with_an_open_end_is_found(pattern: str) -> None:
    assert list(open_ends(f"x = re.compile({pattern})")) == [1]
    assert list(open_ends(f"x = re.compile({pattern}, re.MULTILINE)")) == []


@pytest.mark.parametrize("name", ["f\n", "\nf", "f g", "", "f" * 65])
def test_the_name_of_a_tool_has_one_line_of_64_characters(name: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(name, Name)
    assert msgspec.convert("f" * 64, Name) == "f" * 64
