"""Policy `adaptive` for a request whose passes others share."""

from __future__ import annotations

import math

from cloud_gateway.core.policies.adaptive import Adaptive
from cloud_gateway.core.policies.policy import Action, Costs, LinkView, Verify, Wait
from cloud_gateway.core.policies.settings import PolicySettings
from cloud_gateway.core.verify.candidates import CandidateTree, Merged

PASS_S = 0.01
BEGUN_S = 0.001
"""When the worker's last frame came."""


def before_a_frame(sharers: int, worker_step_s: float) -> Action:
    """The decision 0.5 ms before a worker's frame is due, with so many other requests in the same passes."""
    policy = Adaptive(PolicySettings(prefer="offload"))
    tree = CandidateTree([1, 2])
    worker = LinkView(0.02, 0.02, worker_step_s, ready=True)
    costs = Costs(lambda rows: PASS_S, sharers=sharers, together=sharers)

    policy.decide(tree, worker, costs, 0.0)
    tree.add_local(tree.root, 5, -math.log(0.9), 0.3)
    policy.received(Merged(fresh=1, reached=2), BEGUN_S)
    return policy.decide(tree, worker, costs, BEGUN_S + worker_step_s - 0.0005)


def test_a_wait_beside_others_costs_the_pass_that_they_begin_meanwhile() -> None:
    """The next pass comes only after that one, so that a frame due in 0.5 ms is worth less than for a lone request."""
    assert isinstance(before_a_frame(0, PASS_S / 2), Wait)
    assert isinstance(before_a_frame(1, PASS_S / 2), Verify)
    assert isinstance(before_a_frame(1, PASS_S / 8), Wait), "many levels come meanwhile, which are worth a pass"
