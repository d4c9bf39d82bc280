"""The limit on the target's entropy under policy `adaptive`, set or learnt."""

from __future__ import annotations

import json

import pytest
from msgspec import convert

from cloud_gateway.core.policies.adaptive import Adaptive
from cloud_gateway.core.policies.policy import Outcome, Wait
from cloud_gateway.core.policies.settings import PolicySettings
from cloud_gateway.core.requests.accounting import add_policy
from cloud_gateway.core.requests.request import Usage
from cloud_gateway.core.verify.candidates import CandidateTree, Merged
from tests.cloud_gateway.core.policies.test_adaptive import TD, TT, decide


def unsure(phi: float | str, entropy: float) -> Adaptive:
    """A policy whose worker streams, after a walk that ended at an open leaf with this entropy."""
    policy = Adaptive(PolicySettings(prefer="offload", phi=phi))
    tree = CandidateTree([1, 2])
    decide(policy, tree, 0.1)
    policy.received(Merged(fresh=1, reached=2), TT)
    tree.advance([7, 8])
    policy.verified(Outcome(1, 2, True, entropy, 3), TT)
    return policy


def waits(policy: Adaptive) -> bool:
    """Whether it waits for the level after that token, which is due in a tenth of a draft step."""
    return isinstance(decide(policy, CandidateTree([1, 2, 7, 8]), 0.1, TT + 1.9 * TD), Wait)


@pytest.mark.parametrize(("phi", "waiting"), [(0.0, False), (1.0, False), (2.0, True), (100.0, True)])
def test_above_phi_the_worker_counts_as_diverged(phi: float | str, waiting: bool) -> None:
    assert waits(unsure(phi, 1.5)) == waiting


def steep(entropy: float) -> Adaptive:
    """A policy with a learnt φ whose worker was right after low entropies and wrong after high ones, and streams, after
    a walk that ended at an open leaf."""
    policy = Adaptive(PolicySettings(prefer="offload"))
    tree = CandidateTree([1, 2])
    for _ in range(60):
        policy.worker.odds.observe(0.2, on_path=True)
        policy.worker.odds.observe(3.0, on_path=False)
    decide(policy, tree, 0.1)
    policy.received(Merged(fresh=1, reached=2), TT)
    tree.advance([7, 8])
    assert policy.needs_entropy(tree, emitted=2, at_leaf=True)
    policy.verified(Outcome(1, 2, True, entropy, 3), TT)
    return policy


def test_the_learnt_limit_ends_waiting_after_a_high_entropy() -> None:
    sure = steep(0.2)
    unsure_ = steep(3.0)
    tree = CandidateTree([1, 2, 7, 8])
    assert isinstance(decide(sure, tree, 0.1, TT + 0.9 * TD), Wait)
    assert not isinstance(decide(unsure_, tree, 0.1, TT + 0.9 * TD), Wait)
    assert sure.learnt_phi is not None and unsure_.learnt_phi is not None
    assert (sure.learnt_phi.leaves, sure.learnt_phi.above) == (1, 0) and (
        unsure_.learnt_phi.leaves,
        unsure_.learnt_phi.above,
    ) == (1, 1)
    assert sure.learnt_phi.nats == unsure_.learnt_phi.nats is not None and 0.2 < sure.learnt_phi.nats < 3.0


def test_the_limit_becomes_part_of_the_usage() -> None:
    policy = steep(3.0)
    usage = Usage()
    decide(policy, CandidateTree([1, 2, 7, 8]), 0.1, TT + 0.9 * TD)
    add_policy(usage, policy)
    assert usage.phi == policy.learnt_phi is not None
    add_policy(usage, Adaptive())
    assert usage.phi == policy.learnt_phi, "what a later policy did not learn replaces nothing"


def test_a_leaf_is_counted_once_however_often_it_is_decided_on() -> None:
    policy = steep(3.0)
    for _ in range(3):
        decide(policy, CandidateTree([1, 2, 7, 8]), 0.1, TT + 0.9 * TD)
    assert policy.learnt_phi is not None and policy.learnt_phi.leaves == 1


def test_the_learnt_limit_is_carried_to_the_next_completion() -> None:
    policy = steep(0.2)
    resumed = Adaptive()
    resumed.resume(json.loads(json.dumps(policy.state())))
    assert resumed.worker.odds.state() == policy.worker.odds.state()
    assert resumed.worker.odds.chance(3.0) < 0.2 < Adaptive().worker.odds.chance(3.0)


@pytest.mark.parametrize("phi", ["learnt", 2.0])
def test_the_entropy_is_needed_only_where_a_worker_may_be_on_the_path(phi: float | str) -> None:
    settings = convert({"phi": phi}, PolicySettings)
    tree = CandidateTree([1, 2])

    def needs(policy: Adaptive, *, at_leaf: bool = True) -> bool:
        return policy.needs_entropy(tree, emitted=1, at_leaf=at_leaf)

    alone = Adaptive(settings)
    decide(alone, tree, None)
    assert not needs(alone), "no worker"
    lost = Adaptive(settings)
    decide(lost, tree, 0.1)
    assert not needs(lost), "it has sent nothing yet"
    streaming = Adaptive(settings)
    decide(streaming, tree, 0.1)
    streaming.received(Merged(fresh=1, reached=2), TT)
    assert needs(streaming)
    streaming.guard.mode = "alone"
    assert not needs(streaming), "the worker was left"


def test_a_token_that_a_draft_proposed_needs_no_entropy() -> None:
    policy = Adaptive()
    tree = CandidateTree([1, 2])
    decide(policy, tree, 0.1)
    policy.received(Merged(fresh=1, reached=2), TT)
    tree.add_local(tree.root, 7, 0.1, 0.3)
    tree.advance([7])
    assert not policy.needs_entropy(tree, emitted=1, at_leaf=True)
    assert not policy.needs_entropy(CandidateTree([1, 2]), emitted=1, at_leaf=False)
