"""Whatever may happen to a request, in any order: its text is plain decoding's."""

from __future__ import annotations

import pytest
from hypothesis import settings

from tests.support.walks import NAMES, Walk, walk_long

TestWalk = pytest.mark.claim("each-machine-takes-events-in-any-order")(Walk.TestCase)
TestWalk.settings = settings(max_examples=40, stateful_step_count=60, deadline=None, derandomize=True)


@pytest.mark.parametrize("seed", range(2 * len(NAMES)))
def test_long_walks_of_every_policy_keep_the_text(seed: int) -> None:
    walk_long(Walk(), seed)
