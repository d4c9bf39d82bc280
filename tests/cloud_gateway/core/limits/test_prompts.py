"""Which prompt is read next, how much of it, and when."""

from __future__ import annotations

import math

import pytest

from cloud_gateway.core.limits.prompts import (
    BURST,
    FIRST_TOKENS,
    LEFT,
    MIN_TOKENS,
    NO_LIMIT,
    Prompt,
    PromptTurns,
    ReadingPace,
    limits_of,
    running_since,
)

OLD, NEW = 1.0, 9.0


@pytest.mark.parametrize(("token_s", "tokens"), [(1e-5, 128), (0.004, 62), (0.05, MIN_TOKENS)])
def test_a_chunk_takes_what_is_allowed_by_the_speed_of_those_before(token_s: float, tokens: int) -> None:
    pace = ReadingPace(128, 0.250)
    assert pace.tokens() == FIRST_TOKENS
    pace.took(MIN_TOKENS - 1, 9.9)
    assert pace.tokens() == FIRST_TOKENS, "the end of a prompt says nothing"
    for _ in range(3):
        pace.took(pace.tokens(), token_s * pace.tokens())
    assert pace.tokens() == tokens
    assert ReadingPace(5, 0.250).tokens() == 5 and ReadingPace(5, 0.250).fitting(1.0) == 5


def test_without_a_limit_a_chunk_has_all_tokens_that_are_allowed() -> None:
    assert ReadingPace(128, 0.250, token_s=9.9).tokens(NO_LIMIT) == 128


@pytest.mark.parametrize(
    ("first_tokens_at", "since"),
    [([], None), ([None], math.inf), ([7.0, None, 3.0], 3.0)],
)
def test_completions_run_since_their_first_token(first_tokens_at: list[float | None], since: float | None) -> None:
    assert running_since(first_tokens_at) == since


@pytest.mark.parametrize(
    ("came_at", "since", "limits"),
    [(OLD, None, NO_LIMIT), (OLD, math.inf, BURST), (OLD, 3.0, BURST), (NEW, 3.0, 1.0)],
)
def test_a_prompt_that_came_first_may_take_longer(came_at: float, since: float | None, limits: float) -> None:
    assert limits_of(Prompt(1, came_at), since) == limits


def test_prompts_take_turns_with_those_that_came_meanwhile() -> None:
    turns = PromptTurns()
    prompts = [Prompt(1, NEW), Prompt(2, NEW)]
    assert turns.order(prompts, OLD) == [1, 2]

    turns.chunk_read(prompts[0], 0.0, 1.0)
    prompts.append(Prompt(3, NEW))
    assert turns.order(prompts, OLD) == [2, 3, 1], "behind the new one, which would be first for ever otherwise"
    assert turns.order(prompts[1:], OLD) == [2, 3]


def test_prompts_that_came_before_the_first_tokens_are_first() -> None:
    prompts = [Prompt(1, NEW), Prompt(2, OLD), Prompt(3, NEW), Prompt(4, OLD)]
    assert PromptTurns().order(prompts, 3.0) == [2, 4, 1, 3]


def test_a_chunk_leaves_completions_a_round_and_a_gap() -> None:
    turns = PromptTurns()
    late = Prompt(1, NEW)
    assert turns.due(late, OLD, 10.0, idle=False)

    turns.chunk_read(late, 10.0, 12.0)
    gap_ends = 12.0 + LEFT * 2.0
    assert not turns.due(late, OLD, gap_ends, idle=False), "no round was between"
    assert turns.due(late, OLD, gap_ends, idle=True), "nothing would be computed instead"

    turns.round_ended()
    assert not turns.due(late, OLD, gap_ends - 0.1, idle=False)
    assert not turns.due(late, OLD, gap_ends - 0.1, idle=True), "the completions keep half of their speed"
    assert turns.due(late, OLD, gap_ends, idle=False)


def test_a_prompt_that_came_first_needs_a_round_and_no_gap() -> None:
    turns = PromptTurns()
    early = Prompt(1, OLD)
    turns.chunk_read(early, 10.0, 12.0)
    assert not turns.due(early, 3.0, 12.0, idle=False)

    turns.round_ended()
    assert turns.due(early, 3.0, 12.0, idle=False)
    turns.chunk_read(early, 12.0, 14.0)
    assert turns.due(early, None, 14.0, idle=False), "nothing else runs"
