"""One request's state machine, without a thread or a clock: fences, retries and ends."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray

from cloud_gateway.core.policies.adaptive import Adaptive
from cloud_gateway.core.policies.policy import Costs, LinkView, Outcome, Policy, Verify, Wait
from cloud_gateway.core.policies.registry import POLICIES
from cloud_gateway.core.policies.settings import PolicySettings
from cloud_gateway.core.requests import events
from cloud_gateway.core.requests.events import TABLE, Status
from cloud_gateway.core.requests.generation import MAX_RETRIES, Bounds, Generation
from cloud_gateway.core.requests.request import GenerationRequest
from cloud_gateway.core.requests.rounds import Rounds
from cloud_gateway.core.sources.asking import make_sources
from cloud_gateway.core.verify.accept import FlatTree
from cloud_gateway.core.verify.candidates import CandidateTree
from cloud_gateway.core.verify.verification import SharedNoise
from edgespec.core.drafting.ranking import Spread
from edgespec.core.protocol.messages import MAX_MICROS, Close, Commit, Tree
from tests.support.constraints import ForcesFive
from tools.doubles.model import HASH, VOCAB, Rows, next_logits

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
COSTS = Costs(lambda rows: 0.03)
LINK = LinkView(0.2, 0.3, 0.005, True)


def made(
    policy: str = "adaptive",
    count: int = 40,
    constraint: ForcesFive | None = None,
    listen: Callable[[Generation], events.Listener] | None = None,
    key: str = "",
) -> Generation:
    request = GenerationRequest(PROMPT, count, ignore_eos=True, constraint=constraint, key=key)
    chooser = SharedNoise(request.sampling, request.tokens, Spread(), request.constraint)
    controller = POLICIES[policy](PolicySettings(k=3))
    return Generation(1, request, controller, chooser, Bounds(512), offload=True, listen=listen)


def decoding(policy: str = "adaptive", worker: str | None = "w", name: str = "", **more: Any) -> Generation:
    generation = made(policy, **more)
    generation.handle(events.Admitted(len(PROMPT) - 1), 0.0)
    if worker:
        generation.handle(events.WorkerChanged(worker, "assigned", name), 0.0)
    assert generation.status is Status.DECODE
    return generation


def frame(generation: Generation, epoch: int = 1, first: int = 1, right: bool = True) -> Tree:
    """The next two tokens, or two others."""
    prefix = generation.tree.prefix
    one = int(next_logits(prefix.tokens).argmax())
    tokens = [one, int(next_logits([*prefix.tokens, one]).argmax())]
    if not right:
        tokens = [(token + 1) % VOCAB for token in tokens]
    return Tree(1, epoch, len(prefix), prefix.digest, first, [0, first], tokens, [100, 100], [300, 300])


def rows(generation: Generation, flat: FlatTree) -> Rows:
    """The target's own rows for a tree below what is committed."""
    return Rows(HASH, generation.tree.prefix.tokens, flat)


Output = TypeVar("Output")


def verify(generation: Generation, now: float = 1.0, nodes: Sequence[object] | None = None) -> list[Any]:
    """One round over these candidates, or all."""
    chosen = generation.select(list(generation.tree.tree.nodes.values()) if nodes is None else nodes)
    flat = generation.flatten(chosen)
    return list(generation.handle(events.Verified(flat, rows(generation, flat)), now))


def of(outputs: Sequence[object], kind: type[Output]) -> list[Output]:
    return [output for output in outputs if isinstance(output, kind)]


def test_a_commit_states_the_rounds_period_its_pass_and_its_depth() -> None:
    generation = decoding("plain")  # it verifies whenever it is asked
    generation.decide(LINK, COSTS, 0.9)
    (first,) = (output.body for output in of(verify(generation, 1.0), events.Send))
    generation.handle(events.FrameArrived("w", frame(generation)), 1.01)
    generation.decide(LINK, COSTS, 1.02)
    (second,) = (output.body for output in of(verify(generation, 1.15), events.Send))
    assert (first.period_us, first.pass_us, first.depth) == (0, 100_000, 0)
    assert (second.period_us, second.pass_us, second.depth) == (150_000, 130_000, 2)


def test_the_times_of_a_round_stay_within_the_ranges_of_the_wire() -> None:
    rounds = Rounds(4)
    tree = CandidateTree(PROMPT)
    for now in (0.0, float("nan"), 1e9, -5.0, float("inf"), 3.0):
        rounds.bound(Verify(()), tree, now)
        rounds.ended(Outcome(0, 1, True, 0.0), now)
        assert all(0 <= micros <= MAX_MICROS for micros in rounds.latest)


