"""Completions and bodies that one API key has in progress, and their release."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_gateway.core.limits.visits import KeyLimits, Visit, Visits
from edgespec.core.errors import ClientError

LIMITS = KeyLimits(completions=4, body_bytes=100)


def test_completions_of_one_key_are_bounded_and_another_keys_are_not() -> None:
    visits = Visits(LIMITS)
    first = visits.enter("a")
    first.expect_completions(4)
    with pytest.raises(ClientError) as error:
        visits.enter("a")
    assert error.value.status == 429
    assert error.value.code == "rate_limit_exceeded"
    assert error.value.retry_after_s

    visits.enter("b").expect_completions(4)
    first.end()
    visits.enter("a").expect_completions(4)


def test_bytes_are_held_until_the_prompt_is_tokenised() -> None:
    visits = Visits(LIMITS)
    first = visits.enter("a")
    second = visits.enter("a")
    first.hold_bytes(60)
    with pytest.raises(ClientError):
        second.hold_bytes(41)

    first.release_bytes()
    second.hold_bytes(100)
    assert visits.body_bytes == 100


STEPS = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 60), st.booleans()), max_size=40)


@pytest.mark.claim("one-key-cannot-have-more-answers-under-way-than-its-limit")
@settings(max_examples=100, deadline=None)
@given(STEPS)
def test_when_all_requests_have_ended_nothing_is_held(steps: list[tuple[int, int, bool]]) -> None:
    visits = Visits(LIMITS)
    running: list[Visit] = []
    for completions, size, end in steps:
        try:
            visit = visits.enter("a")
            running.append(visit)
            visit.expect_completions(completions)
            visit.hold_bytes(size)
        except ClientError as error:
            assert error.status == 429
        if end and running:
            running.pop().end()
    for visit in running:
        visit.end()

    whole = visits.enter("a")
    whole.expect_completions(4)
    whole.hold_bytes(100)
