"""The simulator: it repeats itself, it agrees with closed forms, and it drives what ships."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from cloud_gateway.core.requests import generation
from cloud_gateway.core.verify.accept import walk
from edgespec_lab.choices import gateway_choices
from edgespec_lab.link_model import LinkModel
from edgespec_lab.sim.experiment import Arm, Cell, Simulator, WorkerSpec, rows_of, simulate
from edgespec_lab.sim.network import Pipe, wire_bytes
from edgespec_lab.sim.process import child, draft
from edgespec_lab.sim.theory import expected_tokens
from edgespec_lab.sim.tokens import Iid
from edgespec_lab.sim.world import Curve, Steps, run
from tests.support.served import compares

POLICIES = gateway_choices().policies
SIMULATOR = Simulator(POLICIES, processes=1)
TT = 0.01034
TD = 0.00373
STEPS = Steps(Curve({1: TT}), Curve({1: TD}), Curve({1: TD}), catch_up_s=0.0)
KIND = Iid()
CHAIN = WorkerSpec(branching=1, sequences=1)
TREE = WorkerSpec("bestfirst", 4, 0.0, 16)


def arm(policy: str, worker: WorkerSpec | None = None, **options: object) -> Arm:
    return Arm(policy, policy, worker, **options)


def cell(arm: Arm, rtt_ms: float = 0.0, *, runs: int = 4, tokens: int = 60, kind: Iid = KIND, **net: float) -> Cell:
    return Cell(arm, kind, LinkModel(rtt_ms / 1000, **net), STEPS, tokens, runs)


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("rtt_ms", [0, 40])
def test_every_policy_emits_the_targets_tokens_and_repeats_itself(policy: str, rtt_ms: float) -> None:
    noisy = cell(arm(policy, TREE), rtt_ms, runs=1, jitter_s=0.002, loss=0.05)
    (found,) = simulate(noisy, POLICIES)  # run() compares every token
    assert found.tokens == 60
    assert simulate(noisy, POLICIES) == [found], "to the last bit"


def test_a_gateway_that_emits_a_wrong_token_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    real = walk

    def lying(flat: object, choose: object, **more: object) -> object:
        taken = real(flat, choose, **more)
        taken.tokens[-1] += 1
        return taken

    monkeypatch.setattr(generation, "walk", lying)
    with pytest.raises(AssertionError, match="not the target's"):
        simulate(cell(arm("plain"), runs=1), POLICIES)


@compares
@pytest.mark.parametrize("k", [1, 2, 4])
def test_colocated_chains_take_what_the_closed_form_says(k: int) -> None:
    results = simulate(cell(arm("colocated", k=k), runs=20, tokens=400), POLICIES)
    per_round = sum(r.tokens for r in results) / sum(r.rounds for r in results)
    assert per_round == pytest.approx(expected_tokens(0.8, k), rel=0.02)
    assert results[0].seconds == pytest.approx(results[0].rounds * (TT + k * TD))
    assert results[0].local_passes == k * results[0].rounds


def test_at_no_round_trip_an_asynchronous_draft_sets_the_pace() -> None:
    """With a draft that is always right the target keeps up with it: one token a draft step, as AMUSD has it."""
    sure = Iid(match=1 - 1e-9, spread=1e6)
    result = simulate(cell(arm("wanspec", CHAIN, phi=99.0), runs=1, tokens=300, kind=sure), POLICIES)[0]
    assert result.seconds / 300 == pytest.approx(TD, rel=0.05)
    assert result.local_passes <= 2


@compares
def test_algorithm_1_falls_back_to_colocated_decoding_at_long_round_trips() -> None:
    (row,) = rows_of([cell(arm("wanspec", CHAIN, phi=-1.0), 300)], SIMULATOR)
    assert row["latency_ratio"] == pytest.approx(1.0, abs=0.01)
    assert row["draft_ratio"] == pytest.approx(1.0, abs=0.03)


@pytest.mark.parametrize("policy", ["wanspec", "adaptive", pytest.param("amusd", marks=compares)])
@pytest.mark.parametrize("leaves_s", [0.02, 0.2])
def test_when_a_worker_leaves_the_other_goes_on(policy: str, leaves_s: float) -> None:
    """run() compares every token; nothing is assigned again, so all frames after that are the other one's."""
    kind = Iid().make(1, 60)
    made = [TREE.make(2, STEPS.worker, epoch) for epoch in (1, 2)]
    both = run(arm(policy).controller(POLICIES), made, kind, LinkModel(0.02), STEPS, 60, 1, leaves_s=leaves_s)
    assert both.tokens == 60
    assert made[1].part.count == 1 and made[0].part.count == 2
    assert len(made[1].prefix) > len(made[0].prefix), "the one that left is sent no more commits"