def test_neither_policy_nor_worker_is_charged_for_a_preemption(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pass at 1.1 s ends a round of 0.1 s, though the request waited and was read again for 60 s in it."""
    generation = decoding("adaptive")
    seen = list[tuple[float, float]]()
    decide = type(generation.policy).decide
    monkeypatch.setattr(
        type(generation.policy),
        "decide",
        lambda self, tree, link, costs, now: seen.append((now, costs.paused_s)) or decide(self, tree, link, costs, now),
    )
    generation.decide(LINK, replace(COSTS, paused_s=2.0), 0.95)
    verify(generation, 1.0)
    outputs = generation.handle(events.Preempted(), 1.05)
    assert [type(output) for output in outputs] == [events.Send, events.Released, events.Drop]
    assert outputs[0].body.reason == "preempted"
    (wanted,) = generation.handle(events.Admitted(0), 40.0)
    assert isinstance(wanted, events.WorkerWanted)
    generation.handle(events.WorkerChanged("w", "assigned"), 41.0)
    generation.handle(events.Read(len(generation.reading) - 1), 61.05)
    action = generation.decide(LINK, replace(COSTS, paused_s=30.0), 61.1)
    assert seen == [pytest.approx((0.95, 2.0)), pytest.approx((1.1, 2.0))]
    assert not isinstance(action, Wait) or 61.1 <= action.until <= 62
    (commit,) = (output.body for output in of(verify(generation, 61.1), events.Send))
    assert commit.period_us == pytest.approx(100_000, abs=2)
    assert generation.usage.times.queued_s == pytest.approx(38.95)
    assert generation.usage.times.total_s == pytest.approx(1.1)


# --- fences of worker and epoch --------------------------------------------------------------------------------------


@pytest.mark.claim("a-frame-feeds-no-request-that-its-worker-was-not-given")
def test_a_frame_of_another_worker_feeds_no_request() -> None:
    generation = decoding()
    (taken,) = generation.handle(events.FrameArrived("other", frame(generation)), 0.1)
    assert taken == events.FrameTaken("stale", "other") and len(generation.tree.tree) == 0
    generation.handle(events.FrameArrived("w", frame(generation)), 0.1)
    assert len(generation.tree.tree) == 2


@pytest.mark.claim("a-frame-feeds-no-request-that-its-worker-was-not-given")
def test_a_frame_of_an_older_epoch_feeds_no_request() -> None:
    generation = decoding()
    generation.handle(events.WorkerChanged("w", "gone"), 0.1)
    generation.handle(events.WorkerChanged("w", "assigned"), 0.2)
    (taken,) = generation.handle(events.FrameArrived("w", frame(generation, epoch=1)), 0.3)
    assert taken == events.FrameTaken("stale", "w") and len(generation.tree.tree) == 0
    generation.handle(events.FrameArrived("w", frame(generation, epoch=2)), 0.3)
    assert len(generation.tree.tree) == 2


def test_a_worker_that_is_gone_loses_its_candidates_and_is_replaced() -> None:
    generation = decoding()
    generation.handle(events.FrameArrived("w", frame(generation)), 0.1)
    outputs = generation.handle(events.WorkerChanged("w", "gone"), 0.2)
    assert [type(output) for output in outputs] == [events.Send, events.Released, events.WorkerWanted]
    assert isinstance(outputs[0].body, Close) and len(generation.tree.tree) == 0
    assert generation.handle(events.WorkerChanged("w", "gone"), 0.3) == ()


def audit(right: bool, constraint: ForcesFive | None = None) -> tuple[float, int]:
    """A worker's claim and gain with two candidates, one below the other, of which the first is right or not."""
    generation = decoding(constraint=constraint)
    generation.handle(events.FrameArrived("w", frame(generation, right=right)), 0.1)
    verify(generation)
    (released,) = of(generation.handle(events.WorkerChanged("w", "gone"), 2.0), events.Released)
    return round(released.given.claimed, 6), released.given.accepted


def test_a_worker_is_judged_by_the_candidates_among_which_the_target_chose() -> None:
    claim = math.exp(-0.1)
    assert audit(right=True) == (round(2 * claim, 6), 2)
    assert audit(right=False) == (round(claim, 6), 0), "the second one's parent was not chosen"
    assert audit(right=False, constraint=ForcesFive(PROMPT)) == (0, 0)


def test_a_worker_that_declines_or_breaks_the_protocol_is_not_asked_again() -> None:
    generation = decoding()
    generation.handle(events.WorkerChanged("w", "declined"), 0.1)
    assert generation.assignments.excluded == {"w"} and generation.wants_worker
    generation.handle(events.WorkerChanged("v", "assigned"), 0.2)
    outputs = generation.handle(events.FrameArrived("v", frame(generation, epoch=2, first=9)), 0.3)
    assert [type(output) for output in outputs] == [events.FrameTaken]
    assert outputs[0].error is not None
    assert generation.assignments.excluded == {"w", "v"} and generation.usage.frames["rejected"] == 1


def test_a_released_workers_numbering_is_forgotten() -> None:
    """It is kept by epoch, and a request may be taken away from workers again and again."""
    generation = decoding()
    generation.handle(events.FrameArrived("w", frame(generation)), 0.1)
    generation.handle(events.WorkerChanged("w", "needed"), 0.2)
    assert len(generation.tree.tree) == 2, "its candidates stay"

    again = generation.tree.merge(1, frame(generation, first=1), "w")
    assert again.known == 2, "its nodes are numbered from 1 again"


class Late(ForcesFive):
    """Its masks of candidates are never there; asking for one would wait."""

    def __call__(self, path: Sequence[int]) -> NDArray[np.bool_] | None:
        assert not path, "the engine's thread would wait for the mask"
        return super().__call__(path)

    def ready(self, path: Sequence[int], wake: Callable[[], None] | None = None) -> bool:
        return not path


@pytest.mark.claim("a-late-mask-keeps-its-own-completion-waiting-and-no-other")
def test_a_round_ends_before_a_candidate_whose_mask_is_late() -> None:
    for constraint, tokens in ((ForcesFive(PROMPT, ()), 3), (Late(PROMPT, ()), 1)):
        generation = decoding(constraint=constraint)
        generation.handle(events.FrameArrived("w", frame(generation)), 0.1)
        (chosen,) = of(verify(generation), events.Chosen)
        assert len(chosen.tokens) == tokens


@pytest.mark.parametrize("drafted", [False, True])
def test_only_a_refuted_draft_counts_as_a_divergence(drafted: bool) -> None:
    """A worker drafts on from the target's position if only a source without a model was wrong."""
    generation = decoding("plain")
    wrong = (int(next_logits(PROMPT).argmax()) + 1) % VOCAB
    if drafted:
        generation.handle(events.FrameArrived("w", frame(generation, right=False)), 0.1)
    else:
        generation.account.suggested("lookup", (), 1, None)
        generation.tree.suggest(generation.tree.root, wrong, 0.5, "lookup")
    (commit,) = of(verify(generation), events.Send)
    assert commit.diverged is drafted


# --- reading, rounds, ends -------------------------------------------------------------------------------------------


def test_a_prompt_is_read_in_chunks_up_to_the_last_token() -> None:
    generation = made()
    outputs = generation.handle(events.Admitted(2), 3.0)
    assert outputs == (events.WorkerWanted(),) and generation.status is Status.PREFILL
    generation.handle(events.Read(3, 0.1), 3.1)
    assert generation.status is Status.PREFILL and generation.prefilled == 5
    generation.handle(events.Read(2, 0.1), 3.2)
    assert generation.status is Status.DECODE
    assert generation.usage.times.queued_s == 3.0 and generation.usage.times.prefill_s == pytest.approx(0.2)


def test_a_round_keeps_the_path_commits_it_and_emits_it() -> None:
    generation = decoding()
    generation.handle(events.FrameArrived("w", frame(generation)), 0.1)
    send, chosen = verify(generation)
    assert chosen.rows == [0, 1, 2] and len(chosen.tokens) == 3
    assert isinstance(send.body, Commit) and send.body.tokens == chosen.tokens and send.body.prefix_len == len(PROMPT)
    assert chosen.event.tokens == tuple(chosen.tokens) and not send.diverged


def test_a_cancelled_request_ends_with_its_round_and_emits_nothing() -> None:
    generation = decoding()
    assert generation.handle(events.Ended("left"), 0.1) == ()
    outputs = verify(generation)
    assert of(outputs, events.Finished) == [events.Finished("cancelled")]
    assert [chosen.event for chosen in of(outputs, events.Chosen)] == [None]


def test_a_cancelled_request_that_is_preempted_ends_and_waits_no_more() -> None:
    generation = decoding()
    assert generation.handle(events.Ended("left"), 0.1) == ()
    outputs = generation.handle(events.Preempted(), 0.2)
    assert of(outputs, events.Finished) == [events.Finished("cancelled")]
    assert of(outputs, events.Drop) == [], "the end frees slot and local draft"
    assert generation.status is Status.FINISHED


def test_the_policy_receives_a_round_before_anything_later() -> None:
    received: list[str] = []

    class Listening(Policy):
        name = "listening"

        def decide(self, *_: object) -> Wait:
            received.append("decide")
            return Wait(9.0)

        def received(self, *_: object) -> None:
            received.append("received")

        def verified(self, outcome: object, now: float) -> None:
            received.append(f"verified {now}")

    generation = decoding()
    generation.policy = Listening()
    verify(generation, 1.0)
    generation.handle(events.FrameArrived("w", frame(generation)), 2.0)
    generation.decide(LINK, COSTS, 3.0)
    verify(generation, 4.0)
    generation.decide(LINK, COSTS, 5.0)
    assert received == ["verified 1.0", "received", "decide", "verified 4.0", "decide"]


def test_a_failed_pass_is_retried_with_what_was_emitted_then_ends() -> None:
    generation = decoding()
    verify(generation)
    emitted = list(generation.tree.prefix.tokens)
    outputs = generation.handle(events.Failed("pass", "x"), 2.0)
    assert of(outputs, events.Drop) == [events.Drop(slot=True)] and generation.status is Status.QUEUED
    assert generation.reading == emitted and generation.retries.alone and not generation.wants_worker
    generation.handle(events.Admitted(0), 2.1)
    generation.handle(events.Read(len(emitted) - 1), 2.2)
    assert isinstance(generation.decide(None, COSTS, 2.3), Verify)
    (finished,) = of(generation.handle(events.Failed("own-pass", "x"), 2.4), events.Finished)
    assert finished.finish == "error" and generation.status is Status.FINISHED


def test_only_a_pass_of_its_own_ends_a_request_that_is_suspected() -> None:
    """A pass for several requests may fail by the fault of any of them."""
    generation = decoding()
    for retry in range(1, 2 * MAX_RETRIES):
        outputs = generation.handle(events.Failed("pass", "x"), 1.0)
        assert of(outputs, events.Finished) == []
        assert (generation.status, generation.retries.count) == (Status.QUEUED, retry)
        generation.handle(events.Admitted(len(generation.reading) - 1), 1.0)
        assert generation.retries.alone
    (finished,) = of(generation.handle(events.Failed("own-pass", "x"), 2.0), events.Finished)
    assert finished.finish == "error"


@pytest.mark.parametrize("scope", ["speculation", "pass", "own-pass"])
def test_after_a_fault_no_source_is_asked_and_no_token_forced(
    scope: Literal["speculation", "pass", "own-pass"],
) -> None:
    constraint = ForcesFive(PROMPT, range(VOCAB))
    generation = decoding(constraint=constraint)
    generation.sources = make_sources(Adaptive(), PolicySettings(), PROMPT)
    assert list(generation.ask_sources()) == ["lookup"]
    verify(generation, 0.5)
    assert [node.token for node in generation.forced] == [5]

    generation.handle(events.Failed(scope, "x"), 1.0)
    if scope != "speculation":
        generation.handle(events.Admitted(len(generation.reading) - 1), 1.0)
    assert list(generation.ask_sources()) == []
    assert verify(generation, 2.0)
    assert list(generation.forced) == []


def test_a_good_pass_ends_suspicion_until_it_was_retried_twice() -> None:
    generation = decoding()
    for retry in range(1, MAX_RETRIES + 1):
        generation.handle(events.Failed("pass", "x"), 1.0)
        generation.handle(events.Admitted(len(generation.reading) - 1), 1.0)
        verify(generation, nodes=[])
        assert generation.retries.alone == (retry == MAX_RETRIES)


def test_an_input_that_cannot_happen_is_a_fault_of_the_driver() -> None:
    with pytest.raises(ValueError, match="Read cannot happen to a request that is queued"):
        made().handle(events.Read(1), 0.0)
    assert {status for status, _ in TABLE} == set(Status)


@pytest.mark.parametrize(("draft_reads", "decoding_s"), [(False, 4.0), (True, 3.0)])
def test_decoding_is_timed_from_the_end_of_the_prompts_reading_on(draft_reads: bool, decoding_s: float) -> None:
    """So the first pass counts, whose tokens do."""
    generation = made("plain")
    generation.handle(events.Admitted(0), 1.0)
    generation.handle(events.Read(len(PROMPT) - 1, 2.0), 3.0)
    if draft_reads:
        generation.note(events.Spent("reading", 1.0), 4.0)
    for now in (5.0, 7.0):
        verify(generation, now)
    assert generation.usage.times.decode_s == decoding_s and generation.usage.times.total_s == 6


def test_time_before_the_worker_ends_with_the_first_workers_first_frame() -> None:
    generation = decoding()
    verify(generation, 2.0)
    generation.handle(events.FrameArrived("w", frame(generation)), 3.0)
    generation.handle(events.WorkerChanged("w", "gone"), 4.0)
    generation.handle(events.WorkerChanged("v", "assigned"), 5.0)
    verify(generation, 6.0)
    generation.handle(events.FrameArrived("v", frame(generation, epoch=2)), 7.0)
    assert (generation.usage.times.before_worker_s, generation.usage.before_worker_tokens) == (3.0, 1)
