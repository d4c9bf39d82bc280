"""A traced answer as a token process: what was recorded is used, what was not is drawn, and nothing is made better."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from cloud_gateway.core.policies.policy import Costs, LinkView
from cloud_gateway.core.policies.registry import POLICIES, make
from cloud_gateway.core.policies.settings import PolicySettings
from cloud_gateway.core.requests.events import Admitted, WorkerChanged
from cloud_gateway.parts.request_traces import format as trace
from cloud_gateway.parts.request_traces.format import Header, Trace, TraceError, unseal
from cloud_gateway.parts.request_traces.play import Player
from edgespec.core.drafting.algorithm2 import Drafting
from edgespec_lab.sim.from_trace import FILLER, Traced
from edgespec_lab.sim.world import run

SHIPPED = sorted((Path(__file__).parent / "traces").glob("*.trace"))


def load(name: str) -> Trace:
    return unseal(next(path for path in SHIPPED if path.stem == name).read_bytes())[0]


COSTS = Costs(lambda rows: 0.02, 0.004, local_leaves=1)
LINK = LinkView(0.01, 0.02, 0.005, False)


def made(*entries: trace.Entry, early: Sequence[trace.Entry] = ()) -> Trace:
    """A trace of a prompt of three tokens; the answer is 11, 12, 13, 14. `early`: before it shows the link."""
    header = Header("0", 1, 1, PolicySettings(name="wanspec"), 3, 4, 64, True, True, [], ["w"], "length", True)
    start = (0.0, Admitted(2)), (0.0, WorkerChanged("w", "assigned"))
    recorded = Trace(header, [])
    player = Player(recorded, POLICIES)
    for now, event in (*start, *early, *entries):
        if isinstance(event, trace.Decided):
            event = msgspec.structs.replace(event, size=len(player.tree.tree))
        player.step(now, event)
        recorded.entries.append((now, event))
    return recorded


def frame(prefix_len: int, on_path: bool, parents: list[int], tokens: list[int], at: float = 0.0) -> trace.Entry:
    costs = [100, 900, 200, 300, 400, 500][: len(tokens)]
    return at, trace.Frame("w", prefix_len, on_path, 1, parents, tokens, costs, [500] * len(tokens))


def answer(*rounds: list[int], start: float = 0.0) -> list[trace.Entry]:
    """Plain decoding steps of 20 ms that emit these tokens."""
    entries: list[trace.Entry] = []
    for i, tokens in enumerate(rounds):
        entries.append((start + 0.02 * i, trace.Decided(LINK, COSTS, {1: 0.02}, 0, trace.Act("verify"))))
        entries.append((start + 0.02 * (i + 1), trace.Verified(tokens, [0.5] * len(tokens), [])))
    return entries


def test_frames_name_what_the_draft_says_after_each_committed_token() -> None:
    """Ids: 1 and 2 are children of the prompt, 3 of 1 (which came true), 4 of 2 (which did not)."""
    named = frame(3, True, [0, 0, 1, 2], [11, 77, 12, 88])
    traced = Traced(made(named, *answer([11], [12], [13], [14])), POLICIES)
    process = traced.process(1)
    assert (list(process.on_path(0).tokens), list(process.on_path(0).costs)) == ([11, 77], [0.1, 0.9])
    assert (list(process.on_path(1).tokens), process.on_path(1).entropy) == ([12], 0.5)
    assert [list(one.tokens) for one in process.off_path] == [[FILLER]], "what followed 77 can never be right"
    assert traced.known == 0.5 and list(process.targets[:5]) == [0, 11, 12, 13, 14]


def test_a_gap_is_filled_with_another_proposal_at_the_same_rank() -> None:
    named = frame(3, True, [0, 0], [77, 11])
    process = Traced(made(named, *answer([11], [12], [13], [14])), POLICIES).process(1)
    for position, target in ((1, 12), (2, 13), (3, 14)):
        assert list(process.on_path(position).tokens) == [FILLER, target], "right second, as where it was recorded"
        assert list(process.on_path(position).costs) == [0.1, 0.9]


def test_frames_for_other_prefixes_tell_nothing() -> None:
    named = frame(3, False, [0], [11])
    with pytest.raises(TraceError, match="no draft's proposals"):
        Traced(made(named, *answer([11], [12], [13], [14])), POLICIES)


def test_what_followed_the_end_of_the_answer_is_not_taken_for_wrong() -> None:
    named = frame(3, True, [0, 1, 2, 3, 4, 5], [11, 12, 13, 14, 15, 16])
    traced = Traced(made(named, *answer([11], [12], [13], [14])), POLICIES)
    assert [len(one.tokens) for one in traced.process(1).off_path] == [1] * 5, (
        "the pool is the known ones, made strange"
    )
    assert traced.known == 1


def test_the_comparison_begins_when_the_worker_had_read_the_prompt() -> None:
    named = frame(5, True, [0], [13], at=0.06)
    early = answer([11], [12])
    late = answer([13], [14], start=0.1)
    traced = Traced(made(*early, named, *late), POLICIES)
    assert traced.start.tokens == 2 and traced.tokens == 2, "0.06 s less half a round trip and a step is 0.05 s"
    assert traced.ms_per_token == pytest.approx((0.14 - 0.04) / 2 * 1000)


def test_what_the_worker_drafted_while_the_target_read_the_prompt_counts() -> None:
    """The link stands in a trace from the first decision on, frames as they arrived."""
    ahead = Traced(
        made(*answer([11], [12], [13], [14], start=0.1), early=[frame(3, True, [0], [11], at=0.05)]), POLICIES
    )
    assert ahead.start.tokens == 0 and ahead.ahead_s == pytest.approx(0.1 - (0.05 - 0.005 - 0.005))
    assert Traced(made(frame(3, True, [0], [11], at=0.05), *answer([11], [12], [13], [14])), POLICIES).ahead_s == 0


def test_passes_take_what_they_took_in_the_trace() -> None:
    named = frame(3, True, [0], [11])
    steps = Traced(made(named, *answer([11], [12], [13], [14])), POLICIES).steps
    assert steps.verify(1) == pytest.approx(0.02) and steps.worker(1) == 0.005 and steps.leaves == 1


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_the_simulated_answer_is_the_recorded_one_and_takes_about_as_long(path: Path) -> None:
    """`run` itself compares every token with the process; here the time, within what load on the machine explains."""
    recorded = unseal(path.read_bytes())[0]
    traced = Traced(recorded, POLICIES)
    drafting = [Drafting(1, 1, 2, traced.rule())]
    controller = make(recorded.header.settings)
    result = run(controller, drafting, traced.process(1), traced.net(), traced.steps, traced.tokens, 1)
    assert result.tokens == traced.tokens
    if path.stem != "worker-lost":  # its worker never leaves in the simulation
        assert result.seconds * 1000 / traced.tokens == pytest.approx(traced.ms_per_token, rel=0.35)


def test_a_longer_round_trip_costs_time() -> None:
    traced = Traced(load("wanspec-20ms"), POLICIES)
    settings = msgspec.structs.replace(load("wanspec-20ms").header.settings)

    def seconds(rtt_s: float) -> float:
        drafting = [Drafting(1, 1, 2, traced.rule())]
        controller = POLICIES["wanspec"](settings)
        return run(controller, drafting, traced.process(1), traced.net(rtt_s), traced.steps, traced.tokens, 1).seconds

    assert seconds(0.0) < seconds(0.05) < seconds(0.3)
