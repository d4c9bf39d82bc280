"""A completion is followed through its prediction, and found again after every kind of edit."""

from __future__ import annotations

import random
import time

import pytest

from cloud_gateway.parts.predicted_outputs.follower import WINDOW, Follower, Predicted

TEXT = list(range(100, 200))
"""Each token once, so that every place is certain."""


def followed(prediction: list[int], completion: list[int]) -> Follower:
    follower = Follower(Predicted(prediction))
    for token in completion:
        follower.append(token)
    return follower


def test_a_right_prediction_is_followed_to_its_end() -> None:
    follower = followed(TEXT, TEXT[:60])
    assert (follower.place, follower.run, follower.right) == (60, 60, 60)
    assert follower.ahead(3) == TEXT[60:63]
    assert followed(TEXT, TEXT).expected is None


@pytest.mark.parametrize(
    ("completion", "wrong"),
    [
        ([*TEXT[:20], 7, *TEXT[21:40]], 1),
        ([*TEXT[:20], 7, 8, 9, *TEXT[20:40]], 4),
        ([*TEXT[:20], *TEXT[30:40]], 1),
        ([*TEXT[:20], *TEXT[80:90], *TEXT[20:40]], 2),
        ([7, 8, *TEXT[:40]], 3),
    ],
    ids=["replaced", "inserted", "deleted", "moved", "begins otherwise"],
)
def test_the_place_is_found_again_after_an_edit(completion: list[int], wrong: int) -> None:
    """`wrong`: tokens that the prediction did not expect at their place, those of the edit included."""
    follower = followed(TEXT, completion)
    assert follower.expected == TEXT[40]
    assert follower.right == len(completion) - wrong


def test_behind_a_replaced_token_the_next_one_is_expected_at_once() -> None:
    follower = followed(TEXT, [*TEXT[:20], 7])
    assert (follower.expected, follower.run) == (TEXT[21], 1)


def test_of_equal_places_the_next_one_is_taken() -> None:
    lines = [1, 2, 10, 1, 2, 20, 1, 2, 30]
    follower = followed(lines, [1, 2, 10, 1, 2, 99, 1, 2])
    assert follower.expected == 30


def test_a_single_token_is_looked_for_nearby_only() -> None:
    near = TEXT[20 + WINDOW - 1]
    far = TEXT[20 + WINDOW + 1]
    assert followed(TEXT, [*TEXT[:20], near]).expected == near + 1
    assert followed(TEXT, [*TEXT[:20], far]).expected == TEXT[21]


def test_another_text_is_never_followed_for_long() -> None:
    rng = random.Random(1)
    follower = followed(TEXT, [rng.randrange(10_000, 20_000) for _ in range(500)])
    assert follower.right == 0 and follower.run <= 1


@pytest.mark.parametrize("prediction", [[], [5]])
def test_a_prediction_of_hardly_anything_expects_nothing_more(prediction: list[int]) -> None:
    follower = followed(prediction, [5, 6, 7])
    assert follower.expected is None and follower.right == len(prediction)


def test_one_token_over_and_over_takes_no_longer() -> None:
    """The worst case of both searches: each pair is everywhere, and no window has the token that came."""
    began = time.process_time()
    followed([5] * 16_384, [5, 6] * 4096)
    assert time.process_time() - began < 1.0
