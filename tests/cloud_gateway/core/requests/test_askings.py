"""Which answers are asked for, how often at most, and how long a worker may be silent."""

from __future__ import annotations

import pytest

from cloud_gateway.core.requests.remote_answer import MAX_AGAIN, MIN_PATIENCE_S, Askings, patience


def test_each_answer_is_asked_for_once_and_a_lost_one_before_the_next() -> None:
    askings = Askings()
    assert [askings.take(), askings.take()] == [0, 1]
    askings.lose(1, "b")
    askings.lose(0, "a")
    assert askings.lost_by == {"a", "b"}
    assert [askings.take() for _ in range(3)] == [0, 1, 2]


def test_lost_answers_are_asked_for_again_a_few_times_only() -> None:
    askings, numbers = Askings(), []
    for turn in range(20):
        numbers.append(askings.take())
        askings.lose(numbers[-1], f"worker {turn}")
    assert numbers[: MAX_AGAIN + 2] == [*[0] * (MAX_AGAIN + 1), 1]
    assert numbers == sorted(numbers) and len(set(numbers)) == 20 - MAX_AGAIN


def test_nothing_is_asked_for_once_it_was_stopped() -> None:
    askings = Askings()
    askings.lose(askings.take(), "a")
    askings.stop()
    askings.lose(0, "b")
    assert askings.next >= 8


def test_far_and_slow_workers_and_long_prompts_are_given_more_time() -> None:
    assert patience(0, 0, 1000) == MIN_PATIENCE_S
    assert patience(0.5, 0, 0) == MIN_PATIENCE_S + 0.5
    assert patience(0, 0.1, 0) == pytest.approx(MIN_PATIENCE_S + 1.6)
    assert patience(0, 0.1, 100) == pytest.approx(MIN_PATIENCE_S + 6.6), "a step for two tokens of the prompt"
