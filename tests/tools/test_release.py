"""The release check: a version is the same everywhere, and the wire's follows its messages."""

from __future__ import annotations

import pytest

from tools.check.release import MESSAGES, ROOT, bound_faults, text_faults, wire_faults

WIRE = (ROOT / MESSAGES).read_text()
CHANGES, CITATION = "# Changes\n\n## 1.2.0 (2026-11-22)\n", "title: x\nversion: 1.2.0\n"


def test_a_release_has_one_version_in_all_places() -> None:
    assert list(text_faults("1.2.0", "1.2.0", CHANGES, CITATION)) == []
    assert len(list(text_faults("1.2.1", "1.2.0", CHANGES, CITATION))) == 3
    assert len(list(text_faults("1.2.0", "1.2.0", "## 1.2.0\n", CITATION))) == 1, "a heading has its date"


@pytest.mark.parametrize(
    ("changes", "faults"),
    [
        ([], 0),
        ([("MAX_NODES = 64", "MAX_NODES = 128")], 1),
        ([("VERSION = 2", "VERSION = 3")], 1),
        ([("MAX_NODES = 64", "MAX_NODES = 128"), ("VERSION = 2", "VERSION = 3")], 0),
        ([("class Message(Struct, array_like=True", "class Message(Struct, array_like=False")], 1),
        ([('"""Messages in one frame."""', '"""Other words."""')], 0),
    ],
)
def test_the_wires_version_changes_with_its_messages_only(changes: list[tuple[str, str]], faults: int) -> None:
    now = WIRE
    for before, after in changes:
        assert before in now
        now = now.replace(before, after)
    assert len(list(wire_faults(WIRE, now))) == faults


def test_what_is_locked_is_what_pyproject_allows() -> None:
    assert list(bound_faults(ROOT)) == []