def test_a_worker_that_drafts_while_the_target_reads_the_prompt_is_ahead() -> None:
    kind = Iid(match=0.98).make(1, 60)
    cold, ahead = (
        run(arm("adaptive").controller(POLICIES), [TREE.make(2, STEPS.worker, 1)], kind, LinkModel(0.02), STEPS, 60, 1,
            ahead_s=ahead_s)
        for ahead_s in (0.0, 0.2)
    )  # fmt: skip
    assert ahead.seconds < cold.seconds - 0.02, "the round trip at least"
    assert ahead.local_passes == 0 < cold.local_passes, "which drafts here until it is ready"


@compares
def test_two_workers_that_share_the_branches_are_no_slower_than_one() -> None:
    one, two = (
        rows_of([cell(arm("adaptive", replace(TREE, count=count), local=False), 20, runs=8)], SIMULATOR)[0]
        for count in (1, 2)
    )
    assert two["tokens_per_round"] > one["tokens_per_round"]
    assert two["ms_per_token"] < one["ms_per_token"]


def test_bandwidth_delays_what_is_sent_at_once() -> None:
    pipe = Pipe(LinkModel(0.0, bandwidth_bps=1e6), random.Random(1))
    size = wire_bytes(4000)
    assert size == 4096 + 68, "padded to a power of two"
    assert pipe.send(0.0, 4000) == pytest.approx(size * 8e-6)
    assert pipe.send(0.0, 4000) == pytest.approx(2 * size * 8e-6)


def test_the_synthetic_process_has_the_ranks_that_it_is_given() -> None:
    process = Iid(match=0.8).make(1, 20_000)
    ranks = [0] * 5
    for position in range(20_000):
        tokens = list(process.on_path(position).tokens)
        target = process.targets[position + 1]
        ranks[tokens.index(target) if target in tokens else 4] += 1
    shares = [count / 20_000 for count in ranks]
    assert shares == pytest.approx([0.8, 0.1, 0.05, 0.025, 0.025], abs=0.01)


def test_off_the_path_drafts_are_the_same_wherever_they_are_asked_for() -> None:
    process = Iid().make(1, 10)
    state = child(process, 3, -5)
    assert state < 0 and state == child(process, 3, -5) != child(process, 3, -6)
    assert draft(process, state) is draft(process, state)
    assert child(process, 3, process.targets[4]) == 4


@compares
@pytest.mark.parametrize(("rtt_ms", "others"), [(10, "offload"), (50, "balanced")])
def test_adaptive_is_no_slower_than_what_the_gateway_drafts_alone(rtt_ms: float, others: str) -> None:
    alone = [arm("colocated"), *(arm("colocated-tree", k=k, verify_nodes=16) for k in (3, 4))]
    mine = [arm("adaptive", TREE, verify_nodes=16, prefer=prefer) for prefer in ("latency", others)]
    # With four completions alone, one more trial of the worker decides.
    rows = rows_of([cell(one, rtt_ms, runs=16) for one in (*alone, *mine)], SIMULATOR)
    best = min(row["latency_ratio"] for row in rows[:3])
    assert all(row["latency_ratio"] <= best + 0.01 for row in rows[3:])
    if others == "offload":
        assert rows[-1]["draft_ratio"] < 0.1, "a near worker leaves the gateway hardly any drafting"
