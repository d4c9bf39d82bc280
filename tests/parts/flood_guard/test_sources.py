"""Who gets the places of a guarded port: random walks against the bounds, and the cases that matter one by one."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from edgespec.parts.flood_guard.sources import LINKS, MAX_SOURCES, SourceGuard
from edgespec.shared.guards import PortBounds

UNBOUNDED = replace(LINKS, rate_per_s=1e9, burst=10**9, total_rate_per_s=1e9, total_burst=10**9)
PLACES = PortBounds(total=128, unproven=64)


@dataclass(frozen=True, eq=False)
class Connected:
    """A connection that has proven nothing."""

    source: str


class Walk(RuleBasedStateMachine):
    """Connections come, prove themselves or go; a plain list of those that have proven nothing says what must hold."""

    @initialize(unproven=st.integers(1, 8), share=st.sampled_from([0.1, 0.25, 0.5, 1.0]), burst=st.integers(1, 40))
    def begin(self, unproven: int, share: float, burst: int) -> None:
        limits = replace(UNBOUNDED, unproven_share=share, rate_per_s=4.0, burst=burst)
        self.share = max(1, int(unproven * share))
        self.burst = burst
        self.bounds = PortBounds(unproven + 3, unproven)
        self.guard = SourceGuard(self.bounds, limits)
        self.waiting: list[Connected] = []
        self.arrivals: list[tuple[str, float]] = []
        self.now = 0.0

    @rule(source=st.sampled_from("abcdef"), wait_s=st.sampled_from([0.0, 0.0, 0.1, 0.25, 3.0]))
    def arrive(self, source: str, wait_s: float) -> None:
        self.now += wait_s
        refusal = self.guard.refusal(source, self.now)
        if refusal is not None:
            assert refusal.reason == "rate"
            return

        self.arrivals.append((source, self.now))
        held = [connection.source for connection in self.waiting]
        leaving = self.guard.leaving(self.waiting, source)
        if held.count(source) >= self.share:
            assert leaving is not None and leaving.source == source
        elif len(held) >= self.bounds.unproven:
            self.is_of_the_greediest(leaving)
        else:
            assert leaving is None
        if leaving is not None:
            self.is_the_oldest(leaving)
            self.waiting.remove(leaving)
        self.waiting.append(Connected(source))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def prove_or_leave(self, data: st.DataObject) -> None:
        self.waiting.pop(data.draw(st.integers(0, len(self.waiting) - 1)))

    @rule()
    def relieve(self) -> None:
        leaving = self.guard.leaving(self.waiting, None)
        assert (leaving is None) == (not self.waiting)
        if leaving is not None:
            self.is_of_the_greediest(leaving)
            self.is_the_oldest(leaving)
            self.waiting.remove(leaving)

    @invariant()
    def bounds_hold(self) -> None:
        if not hasattr(self, "waiting"):
            return
        assert len(self.waiting) <= self.bounds.unproven
        for source in "abcdef":
            assert sum(connection.source == source for connection in self.waiting) <= self.share
            recent = sum(other == source and self.now - at < 1.0 for other, at in self.arrivals)
            assert recent <= self.burst + 4.0

    def is_the_oldest(self, leaving: Connected) -> None:
        """Asserts that no connection of its source is older."""
        assert leaving is next(connection for connection in self.waiting if connection.source == leaving.source)

    def is_of_the_greediest(self, leaving: Connected | None) -> None:
        """Asserts that no source holds more than its own."""
        held = [connection.source for connection in self.waiting]
        assert leaving is not None and held.count(leaving.source) == max(map(held.count, held))


TestWalk = Walk.TestCase
TestWalk.settings = settings(max_examples=30, stateful_step_count=40)


def test_a_source_has_a_burst_and_then_its_rate() -> None:
    guard = SourceGuard(PLACES, LINKS)
    assert [guard.refusal("a", 0.0) for _ in range(500)].count(None) == 100
    assert guard.refusal("b", 0.0) is None
    over_time = [guard.refusal("a", 1.0 + i / 100) for i in range(500)]  # 100 a second for five seconds
    assert 115 <= over_time.count(None) <= 121


@pytest.mark.claim("all-sources-together-have-a-rate")
def test_all_sources_together_have_a_rate() -> None:
    guard = SourceGuard(PLACES, LINKS)
    got_in = 0
    for tenth in range(100):  # ten seconds of 1000 connections a second from 500 sources
        for n in range(100):
            refusal = guard.refusal(f"{(tenth * 100 + n) % 500}", tenth / 10)
            got_in += refusal is None
            assert refusal is None or refusal.reason == "total-rate"
    assert 1400 <= got_in <= 1500


def test_the_memory_of_sources_is_bounded() -> None:
    guard = SourceGuard(PLACES, UNBOUNDED)
    for number in range(2 * MAX_SOURCES):
        assert guard.refusal(f"source {number}", 0.0) is None
    assert len(guard._buckets) <= MAX_SOURCES


@pytest.mark.parametrize("unproven", [1, 2, 3, 64])
def test_each_source_has_a_place_however_few_there_are(unproven: int) -> None:
    guard = SourceGuard(PortBounds(unproven + 1, unproven), UNBOUNDED)
    assert guard.leaving([], "a") is None
