"""Sources of heads: a tree of what they expect, their probabilities corrected, and no request if it does not pay."""

from __future__ import annotations

import pytest

from cloud_gateway.core.sources.interface import ROOT
from cloud_gateway.parts.draft_heads.source import AGAIN, TRIAL, HeadLevel, HeadSource

LEVELS = [HeadLevel([5, 6], [0.6, 0.3], [1, 1]), HeadLevel([7, 8], [0.5, 0.2], [2, 2])]
"""As Medusa heads expect them: what follows does not depend on the token before."""
TREE = [HeadLevel([5, 6], [0.6, 0.3], [1, 2]), HeadLevel([7, 8], [0.5, 0.2], [-1, -1]), HeadLevel([9], [0.8], [-1])]
"""The interface of an EAGLE head."""


class Fixed:
    """Heads that always expect the same."""

    def __init__(self, levels: list[HeadLevel]) -> None:
        self.levels = levels

    def read(self, slot: int) -> None: ...

    def ask(self, slot: int, token: int) -> list[HeadLevel]:
        return self.levels


def made(name: str = "medusa", levels: list[HeadLevel] = LEVELS, learnt: list[float] | None = None) -> HeadSource:
    return HeadSource(name, Fixed(levels), learnt or [])


def after(source: HeadSource, tokens: list[int], cost: float = 0.01) -> None:
    """A round: its tokens are committed, and the heads are asked after it."""
    source.path_kept(0, tokens[-1])
    source.charged(cost)
    source.committed(tokens)


def paths(source: HeadSource, room: int = 16) -> dict[tuple[int, ...], float]:
    found: list[tuple[int, ...]] = []
    chances = {}
    for one in source.propose(room):
        found.append((*(() if one.parent == ROOT else found[one.parent]), one.token))
        chances[found[-1]] = one.chance
    return chances


def test_the_heads_tokens_combine_by_their_survival() -> None:
    source = made()
    after(source, [4])
    assert paths(source) == {(5,): 0.6, (6,): 0.3, (5, 7): 0.5, (5, 8): 0.2, (6, 7): 0.5}, "0.3 * 0.2 is too little"
    assert source.why is None and list(paths(source, 3)) == [(5,), (6,), (5, 7)]


def test_a_source_without_heads_says_so() -> None:
    source = HeadSource("medusa", None)
    source.prompt_read(0)
    source.committed([1, 2, 3])
    assert not source.wanted
    assert source.propose(9) == []
    assert "no medusa heads are loaded (`sources.heads`)" in str(source.why)


def test_a_heads_probabilities_follow_how_often_it_was_right() -> None:
    good = made()
    bad = made()
    after(good, [4])
    after(bad, [4])
    for _ in range(30):
        after(good, [6, 7, 1])
        after(bad, [9, 7, 1])
    assert paths(good)[5,] > 0.6 and paths(good)[5, 7] > 0.5
    assert paths(bad).get((5,), 0) < 0.2, "and its second head was never reached"
    assert bad._right[1:] == []


def test_what_follows_may_depend_on_the_token_before() -> None:
    source = made("eagle", TREE)
    after(source, [4])
    assert paths(source) == {(5,): 0.6, (6,): 0.3, (5, 7): 0.5, (5, 8): 0.2, (6, 9): 0.8}
    for _ in range(30):
        after(source, [6, 9, 1])
    assert paths(source)[6, 9] > 0.8 and source._right[1] > source._expected[1] > 0
    after(source, [6, 7])
    missed = source._right[1] / source._expected[1]
    after(source, [5, 7])
    assert source._right[1] / source._expected[1] > missed, "7 is right after 5, and was wrong after 6"


def test_a_round_without_an_answer_of_the_heads_suggests_nothing() -> None:
    source = made()
    after(source, [4])
    assert paths(source)
    source.committed([9])
    assert not paths(source)


@pytest.mark.parametrize(
    ("tokens", "cost", "pays"),
    [([5, 7, 1], 0.3, True), ([9], 0.3, False), ([9], 0.0, True), ([5, 7, 1, 2, 3, 4], 0.3, False)],
)
def test_heads_are_asked_while_they_save_what_they_cost(tokens: list[int], cost: float, pays: bool) -> None:
    source = made()
    asked = 0
    for _ in range(20 * AGAIN):
        if source.wanted:
            source.path_kept(0, tokens[-1])
            source.charged(cost)
            asked += 1
        source.committed(tokens)
    assert asked == 20 * AGAIN if pays else asked <= 20 + TRIAL
    if not pays:
        source.committed(tokens)
        assert source.propose(9) == [] and source.why == "the heads save 0.00 passes a round and cost 0.30"


def completions(source: HeadSource, number: int, rounds: int, tokens: list[int]) -> int:
    """Times that heads of this source's kind are asked in that many completions of so many rounds."""
    asked = 0
    for _ in range(number):
        for _ in range(rounds):
            if source.wanted:
                source.path_kept(0, tokens[-1])
                source.charged(0.3)
                asked += 1
            source.committed(tokens)
        source = made(learnt=source.state())
    return asked


def test_the_next_completion_knows_whether_heads_pay() -> None:
    good = made()
    bad = made()
    assert completions(good, 8, 10, [5, 7, 1]) == 80
    assert completions(bad, 8, 10, [9]) <= TRIAL + 80 // AGAIN, "not tried in each completion"


def test_heads_that_paid_nothing_once_are_soon_asked_again() -> None:
    source = made()
    for _ in range(50):
        after(source, [9], cost=0.3)
    later = made(learnt=source.state())
    assert not paths(later), "suggestions belong to one completion"
    assert completions(later, 1, 6 * AGAIN, [5, 7, 1]) > 3 * AGAIN, "four rounds of another kind of text outweigh it"


def test_a_completion_starts_with_how_far_heads_were_right() -> None:
    source = made("eagle", TREE)
    for _ in range(30):
        after(source, [6, 9, 1])
    known = paths(source)
    later = made("eagle", TREE, source.state())
    after(later, [6])
    assert paths(later) == known and known[6, 9] > 0.8
