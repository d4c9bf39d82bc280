"""A traced answer as a token process: what was recorded is used, what was not is drawn, and nothing is made better."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from cloud_gateway.core.policies.registry import POLICIES
from cloud_gateway.core.policies.settings import PolicySettings
from cloud_gateway.core.trace import format as trace
from cloud_gateway.core.trace.format import Header, Trace, unseal
from cloud_gateway.core.trace.play import Player
from edgespec.core.drafting.algorithm2 import Drafting
from edgespec.core.errors import TraceError
from edgespec.lab.link_model import LinkModel
from edgespec.lab.sim.from_trace import FILLER, Traced
from edgespec.lab.sim.world import run

SHIPPED = sorted((Path(__file__).parents[3] / "traces").glob("*.trace"))


def load(name: str) -> Trace:
    return unseal(next(path for path in SHIPPED if path.stem == name).read_bytes())[0]


def made(*events: trace.AnyEvent) -> Trace:
    """A trace of a prompt of three tokens; the answer is 11, 12, 13, 14."""
    header = Header("0", 1, 1, "wanspec", PolicySettings(), 3, True, ["w"], "length", True)
    costs = trace.PassCosts({1: 0.02}), trace.DraftCosts(0.004, 0.0, 0.0, 1), trace.Link(0.01, 0.02, 0.005, False)
    recorded = Trace(header, [])
    player = Player(recorded)
    for event in (*costs, *events):
        if isinstance(event, trace.Decided):
            event = msgspec.structs.replace(event, size=len(player.tree.tree))
        player._step(event)
        recorded.events.append(event)
    return recorded


def answer(*rounds: list[int], start: float = 0.0) -> list[trace.AnyEvent]:
    """Bare steps of 20 ms that emit these tokens."""
    events: list[trace.AnyEvent] = []
    for i, tokens in enumerate(rounds):
        events.append(trace.Decided(start + 0.02 * i, 0, trace.Verified([])))
        events.append(trace.Committed(tokens, [0.5] * len(tokens)))
        events.append(trace.RoundEnded(start + 0.02 * (i + 1), 0, True))
    return events


def test_frames_name_what_the_draft_says_after_each_committed_token() -> None:
    """Ids: 1 and 2 are children of the prompt, 3 of 1 (which came true), 4 of 2 (which did not)."""
    frame = trace.Frame(0, 1, 3, True, 1, [0, 0, 1, 2], [11, 77, 12, 88], [100, 900, 200, 300], [400, 400, 500, 600])
    traced = Traced(made(frame, *answer([11], [12], [13], [14])))
    process = traced.process(1)
    assert (list(process.on_path(0).tokens), list(process.on_path(0).costs)) == ([11, 77], [0.1, 0.9])
    assert (list(process.on_path(1).tokens), process.on_path(1).entropy) == ([12], 0.5)
    assert [list(one.tokens) for one in process.off_path] == [[FILLER]], "what followed 77 can never be right"
    assert traced.known == 0.5 and list(process.targets[:5]) == [0, 11, 12, 13, 14]


def test_a_gap_is_filled_with_another_proposal_at_the_same_rank() -> None:
    frame = trace.Frame(0, 1, 3, True, 1, [0, 0], [77, 11], [100, 900], [400, 400])
    process = Traced(made(frame, *answer([11], [12], [13], [14]))).process(1)
    for position, target in ((1, 12), (2, 13), (3, 14)):
        assert list(process.on_path(position).tokens) == [FILLER, target], "right second, as where it was recorded"
        assert list(process.on_path(position).costs) == [0.1, 0.9]


def test_frames_for_other_prefixes_tell_nothing() -> None:
    frame = trace.Frame(0, 1, 3, False, 1, [0], [11], [100], [400])
    with pytest.raises(TraceError, match="no draft's proposals"):
        Traced(made(frame, *answer([11], [12], [13], [14])))


def test_what_followed_the_end_of_the_answer_is_not_taken_for_wrong() -> None:
    frame = trace.Frame(0, 1, 3, True, 1, [0, 1, 2, 3, 4, 5], [11, 12, 13, 14, 15, 16], [1] * 6, [1] * 6)
    traced = Traced(made(frame, *answer([11], [12], [13], [14])))
    assert [len(one.tokens) for one in traced.process(1).off_path] == [1] * 5, (
        "the pool is the known ones, made strange"
    )
    assert traced.known == 1


def test_the_comparison_begins_when_the_worker_had_read_the_prompt() -> None:
    frame = trace.Frame(0, 1, 5, True, 1, [0], [13], [1], [1])
    early, late = answer([11], [12]), answer([13], [14], start=0.1)
    traced = Traced(made(*early, frame, trace.Received(0.06), *late))
    assert traced.start.tokens == 2 and traced.tokens == 2, "0.06 s less half a round trip and a step is 0.05 s"
    assert traced.ms_per_token == pytest.approx((0.14 - 0.04) / 2 * 1000)


def test_passes_take_what_they_took_in_the_trace() -> None:
    frame = trace.Frame(0, 1, 3, True, 1, [0], [11], [1], [1])
    steps = Traced(made(frame, *answer([11], [12], [13], [14]))).steps
    assert steps.verify(1) == pytest.approx(0.02) and steps.worker(1) == 0.005 and steps.leaves == 1


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_the_simulated_answer_is_the_recorded_one_and_takes_about_as_long(path: Path) -> None:
    """`run` itself compares every token with the process; here the time, within what load on the machine explains."""
    recorded = unseal(path.read_bytes())[0]
    traced = Traced(recorded)
    alone = recorded.header.policy == "colocated"
    drafting = None if alone else Drafting(1, 1, 2, traced.rule())
    controller = POLICIES[recorded.header.policy](recorded.header.settings)
    net = LinkModel(0.0) if alone else traced.net()
    result = run(controller, drafting, traced.process(1), net, traced.steps, traced.tokens, 1)
    assert result.tokens == traced.tokens
    if path.stem != "worker-lost":  # its worker never leaves in the simulation
        assert result.seconds * 1000 / traced.tokens == pytest.approx(traced.ms_per_token, rel=0.35)


def test_a_longer_round_trip_costs_time() -> None:
    traced = Traced(load("wanspec-20ms"))
    settings = msgspec.structs.replace(load("wanspec-20ms").header.settings)

    def seconds(rtt_s: float) -> float:
        drafting = Drafting(1, 1, 2, traced.rule())
        controller = POLICIES["wanspec"](settings)
        return run(controller, drafting, traced.process(1), traced.net(rtt_s), traced.steps, traced.tokens, 1).seconds

    assert seconds(0.0) < seconds(0.05) < seconds(0.3)
