"""Waits between attempts: short and spread while a gateway restarts, full jitter up to 90 s otherwise."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from edgespec.core.protocol.redial import (
    LONGEST_S,
    MIN_LINKED_S,
    RESTART_S,
    SETTLED_S,
    SPREAD_S,
    Redial,
    restart_reason,
    restart_s,
)
from tests.support.herd import Herd

SECONDS = st.floats(0, 4000)


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


class Redialling(RuleBasedStateMachine):
    """A worker whose links end in any order and whose attempts fail."""

    def __init__(self) -> None:
        super().__init__()
        self.redial, self.now = Redial(random.Random(1).uniform), 0.0
        self.until = 0.0
        self.wait_s = 0.0

    @rule(linked_s=SECONDS, stated_s=st.integers(0, 10_000))
    def gateway_restarts(self, linked_s: float, stated_s: int) -> None:
        for_s = restart_s(1012, restart_reason(stated_s))
        assert for_s is not None and RESTART_S[0] <= for_s <= RESTART_S[1]
        self.now += linked_s
        self.redial.ended(linked_s)
        self.redial.restarts(self.now, linked_s, for_s)
        if linked_s >= MIN_LINKED_S:
            self.until = self.now + for_s

    @rule(linked_s=SECONDS)
    def link_ends(self, linked_s: float) -> None:
        self.now += linked_s
        self.redial.ended(linked_s)

    @rule()
    def attempt_fails(self) -> None:
        self.wait_s = self.redial.wait_s(self.now)
        assert 0 <= self.wait_s <= LONGEST_S
        if self.now < self.until:
            assert SPREAD_S[0] <= self.wait_s <= SPREAD_S[1]
        self.now += self.wait_s

    @invariant()
    def a_restart_of_any_length_within_the_time_has_short_waits(self) -> None:
        assert self.redial._ceiling_s <= LONGEST_S


TestRedialling = Redialling.TestCase


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


@pytest.mark.claim("workers-dial-a-restarted-gateway-at-a-bounded-rate")
@given(st.text(max_size=123))
def test_no_close_reason_makes_a_wait_unbounded(reason: str) -> None:
    for_s = restart_s(1012, reason)
    assert for_s is not None and RESTART_S[0] <= for_s <= RESTART_S[1]


@pytest.mark.claim("workers-dial-a-restarted-gateway-at-a-bounded-rate")
@pytest.mark.parametrize("down_s", [3.0, 20.0, 100.0])
def test_a_thousand_workers_are_back_within_seconds_and_spread(down_s: float) -> None:
    """Against the real admission of the link port, one core for handshakes and the real `Redial`."""
    herd = Herd(1000, down_s, seed=1)
    herd.run()
    assert herd.quantile(0.5) <= 5.0 and herd.quantile(0.9) <= 15.0
    assert herd.most_in_a_second <= 300
