"""The sweep over places: it covers its grid, goes on from its interruption, and says who is better."""

from __future__ import annotations

from typing import Any

import pytest

from cloud_gateway.core.policies.registry import POLICIES
from cloud_gateway.core.verify.candidates import CandidateTree
from edgespec.core.drafting.tree import Node
from edgespec_lab.link_model import LinkModel
from edgespec_lab.sim import sweep
from edgespec_lab.sim.config import load
from edgespec_lab.sim.experiment import Arm, Cell, Row, simulate
from edgespec_lab.sim.steps import LocalReading
from edgespec_lab.sim.tokens import Iid
from edgespec_lab.sim.world import Curve, Steps

CONFIG = load("sweep")


def row(latency: float, rival: float, passes: float = 0.0) -> Row:
    cell = {"median": latency, "p90": latency, "passes": 0.2}
    return {"latency": cell, "wanspec": {"k=2": {"median": rival, "p90": rival, "passes": passes}}}


@pytest.mark.parametrize(
    ("rival", "passes", "named"), [(0.97, 0.2, True), (0.985, 0.2, False), (0.5, 0.3, False)]
)  # fmt: skip
def test_a_wanspec_is_better_by_two_per_cent_at_no_more_passes(rival: float, passes: float, named: bool) -> None:
    assert (sweep.beaten(row(1.0, rival, passes), "latency") is not None) == named


def chain(tree: CandidateTree, length: int) -> list[Node]:
    nodes: list[Any] = [tree.root]
    for token in range(length):
        nodes.append(tree.add_local(nodes[-1], token, 0.1, 0.1))
    return nodes


def test_a_local_step_pays_for_all_that_it_has_not_evaluated() -> None:
    tree = CandidateTree([0] * 11)
    steps = Steps(Curve({1: 0.1}), Curve({1: 1.0}), Curve({1: 1.0}), catch_up_s=0.01)
    local = LocalReading(steps, tree.root.position - 6)
    _, first, second = chain(tree, 2)
    assert local.backlog(tree) == 6
    assert local.read(tree, 4) == pytest.approx(0.04)
    assert local.draft(tree, [second]) == pytest.approx(1.0 + 0.02 + 0.01 + 0.01), "backlog, root, first"
    assert local.draft(tree, [second]) == pytest.approx(1.0), "nothing is evaluated twice"
    tree.advance([0, 1, 7])
    local.committed([first, second], tree)
    assert local.backlog(tree) == 0, "the token 7 is the step's own"
    tree.advance([8, 9])
    local.committed([], tree)
    assert local.draft(tree, [tree.root]) == pytest.approx(1.02), "7 and 8 were not evaluated"


def test_a_step_of_the_target_follows_from_the_ratio() -> None:
    place = sweep.Place("q4_0", 0.1, 0.75, 20, slower=10.0)
    steps = sweep.steps_at(place, CONFIG)
    assert steps.local is not None and steps.local(1) / steps.verify(1) == pytest.approx(0.1)
    assert steps.worker(1) == pytest.approx(10 * steps.local(1)), "what it takes"
    assert steps.worker_says == steps.local, "what it reports"


@pytest.mark.parametrize("place", [sweep.Place("q4_0", 0.6, 0.5, 20.0), sweep.Place("sequential", 0.3, 0.5, 80.0)])
def test_a_draft_that_brings_too_little_does_not_read_the_prompt(place: sweep.Place) -> None:
    steps = sweep.steps_at(place, CONFIG)
    net = LinkModel(place.rtt_ms / 1000)
    spent = [
        sum(one.seconds for one in simulate(Cell(arm, Iid(match=place.match), net, steps, place.tokens, 5), POLICIES))
        for arm in (Arm("plain", "plain"), Arm("latency", "adaptive", sweep.WORKER, prefer="latency"))
    ]
    assert spent[1] <= 1.01 * spent[0], "1.1 to 1.2 where each token counted as a use of the draft"
