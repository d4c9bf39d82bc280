"""Which connections a port admits: random walks against the bounds, and the cases that matter one by one."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from edgespec.core.admission import (
    MAX_SOURCES,
    RESERVED_DESCRIPTORS,
    Admission,
    AdmissionLimits,
    Admitted,
    Refused,
    share_descriptors,
)
from edgespec.shared.address import source_of
from tools.doubles.limits import link_limits


def limits_of(**changes: Any) -> AdmissionLimits:
    """The link port's, without a bound on the sum over all sources."""
    return link_limits(**{"total_rate_per_s": 1e9, **changes})


WIDE = limits_of(rate_per_s=1e9, burst=10**9)


def admitted(verdict: Admitted | Refused) -> int:
    assert isinstance(verdict, Admitted)
    return verdict.ticket


class Walk(RuleBasedStateMachine):
    """Connections come, prove themselves and go; a plain list of (ticket, source, proven) says what must hold."""

    @initialize(unproven=st.integers(1, 8), more=st.integers(0, 6), mine=st.integers(1, 8), burst=st.integers(1, 40))
    def begin(self, unproven: int, more: int, mine: int, burst: int) -> None:
        self.limits = AdmissionLimits(unproven + more, unproven, mine, rate_per_s=4.0, burst=burst)
        self.admission = Admission(self.limits)
        self.open: list[tuple[int, str, bool]] = []
        self.arrivals: list[tuple[str, float]] = []
        self.now = 0.0

    @rule(source=st.sampled_from("abcdef"), wait_s=st.sampled_from([0.0, 0.0, 0.1, 0.25, 3.0]))
    def arrive(self, source: str, wait_s: float) -> None:
        self.now += wait_s
        waiting = [one for one in self.open if not one[2]]
        verdict = self.admission.arrive(source, self.now)
        if isinstance(verdict, Refused):
            assert verdict.reason == "rate"
            return
        self.arrivals.append((source, self.now))
        if verdict.evicted is not None:
            victim = next(one for one in waiting if one[0] == verdict.evicted)
            most = max(sum(one[1] == other[1] for one in waiting) for other in waiting)
            assert victim == next(one for one in waiting if one[1] == victim[1])  # the oldest of its source
            assert victim[1] == source or sum(one[1] == victim[1] for one in waiting) == most
            self.open.remove(victim)
        self.open.append((verdict.ticket, source, False))

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def prove(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(self.open) - 1))
        ticket, source, proven = self.open[at]
        full = sum(one[2] for one in self.open) >= self.limits.total - self.limits.unproven
        assert self.admission.prove(ticket) == (proven or not full)
        self.open[at] = (ticket, source, proven or not full)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        ticket, _, _ = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
        self.admission.leave(ticket)
        self.admission.leave(ticket)
        assert not self.admission.prove(ticket)

    @rule()
    def relieve(self) -> None:
        waiting = [one for one in self.open if not one[2]]
        ticket = self.admission.relieve()
        assert (ticket is None) == (not waiting)
        self.open = [one for one in self.open if one[0] != ticket]

    @invariant()
    def bounds_hold(self) -> None:
        if not hasattr(self, "open"):
            return
        waiting = [one for one in self.open if not one[2]]
        assert (self.admission.total, self.admission.unproven) == (len(self.open), len(waiting))
        assert len(waiting) <= self.limits.unproven and len(self.open) <= self.limits.total
        for source in "abcdef":
            assert sum(one[1] == source for one in waiting) <= self.limits.unproven_per_source
            recent = sum(one == source and self.now - at < 1.0 for one, at in self.arrivals)
            assert recent <= self.limits.burst + self.limits.rate_per_s


TestWalk = Walk.TestCase
TestWalk.settings = settings(max_examples=30, stateful_step_count=40)


def test_a_source_has_a_burst_and_then_its_rate() -> None:
    admission = Admission(limits_of(rate_per_s=20.0, burst=100))
    at_once = [admission.arrive("a", 0.0) for _ in range(500)]
    assert sum(isinstance(one, Admitted) for one in at_once) == 100
    assert isinstance(admission.arrive("b", 0.0), Admitted)
    over_time = [admission.arrive("a", 1.0 + i / 100) for i in range(500)]  # 100 a second for five seconds
    assert 115 <= sum(isinstance(one, Admitted) for one in over_time) <= 121


@pytest.mark.claim("all-sources-together-have-a-rate")
def test_all_sources_together_have_a_rate() -> None:
    admission = Admission(limits_of(rate_per_s=20.0, burst=100, total_rate_per_s=100.0))
    got_in = 0
    for tenth in range(100):  # ten seconds of 1000 connections a second from 500 sources
        for n in range(100):
            verdict = admission.arrive(f"{(tenth * 100 + n) % 500}", tenth / 10)
            got_in += isinstance(verdict, Admitted)
            assert isinstance(verdict, Admitted) or verdict.reason == "total-rate"
    assert 1400 <= got_in <= 1500


def test_the_memory_of_sources_is_bounded() -> None:
    admission = Admission(WIDE)
    for i in count():
        ticket = admitted(admission.arrive(f"source {i}", 0.0))
        admission.leave(ticket)
        if i > 2 * MAX_SOURCES:
            break
    assert len(admission._buckets) <= MAX_SOURCES and not admission._waiting


@pytest.mark.parametrize(
    ("host", "source"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("no address", "no address"),
    ],
)
def test_one_ipv6_network_is_one_source(host: str, source: str) -> None:
    assert source_of(host) == source


def test_ports_share_the_descriptors_and_leave_a_reserve() -> None:
    wanted = {"api": 1024, "link": 1024, "metrics": 16}
    assert share_descriptors(wanted, 65536) == wanted
    scarce = share_descriptors(wanted, 1024)
    assert sum(scarce.values()) <= 1024 - RESERVED_DESCRIPTORS and scarce["api"] == scarce["link"] > 300
    assert all(number >= 2 for number in share_descriptors(wanted, 100).values())


@pytest.mark.parametrize("limits", [{"unproven": 0}, {"total": 3, "unproven": 4}, {"rate_per_s": 0.0}, {"burst": 0}])
def test_limits_that_leave_no_place_are_refused(limits: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="admitted"):
        Admission(limits_of(**limits))
