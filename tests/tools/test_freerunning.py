"""Acceptance by draft position through the real engine, on a draft whose quality is known."""

from __future__ import annotations

import pytest

from tools.doubles.engines import TableDraft, TableTarget
from tools.lossless.__main__ import parser
from tools.lossless.freerunning import CLASSIC, GREEDY, PLAINLY, SHARED, Way, answers, figures, table

PROMPTS = [[3, 1, 4, number] for number in range(1, 7)]


def test_acceptance_is_conditional_on_the_positions_before() -> None:
    found = figures([(3, 3), (3, 1), (3, 0), (2, 2)], 3)
    assert found["by_position"] == [0.75, 0.6667, 1.0]
    assert (found["acceptance"], found["tested"], found["tokens_per_round"]) == (0.75, 8, 2.5)
    assert figures([], 2)["by_position"] == [0, 0]


@pytest.mark.parametrize(
    ("way", "temperature", "least", "most"),
    [(GREEDY, 0.0, 1.0, 1.0), (SHARED, 1.0, 1.0, 1.0), (CLASSIC, 1.0, 1.0, 1.0), (PLAINLY, 1.0, 0.3, 0.9)],
    ids=lambda value: getattr(value, "name", None),
)
async def test_a_draft_equal_to_the_target_is_right_unless_it_ranks_plainly(
    way: Way, temperature: float, least: float, most: float
) -> None:
    args = parser().parse_args(["freerunning", "--max-tokens", "40", "--top-p", "1", "--k", "3"])
    target = TableTarget(slots=1, pass_s=0.0, eos=frozenset())
    found = await answers(target, TableDraft(1.0), way, temperature, PROMPTS, args)
    assert least <= found["acceptance"] <= most and found["tokens"] == 40 * len(PROMPTS)
    report = {"settings": {"draft": "table", "k": 3, "top_p": 1.0}, "arms": [{"way": "x", "temperature": 0.0, **found}]}
    assert table(report).row_count == 1


async def test_a_worse_draft_is_accepted_less_often() -> None:
    args = parser().parse_args(["freerunning", "--max-tokens", "60", "--top-p", "1", "--k", "3"])
    found = await answers(TableTarget(slots=1, pass_s=0.0), TableDraft(0.5), GREEDY, 0.0, PROMPTS, args)
    assert 0.3 < found["acceptance"] < 0.7
