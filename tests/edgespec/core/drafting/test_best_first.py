"""The best-first rule: which leaves it evaluates, which nodes it sends, and frames equal to those of `Drafting`."""

from __future__ import annotations

import math
from itertools import pairwise

from cloud_gateway.core.verify.candidates import CandidateTree
from edgespec.core.drafting.algorithm2 import Proposal
from edgespec.core.drafting.best_first import BestFirst, BestFirstRule
from edgespec.core.drafting.calibration import Calibrator

PROMPT = [7, 8, 9]


def proposal(*chances: float, first: int = 100, entropy: float = 1.0) -> Proposal:
    return Proposal([first + i for i in range(len(chances))], [-math.log(p) for p in chances], entropy)


def drafting(**rule: float) -> BestFirst:
    machine = BestFirst(1, 1, len(PROMPT), BestFirstRule(**rule), calibrator=Calibrator(rate=0.0))  # type: ignore[arg-type]
    machine.commit(0, PROMPT)
    return machine


def grow(machine: BestFirst, steps: int, *chances: float) -> None:
    for step in range(steps):
        leaves = machine.candidates()
        machine.record(leaves, [proposal(*chances, first=100 + 10 * step + 1000 * i) for i, _ in enumerate(leaves)])


def test_the_root_gets_four_children_whatever_their_probability() -> None:
    machine = drafting()
    grow(machine, 1, 0.9999, 3e-5, 2e-5, 1e-5)
    assert len(machine.tree.root.children) == 4


def test_leaves_come_in_order_of_path_probability() -> None:
    machine = drafting(sequences=8)
    grow(machine, 3, 0.6, 0.2, 0.1, 0.05)
    costs = [leaf.cost for leaf in machine.candidates()]
    assert len(costs) == 8 and all(a <= b for a, b in pairwise(costs))


def test_an_unlikely_child_is_sent_once_a_commit_makes_it_likely() -> None:
    machine = drafting(floor=0.05)
    grow(machine, 1, 0.5, 0.1)
    second = machine.tree.root.children[101]
    machine.record([second], [proposal(0.5, 0.3, first=500)])
    assert set(second.children) == {500}, "0.1 x 0.3 is below the floor, 0.1 x 0.5 is not"
    machine.delta()
    machine.commit(len(PROMPT), [101])
    assert set(machine.tree.root.children) == {500, 501}
    frame = machine.delta()
    assert frame is not None and list(frame.tokens) == [501]


def test_the_gateway_takes_its_frames_across_commits() -> None:
    machine, tree = drafting(floor=0.05), CandidateTree(PROMPT)
    for _ in range(6):
        grow(machine, 2, 0.6, 0.25, 0.1)
        while (frame := machine.delta()) is not None:
            assert tree.merge("w", frame, "w").stale == 0
        token = min(machine.tree.root.children.values(), key=lambda child: child.cost).token
        machine.commit(len(machine.prefix), [token])
        tree.advance([token])
    assert tree.depth() >= 2


def test_the_number_of_leaves_follows_the_step_curve() -> None:
    flat, steep = drafting(), drafting()
    for machine in (flat, steep):
        grow(machine, 3, 0.5, 0.2, 0.15, 0.1)
    flat.step_s, steep.step_s = (lambda n: 0.004), (lambda n: 0.004 * n)
    assert len(flat.candidates()) == 16
    assert len(steep.candidates()) == 1


def test_it_is_updated_by_commits() -> None:
    machine = BestFirst(1, 1, len(PROMPT))
    machine.commit(0, PROMPT)
    for _ in range(150):
        leaves = machine.candidates()[:1]
        machine.record(leaves, [proposal(0.9, 0.06)])
        machine.commit(len(machine.prefix), [101])
    assert machine.calibrator(-math.log(0.9), 1.0, 0) < 0.5 < machine.calibrator(-math.log(0.06), 1.0, 1)
