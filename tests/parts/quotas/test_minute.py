"""Tokens a minute of one API key, on a driven clock."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_gateway.api.admission import TokenUse
from cloud_gateway.auth import Key
from cloud_gateway.parts.quotas.minute import MinuteQuota, Reserved
from edgespec.core.errors import ClientError

KEY = Key(id="aaaaaaaa", name="alice", created=0, salt="00", hash="0" * 64)
OTHER = Key(id="bbbbbbbb", name="bob", created=0, salt="00", hash="0" * 64)


def computed(tokens: int) -> TokenUse:
    return TokenUse(computed=tokens)


def left(quota: MinuteQuota, now: float) -> int:
    return int(quota.headers(KEY, now)["x-ratelimit-remaining-tokens"])


def test_tokens_come_back_at_the_rate_of_the_quota_and_the_error_says_when() -> None:
    quota = MinuteQuota(600)
    reserved = quota.reserve(KEY, computed(600), now=0.0)
    reserved.end(computed(500))
    with pytest.raises(ClientError) as error:
        quota.reserve(KEY, computed(300), now=5.0)
    assert error.value.status == 429
    assert error.value.code == "rate_limit_exceeded"
    assert error.value.retry_after_s == pytest.approx(15.0), "100 given back, 50 in 5 s, 10 a second for the rest"

    quota.reserve(KEY, computed(300), now=20.0)


def test_a_request_that_never_fits_is_advised_to_lower_max_tokens() -> None:
    quota = MinuteQuota(600)
    with pytest.raises(ClientError, match="this asks for up to 601; lower 'max_tokens'") as error:
        quota.reserve(KEY, computed(601), now=1e6)
    assert error.value.retry_after_s == 60.0
    assert left(quota, now=1e6) == 600


def test_another_key_has_a_quota_of_its_own() -> None:
    quota = MinuteQuota(600)
    quota.reserve(KEY, computed(600), now=0.0)
    quota.reserve(OTHER, computed(600), now=0.0)
    assert left(quota, now=0.0) == 0


def test_the_headers_are_openais() -> None:
    quota = MinuteQuota(600)
    quota.reserve(KEY, computed(150), now=0.0)
    assert quota.headers(KEY, now=3.0) == {
        "x-ratelimit-limit-tokens": "600",
        "x-ratelimit-remaining-tokens": "480",
        "x-ratelimit-reset-tokens": "12.000s",
    }


def test_tokenising_more_than_there_is_has_to_be_waited_for() -> None:
    quota = MinuteQuota(60)
    reserved = quota.reserve(KEY, TokenUse(tokenised=1), now=0.0)
    reserved.end(TokenUse(tokenised=901))
    with pytest.raises(ClientError) as error:
        quota.reserve(KEY, TokenUse(tokenised=1), now=0.0)
    assert error.value.retry_after_s == pytest.approx(32.0), "91 of 60 are used, and 1 is asked for"


STEPS = st.lists(st.tuples(st.integers(0, 400), st.booleans()), max_size=40)


@pytest.mark.claim("one-key-cannot-have-more-answers-under-way-than-its-limit")
@settings(max_examples=100, deadline=None)
@given(STEPS)
def test_requests_that_used_nothing_give_all_back(steps: list[tuple[int, bool]]) -> None:
    quota = MinuteQuota(600)
    running: list[Reserved] = []
    for tokens, end in steps:
        try:
            running.append(quota.reserve(KEY, computed(tokens), now=0.0))
        except ClientError as error:
            assert error.status == 429
        if end and running:
            running.pop().end(TokenUse())
    for reserved in running:
        reserved.end(TokenUse())

    assert left(quota, now=0.0) == 600
