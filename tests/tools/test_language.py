"""The check of the language: what it refuses, and what it leaves alone."""

from __future__ import annotations

import pytest

from tools.check.language import faults


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("edgespec/x.py", '"""What the gateway is told."""'),
        ("edgespec/x.py", "def f(wish: int) -> None: ..."),
        ("edgespec/x.py", "MOST_LEAVES = 16"),
        ("cloud_gateway/x.py", "in_debt = owed_s"),
        ("docs/x.md", "The same text, whoever drafts."),
        ("tests/test_x.py", f"def test_{'a' * 66}() -> None: ..."),
        ("README.md", "| " + " | ".join("abcdefghi") + " |"),
        ("README.md", "a" * 121),
    ],
)
def test_each_fault_is_found(path: str, text: str) -> None:
    assert list(faults(path, text))


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("edgespec/x.py", "almost_all, stolen, Foretold = 1, 2, 3  # nearest, the utmost"),
        ("edgespec/x.py", '"""An attempt at the code; candidates of the draft."""'),
        ("tests/test_x.py", f"def test_{'a' * 65}() -> None: ..."),
        ("docs/x.md", "| " + " | ".join("abcdefghi") + " |" + "a" * 121),
        ("docs/glossary.md", "told"),
    ],
)
def test_plain_english_is_left_alone(path: str, text: str) -> None:
    assert list(faults(path, text)) == []
