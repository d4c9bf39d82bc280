"""The settings of queued answers: their range, what they replace, and the room that they take in the local draft."""

from __future__ import annotations

import pytest

from cloud_gateway.parts.queued_answers import PART
from cloud_gateway.process.config import schema
from cloud_gateway.process.targets import draft_cells, draft_requests
from edgespec.core.errors import ConfigError
from edgespec.shared.settings import parse


def test_the_local_draft_has_room_for_one_answer_beside_the_slots() -> None:
    without = parse("[target]\nslots = 3", schema([PART]), "x.toml")
    writing = parse("[target]\nslots = 3\n[sources]\nqueued_answers = 8", schema([PART]), "x.toml")
    assert (draft_requests(without), draft_requests(writing)) == (3, 4)
    assert draft_cells(writing) == 2 * draft_cells(without)


def test_a_gateway_without_the_part_refuses_its_source() -> None:
    text = '[policy]\nsources = ["answers"]'
    assert parse(text, schema([PART]), "x.toml").policy.sources == ("answers",)
    with pytest.raises(ConfigError, match="policy.sources"):
        parse(text, schema([]), "x.toml")


@pytest.mark.parametrize(
    ("line", "refusal"),
    [
        ("queued_answers = 9", "from 0 to 8"),
        ("queued_tokens = 100", "at most 256 tokens"),
        ("kept_tokens = 0", "262144"),
    ],
)
def test_what_is_out_of_range_or_was_removed_is_refused(line: str, refusal: str) -> None:
    with pytest.raises(ConfigError, match=refusal):
        parse(f"[sources]\n{line}", schema([PART]), "x.toml")
