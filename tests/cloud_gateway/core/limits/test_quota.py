"""Quotas of one API key, under way and in use, on a driven clock."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_gateway.core.limits.quota import KeyLimits, Quotas
from edgespec.core.errors import ClientError
from tools.doubles.limits import request_limits

LIMITS = KeyLimits(answers=4, body_bytes=100, tokens_per_minute=600)


def test_answers_of_one_key_are_bounded_and_another_keys_are_not() -> None:
    quotas = Quotas(LIMITS)
    first = quotas.enter("a")
    first.expect_answers(4)
    with pytest.raises(ClientError) as error:
        quotas.enter("a")
    assert (error.value.status, error.value.code) == (429, "rate_limit_exceeded") and error.value.retry_after_s
    quotas.enter("b").expect_answers(4)
    first.end()
    quotas.enter("a").expect_answers(4)


def test_bytes_are_held_until_the_prompt_is_tokenised() -> None:
    quotas = Quotas(LIMITS)
    first = quotas.enter("a")
    second = quotas.enter("a")
    first.hold_bytes(60)
    with pytest.raises(ClientError):
        second.hold_bytes(41)
    first.release_bytes()
    second.hold_bytes(100)


def test_tokens_come_back_at_the_rate_of_the_limit_and_the_error_says_when() -> None:
    quotas = Quotas(LIMITS)
    visit = quotas.enter("a")
    visit.reserve_tokens(600, now=0.0)
    visit.end(spent_tokens=500)
    with pytest.raises(ClientError) as error:
        quotas.enter("a").reserve_tokens(300, now=5.0)
    assert error.value.retry_after_s == pytest.approx(15.0), "100 given back, 50 in 5 s, 10 a second for the rest"
    quotas.enter("a").reserve_tokens(300, now=20.0)
    with pytest.raises(ClientError, match="this asks for up to 601"):
        quotas.enter("a").reserve_tokens(601, now=1e6)


def test_the_headers_are_openais_and_only_there_where_tokens_are_limited() -> None:
    quotas = Quotas(LIMITS)
    quotas.enter("a").reserve_tokens(150, now=0.0)
    assert quotas.headers("a", now=3.0) == {
        "x-ratelimit-limit-tokens": "600",
        "x-ratelimit-remaining-tokens": "480",
        "x-ratelimit-reset-tokens": "12.000s",
    }
    assert Quotas(request_limits().key).headers("a", now=0.0) == {}


STEPS = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 60), st.integers(0, 400), st.booleans()), max_size=40)


@pytest.mark.claim("one-key-cannot-have-more-answers-under-way-than-its-limit")
@settings(max_examples=100, deadline=None)
@given(STEPS)
def test_when_all_requests_have_ended_nothing_is_held(steps: list[tuple[int, int, int, bool]]) -> None:
    quotas = Quotas(LIMITS)
    open_ = []
    for answers, size, tokens, end in steps:
        try:
            visit = quotas.enter("a")
            open_.append(visit)
            visit.expect_answers(answers)
            visit.hold_bytes(size)
            visit.reserve_tokens(tokens, now=0.0)
        except ClientError as error:
            assert error.status == 429
        if end and open_:
            open_.pop().end(spent_tokens=0)
    for visit in open_:
        visit.end(spent_tokens=0)
    whole = quotas.enter("a")
    whole.expect_answers(4)
    whole.hold_bytes(100)
    whole.reserve_tokens(600, now=0.0)
