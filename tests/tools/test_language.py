"""The check of the language: what it refuses, and what it leaves alone."""

from __future__ import annotations

import pytest

from tools.check.language import above_ceilings, faults, sentences


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
        ("docs/x.md", "A worker drafts where it may."),
        ("docs/x.md", "| limit | one, where no key is there |"),
        ("docs/x.md", "Of all workers the nearest drafts."),
        ("docs/x.md", "| As a rule two |"),
        ("README.md", "- **What a worker reads** is a prompt."),
        ("docs/x.py", '"""For a worker that is paired."""'),
        ("docs/x.py", 'x = 1\n"""Seconds, where it is set."""'),
        ("docs/x.py", "x = 1  # As before"),
        ("tests/x.py", '"""Raises where it is paired."""'),
        ("docs/architecture.md", "told"),
    ],
)
def test_each_fault_is_found(path: str, text: str) -> None:
    assert [*faults(path, text), *sentences(path, text)]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("edgespec/x.py", "almost_all, stolen, Foretold = 1, 2, 3  # nearest, the utmost"),
        ("edgespec/x.py", '"""An attempt at the code; candidates of the draft."""'),
        ("tests/test_x.py", f"def test_{'a' * 65}() -> None: ..."),
        ("docs/x.md", "| " + " | ".join("abcdefghi") + " |" + "a" * 121),
        ("docs/architecture.md", "| not | but |\n| --- | --- |\n| told | sent |\n"),
        ("docs/x.md", "# What a worker does where\n\nIt finds where to dial.\n\n```\nwhere\n```\n`where`, whereas"),
        ("docs/x.md", "A worker drafts\nas it may, for a key\nAs before. For comparison: two.\n\nFor comparison: two"),
        ("docs/upstream/a.md", "Of a worker, where it is paired."),
    ],
)
def test_plain_english_is_left_alone(path: str, text: str) -> None:
    assert [*faults(path, text), *sentences(path, text)] == []


def test_a_folder_may_have_no_more_faulty_sentences_than_its_ceiling() -> None:
    by_folder = {"edgespec": ["first", "second"], "docs": [], "tests": ["third"]}
    assert list(above_ceilings(by_folder, {"edgespec": 2, "tests": 1})) == []
    assert list(above_ceilings(by_folder, {"edgespec": 1})) == [
        "edgespec has 2 faults of sentences, above its ceiling of 1:",
        "first",
        "second",
        "tests has 1 faults of sentences, above its ceiling of 0:",
        "third",
    ]
