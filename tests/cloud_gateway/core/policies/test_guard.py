"""The guard: when the worker's way is left, for what, and when it is tried again; the reference, and the budget of
passes.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from cloud_gateway.core.policies.adaptive import Adaptive
from cloud_gateway.core.policies.completion import CompletionState
from cloud_gateway.core.policies.guard import ESTIMATE_INTERVAL, Guard, Mode, Reference
from cloud_gateway.core.policies.policy import Costs, LinkView, Outcome
from cloud_gateway.core.policies.tuning import TUNING
from cloud_gateway.core.policies.worth import tree_s
from cloud_gateway.core.requests.accounting import Stats, count_guard
from cloud_gateway.core.requests.request import Usage
from cloud_gateway.core.verify.candidates import CandidateTree
from edgespec_lab.link_model import LinkModel
from edgespec_lab.sim.config import load
from edgespec_lab.sim.experiment import Arm, Cell, simulate
from edgespec_lab.sim.sweep import WORKER, Place, steps_at
from edgespec_lab.sim.tokens import Iid
from tests.support.local_policies import WITH_LOCAL

TT = 0.1
TD = 0.01
COSTS = Costs(lambda rows: TT, TD)
SHARES = (0.8, 0.1, 0.05, 0.02)
ALONE_S = tree_s(COSTS, SHARES, 16)
MIN_TOKENS = TUNING.prior_tokens
FIRST_INTERVAL = TUNING.first_interval


def after(guard: Guard, tokens: int, token_s: float) -> Guard:
    for _ in range(tokens):
        guard.round(1, token_s / TT)
    return guard


def choice(guard: Guard, costs: Costs = COSTS, remaining: float = 100) -> Mode:
    guard.choose(costs, SHARES, 16, remaining)
    return guard.mode


BEHIND = Costs(lambda rows: TT, TD, local_backlog_s=50 * (0.8 * TT - ALONE_S))
"""The rest of the prompt costs so much that the gateway alone would take 0.8 of plain decoding."""


@pytest.mark.parametrize(
    ("pace", "costs", "remaining", "mode"),
    [
        (0.9 * ALONE_S, COSTS, 100, "normal"),
        (1.01 * ALONE_S, COSTS, 100, "normal"),
        (1.1 * ALONE_S, COSTS, 100, "alone"),
        (0.78 * TT, BEHIND, 100, "normal"),
        (0.9 * TT, BEHIND, 100, "alone"),
        (0.9 * TT, BEHIND, 5, "normal"),
        (1.1 * TT, Costs(lambda rows: TT), 100, "alone"),
        (0.9 * TT, Costs(lambda rows: TT), 100, "normal"),
    ],
)
def test_the_mode_is_the_quickest_for_what_remains(pace: float, costs: Costs, remaining: float, mode: Mode) -> None:
    assert choice(after(Guard("latency"), 20, pace), costs, remaining) == mode


def test_nothing_is_judged_before_it_was_measured() -> None:
    assert choice(after(Guard("latency"), int(MIN_TOKENS) - 1, 1.2 * ALONE_S)) == "normal"
    assert choice(after(Guard("latency"), int(MIN_TOKENS), 1.2 * ALONE_S)) == "alone"


def test_passes_here_are_spared_as_far_as_it_is_preferred() -> None:
    assert choice(after(Guard("latency"), 20, 1.05 * ALONE_S)) == "alone"
    assert choice(after(Guard("balanced"), 20, 1.05 * ALONE_S)) == "normal"
    assert choice(after(Guard("balanced"), 20, 1.1 * ALONE_S)) == "alone"
    chains_s = Reference.of(COSTS, SHARES[0]).token_s
    assert 0.9 * chains_s > ALONE_S
    assert choice(after(Guard("offload"), 20, 1.1 * chains_s)) == "normal"
    assert choice(after(Guard("offload"), 20, 1.15 * chains_s)) == "alone"


def test_long_waits_are_judged_before_so_many_tokens_have_come() -> None:
    assert choice(after(Guard("latency"), 1, (0.99 + TUNING.max_tokens_lost) * ALONE_S)) == "normal"
    assert choice(after(Guard("latency"), 1, (1.01 + TUNING.max_tokens_lost) * ALONE_S)) == "alone"


def test_each_failed_probe_doubles_the_interval() -> None:
    guard = after(Guard("latency"), 20, 2 * ALONE_S)
    intervals = list[int]()
    local = 0
    for _ in range(int(8 * FIRST_INTERVAL)):
        if choice(guard) == "alone":
            local += 1
        elif local:
            intervals.append(local)
            local = 0
        after(guard, 1, (2 if guard.mode == "normal" else 1) * ALONE_S)
    assert intervals == [FIRST_INTERVAL, 2 * FIRST_INTERVAL, 4 * FIRST_INTERVAL]


def test_a_probe_that_succeeds_ends_the_guards_modes() -> None:
    guard = after(Guard("latency"), 20, 2 * ALONE_S)
    assert choice(guard) == "alone"
    after(guard, int(FIRST_INTERVAL), ALONE_S)
    modes = [choice(after(guard, 1, 0.5 * ALONE_S)) for _ in range(100)]
    assert set(modes) == {"normal"}


def driven(policy: Adaptive, pace: Callable[[int], float]) -> list[tuple[int, str, str]]:
    """The changes of mode of an answer whose tokens take so many seconds each: (token, mode, reason)."""
    tree = CandidateTree([1, 2])
    now = 0.0
    found = list[tuple[int, str, str]]()
    link = LinkView(0.02, 0.02, TD, ready=True)
    for token in range(100):
        policy.decide(tree, link, COSTS, now)
        if (change := policy.change) is not None:
            found.append((token, *change))
        now += pace(token)
        tree.advance([7])
        policy.verified(Outcome(0, 1, True, 0.0, tree.root.position), now)
    return found


def test_each_change_is_named_once_with_its_reason() -> None:
    slow = math.ceil(TUNING.max_tokens_lost)  # each token takes twice the time that it would take alone
    policy = Adaptive()
    probe = slow + int(FIRST_INTERVAL)

    def pace(token: int) -> float:
        return (2 if policy.guard.mode == "normal" else 1) * tree_s(COSTS, policy.tree_model.here.shares, 16)

    assert driven(policy, pace) == [(slow, "alone", "slower"), (probe, "normal", "probe"),
                                    (probe + slow, "alone", "slower")]  # fmt: skip
    assert "slower than without it" in (policy.why or "")


def test_the_estimate_of_the_pace_alone_follows_the_draft() -> None:
    guard = after(Guard("latency"), 20, 1.2 * ALONE_S)
    poor = (0.05, 0.02, 0.01, 0.01)
    for _ in range(20):
        guard.choose(COSTS, poor, 16, 100)
        assert guard.mode == "normal"
    modes = [choice(guard) for _ in range(ESTIMATE_INTERVAL)]
    assert modes[-1] == "alone"


def test_a_probe_is_judged_by_a_fresh_estimate() -> None:
    guard = after(Guard("latency"), 20, 1.2 * ALONE_S)
    for _ in range(ESTIMATE_INTERVAL + 1):
        assert choice(guard) == "alone"
    after(guard, int(FIRST_INTERVAL), ALONE_S)

    better = (0.95, 0.02, 0.01, 0.01)
    modes = list[Mode]()
    for _ in range(int(MIN_TOKENS) + 1):
        guard.choose(COSTS, better, 16, 100)
        modes.append(guard.mode)
        after(guard, 1, 0.9 * ALONE_S)
    assert modes[0] == "normal" and modes[-1] == "alone"


def test_changes_are_counted_in_usage_and_metrics() -> None:
    policy = Adaptive()
    usage = Usage()
    stats = Stats()
    policy.change = ("alone", "slower")
    count_guard(usage, policy)
    count_guard(usage, policy)
    policy.change = None
    count_guard(usage, policy)
    stats.add(usage)
    stats.add(usage)
    assert usage.guard == {"alone": {"slower": 2}} and stats.ended.guard == {"alone": {"slower": 4}}


WORST = {
    "gets a third of its core": {"ratio": 0.1, "noise": 2.0},
    "three times slower, other jobs": {"ratio": 0.1, "slower": 3.0, "noise": 1.0},
    "ten times slower than it says": {"ratio": 0.1, "slower": 10.0},
    "200 ms away": {"ratio": 0.1, "rtt_ms": 200.0},
    "stalls after Open": {"ratio": 0.1, "slower": 1e5},
    "always wrong": {"ratio": 0.1, "match": 0.02},
}


@pytest.mark.parametrize("case", WORST)
@pytest.mark.parametrize("local", [True, False])
def test_a_bad_worker_costs_at_most_the_probe(case: str, local: bool) -> None:
    """Five answers of 80 tokens, each against the better of plain and co-located decoding."""
    place = Place(**{"curve": "q4_0", "match": 0.75, "rtt_ms": 20.0, **WORST[case]})
    steps = steps_at(place, load("sweep"))
    net = LinkModel(place.rtt_ms / 1000)

    def seconds(arm: Arm) -> list[float]:
        return [one.seconds for one in simulate(Cell(arm, Iid(match=place.match), net, steps, 80, runs=5), WITH_LOCAL)]

    alone = [seconds(Arm("plain", "plain"))]
    if local:
        alone.append(seconds(Arm("co-located", "local-chain")))
    best = min(alone, key=sum)
    ours = seconds(Arm("adaptive", "adaptive", WORKER, local=local))
    ratios = sorted(mine / theirs for mine, theirs in zip(ours, best, strict=True))
    assert ratios[-2] <= (1.05 if local else 1.02), ratios


PASS_S = 0.01034
STEP_S = 0.00373
OWN = Costs(lambda rows: PASS_S, STEP_S)


def test_the_reference_is_colocated_decoding_with_k_2_or_plain_decoding() -> None:
    assert Reference.of(OWN, 0.8).token_s == pytest.approx((PASS_S + 2 * STEP_S) / 2.44)
    assert Reference.of(OWN, 0.8).passes == pytest.approx(2 / 2.44)
    assert Reference.of(Costs(lambda rows: PASS_S), 0.8).token_s == PASS_S
    assert Reference.of(Costs(lambda rows: PASS_S, 2 * PASS_S), 0.8).token_s == PASS_S, "drafts would take longer"


def test_others_that_share_the_passes_do_the_same_and_are_waited_for() -> None:
    busy = Costs(lambda rows: PASS_S * rows**0.5, STEP_S, sharers=3)
    assert Reference.of(busy, 0.8).colocated_s == pytest.approx((12**0.5 * PASS_S + 8 * STEP_S) / 2.44)
    assert Reference.of(busy, 0.8).plain_s == 2 * PASS_S


@pytest.mark.parametrize("run", [1, 5])
def test_runs_may_overdraw_and_passes_keep_to_the_share(run: int) -> None:
    completion = CompletionState("balanced")
    made = 0
    for _ in range(400):
        for _ in range(run if completion.may_draft else 0):
            completion.drafts(1.0)
            made += 1
        completion.ended(1, 0.8, 0.0)
    assert made == pytest.approx(TUNING.draft_pass_share * 0.8 * 400, abs=run)


def test_a_shared_pass_counts_by_its_share_and_one_not_made_not_at_all() -> None:
    completion = CompletionState("balanced")
    completion.ended(1, 1 / TUNING.draft_pass_share, 0.0)
    for _ in range(4):
        assert completion.may_draft
        completion.drafts(1.0)
        completion.withdraws()
        completion.drafts(1 / 4)
    assert not completion.may_draft


def test_reading_counts_on_the_share_of_rounds_that_had_a_use_for_a_run() -> None:
    costs = Costs(lambda rows: TT, TD, remaining=100)
    seldom = CompletionState("balanced")
    often = CompletionState("balanced")
    for token in range(24):
        often.wants_run = True
        seldom.ended(1, 0.8, float(token))
        often.ended(1, 0.8, float(token))
    prior = TUNING.prior_tokens * TUNING.draft_pass_share
    assert seldom.runs(costs, 0.0) == pytest.approx(100 * prior / 32)
    assert often.runs(costs, 0.0) == pytest.approx(100 * (24 + prior) / 32)

    later = CompletionState("balanced")
    later.resume(often.state(None))
    assert later.runs(replace(costs, remaining=10), 0.0) == pytest.approx(10 * (24 + prior) / 32)


def test_before_its_first_frame_a_worker_is_not_judged() -> None:
    policy = Adaptive()
    tree = CandidateTree([1, 2])
    link = LinkView(0.02, 0.02, TD, ready=False)
    for token in range(40):
        policy.decide(tree, link, COSTS, 3 * TT * token)
        tree.advance([7])
        policy.verified(Outcome(0, 1, True, 0.0, tree.root.position), 3 * TT * (token + 1))
    assert policy.guard.mode == "normal" and policy.guard.state()[:2] == [0.0, 0.0]
