"""Waits between attempts: short and spread while a gateway restarts, full jitter up to 90 s otherwise."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.core.protocol.redial import (
    MIN_LINKED_S,
    RESTART_S,
    SETTLED_S,
    SPREAD_S,
    Redial,
    restart_reason,
    restart_s,
)


def test_back_off_has_full_jitter_between_1_and_90_seconds() -> None:
    fleet = [Redial(random.Random(seed).uniform) for seed in range(300)]
    for ceiling in (1, 2, 4, 8, 16, 32, 64, 90, 90):
        now = [one.wait_s(0.0) for one in fleet]
        assert 0 <= min(now) < 0.1 * ceiling and 0.9 * ceiling < max(now) <= ceiling
    for one in fleet:
        one.ended(SETTLED_S - 0.1)
    assert max(one.wait_s(0.0) for one in fleet) > 80
    for one in fleet:
        one.ended(SETTLED_S)
    assert max(one.wait_s(0.0) for one in fleet) <= 1


def test_after_the_time_of_a_restart_the_waits_grow_from_8_to_90_s() -> None:
    fleet = [Redial(random.Random(seed).uniform) for seed in range(300)]
    for one in fleet:
        one.ended(SETTLED_S)
        one.restarts(0.0, SETTLED_S)
        for _ in range(50):  # the closed port of a restart
            assert one.wait_s(1.0) <= SPREAD_S[1]
    for ceiling in (8, 16, 32, 64, 90):
        now = [one.wait_s(RESTART_S[0]) for one in fleet]
        assert 0.9 * ceiling < max(now) <= ceiling


@pytest.mark.claim("workers-dial-a-restarted-gateway-at-a-bounded-rate")
def test_a_gateway_that_ends_links_at_once_is_backed_off_from() -> None:
    fleet = [Redial(random.Random(seed).uniform) for seed in range(300)]
    for _ in range(8):
        for one in fleet:
            one.restarts(0.0, MIN_LINKED_S - 0.1)
        waits = [one.wait_s(0.0) for one in fleet]
    assert max(waits) > 80


@pytest.mark.parametrize(
    ("code", "reason", "for_s"),
    [
        (1012, "stopping, back in 400 s", 800.0),
        (1012, "stopping, back in 3 s", RESTART_S[0]),
        (1012, "stopping, back in 999999 s", RESTART_S[1]),
        (1012, "", RESTART_S[0]),
        (1001, "stopping", RESTART_S[0]),
        (1000, "stopping, back in 400 s", None),
        (4409, "superseded", None),
        (1013, "slow", None),
    ],
)
def test_a_close_says_for_how_long_a_restart_is_waited_for(code: int, reason: str, for_s: float | None) -> None:
    assert restart_s(code, reason) == for_s
    assert restart_s(1012, restart_reason(400)) == 800.0


@pytest.mark.claim("workers-dial-a-restarted-gateway-at-a-bounded-rate")
@given(st.text(max_size=123))
def test_no_close_reason_makes_a_wait_unbounded(reason: str) -> None:
    for_s = restart_s(1012, reason)
    assert for_s is not None and RESTART_S[0] <= for_s <= RESTART_S[1]


@pytest.mark.claim("workers-dial-a-restarted-gateway-at-a-bounded-rate")
def test_a_thousand_workers_dial_a_restarted_gateway_spread_over_seconds() -> None:
    fleet = [Redial(random.Random(seed).uniform) for seed in range(1000)]
    dials = Counter[int]()
    for one in fleet:
        one.restarts(0.0, SETTLED_S)
        now = 0.0
        while now < 20:  # the port is closed until then
            now += one.wait_s(now)
            dials[int(now)] += 1
    assert max(dials.values()) <= 350 and 20 <= max(dials) <= 20 + SPREAD_S[1]
