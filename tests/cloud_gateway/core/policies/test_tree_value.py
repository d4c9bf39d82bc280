"""The worth of a tree, and what is learnt of it: rule by rule, and against slow twins that follow every path alone."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_gateway.core.policies.policy import Costs
from cloud_gateway.core.policies.tree_model import EVEN, TreeModel
from cloud_gateway.core.policies.tuning import TUNING
from cloud_gateway.core.policies.worth import Prices
from cloud_gateway.core.verify.candidates import LOCAL, CandidateTree
from edgespec.core.drafting.algorithm2 import Proposal
from edgespec.core.drafting.tree import Node


def model() -> TreeModel:
    return TreeModel()


def add(tree: CandidateTree, parent: Node, *chances: float) -> list[Node]:
    return [tree.add_local(parent, 10 + i, -math.log(p), 1.0) for i, p in enumerate(chances)]


def test_a_local_step_expands_leaves_and_half_expanded_nodes() -> None:
    tree = CandidateTree([1, 2])
    best, second = add(tree, tree.root, 0.7, 0.1)
    estimate = model().estimate(tree, 4, 4)
    assert estimate.leaves == [best, tree.root, second]
    assert sum(estimate.expected(4)) == pytest.approx(sum(estimate.shares)), "all that the target may choose"


def test_nothing_is_looked_at_behind_the_end_of_the_answer() -> None:
    tree = CandidateTree([1, 2])
    (node,) = add(tree, tree.root, 0.9)
    add(tree, node, 0.8)
    estimate = model().estimate(tree, 4, 2, tree.root.position + 1)
    assert estimate.nodes == [node] and node not in estimate.leaves


def test_the_local_drafts_candidates_cost_what_earlier_ones_taught() -> None:
    looker = model()
    tree = CandidateTree([1, 2])
    doubtful = Proposal([10, 11], [-math.log(0.6), -math.log(0.2)], 1.0)
    assert looker.priced([tree.root], [doubtful])[0].costs == pytest.approx(doubtful.costs), "as it says, at first"
    for _ in range(100):
        tree.propose([tree.root], looker.priced([tree.root], [doubtful]))
        looker.estimate(tree, 4, 2)
        tree.advance([10])
        looker.learn(2)
    (surer,) = looker.priced([tree.root], [doubtful])
    assert math.exp(-surer.costs[0]) > 0.9 and math.exp(-surer.costs[1]) < 0.05
    assert surer.tokens == doubtful.tokens and surer.entropy == doubtful.entropy


def test_what_frames_show_moves_the_match_rate_as_candidates_do() -> None:
    hits = model().worker
    for _ in range(100):
        hits.observe(hit=False)
    assert hits.match < 0.07 and sum(hits.shares) < 0.08
    for _ in range(1000):
        hits.observe(hit=True)
    assert sum(hits.shares) > 0.0


def test_candidates_are_taken_while_they_are_worth_their_rows() -> None:
    tree = CandidateTree([1, 2])
    node = tree.root
    for chance in (0.9, 0.5, 0.2, 0.2):
        (node,) = add(tree, node, chance)
    survival = model().estimate(tree, 4, 2).survival

    def count(verify_s: Callable[[int], float]) -> int:
        return Prices(Costs(verify_s), 0.005).best_count(survival)

    assert count(lambda rows: 0.010) == 4, "a flat curve takes all"
    assert count(lambda rows: 0.010 + 0.002 * rows) == 2
    assert count(lambda rows: 0.010 + 0.01 * rows) == 0
    assert count(lambda rows: 0.050 if rows in (2, 3) else 0.010) == 4, "not monotone"


def test_candidates_of_a_draft_that_is_always_wrong_become_improbable() -> None:
    tree = CandidateTree([1, 2])
    looker = model()
    for _ in range(100):
        add(tree, tree.root, 0.9)
        looker.estimate(tree, 4, 1)
        tree.advance([99])
        looker.learn(1)
    add(tree, tree.root, 0.9)
    assert looker.estimate(tree, 4, 1).survival[0] < 0.3


class SlowHits:
    """The proposal of one drafter, and the target's choice."""

    def __init__(self) -> None:
        self.shares = [share * TUNING.prior_tokens for share in TUNING.shares]
        self.full = self.judged = TUNING.prior_tokens
        self.best = TUNING.match * TUNING.prior_tokens
        self.right = self.expected = TUNING.prior_tokens

    @property
    def trust(self) -> float:
        return min(self.right / self.expected, 1.0)


class SlowTreeModel:
    """Multiplies along each path, and counts from the tree as it was before each commit."""

    def __init__(self) -> None:
        self.hits = {LOCAL: SlowHits(), "w": SlowHits()}

    def own(self, node: Node) -> float:
        """The node's probability given its parent."""
        assert node.parent is not None
        wrong = 1 - math.exp(node.parent.cost - node.cost) if node.drafted else 1.0
        surest = max((node.evidence or {}).values(), default=0.0)
        return 1 - wrong * (1 - surest)

    def survival(self, node: Node, root: Node) -> float:
        if node is root:
            return 1.0
        assert node.parent is not None
        trust = self.hits["w" if node.owner == "w" else LOCAL].trust
        return self.survival(node.parent, root) * self.own(node) * trust

    def leaves(self, tree: CandidateTree, width: int) -> dict[Node, float]:
        found = {}
        for node in (tree.root, *tree.tree.nodes.values()):
            at = self.survival(node, tree.root)
            children = list(node.children.values())
            left = at - sum(self.survival(child, tree.root) for child in children)
            named = sum(child.drafted for child in children)
            again = any(child.remote for child in children) and left > EVEN * at
            if not children or (left > 0 and (named < width or again)):
                found[node] = left
        return found

    def proposed(self, node: Node) -> dict[str, list[Node]]:
        """The children that each drafter proposed, the likeliest first."""
        drafted = sorted((child for child in node.children.values() if child.drafted), key=lambda child: child.cost)
        return {
            LOCAL: [child for child in drafted if not child.remote],
            "w": [child for child in drafted if child.remote],
        }

    def learn(self, tree: CandidateTree, tokens: list[int]) -> None:
        trusts = {name: hits.trust for name, hits in self.hits.items()}
        for node in (tree.root, *tree.tree.nodes.values()):
            for name, children in self.proposed(node).items():
                if len(children) >= 4:
                    self.hits[name].full += 1
                    for rank, child in enumerate(children[:4]):
                        self.hits[name].shares[rank] += trusts[name] * math.exp(node.cost - child.cost)
        node = tree.root
        for token in tokens:
            for name, children in self.proposed(node).items():
                hits = self.hits[name]
                hits.judged += bool(children)
                hits.expected += sum(math.exp(node.cost - child.cost) for child in children)
                hits.best += bool(children) and children[0].token == token
                hits.right += any(child.token == token for child in children)
            if token not in node.children:
                return
            node = node.children[token]


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32))
def test_a_look_equals_that_of_the_slow_twin(seed: int) -> None:
    rng = random.Random(seed)
    tree = CandidateTree([1, 2])
    fast = TreeModel()
    slow = SlowTreeModel()
    sources = rng.random() < 0.5
    fast.workers_help = rng.random() < 0.7
    for _ in range(20):
        for _ in range(rng.randrange(12)):
            parent = rng.choice([tree.root, *tree.tree.nodes.values()])
            token = rng.randrange(6)
            if sources and rng.random() < 0.3:
                tree.suggest(tree.root, rng.randrange(6), rng.choice((0.2, 0.7)), "lookup")
                tree.suggest(parent, token, rng.choice((0.1, 0.5, 0.9)), rng.choice(("lookup", "answers")))
            else:
                owner = "w" if fast.workers_help and rng.random() < 0.5 else LOCAL
                node = tree.add_local(parent, token, rng.choice((0.01, 0.3, 1.1, 3.0, 8.0)), 1.0, owner)
                assert node is not None
                node.remote = node.owner == "w"
        estimate = fast.estimate(tree, 1000, 4)
        assert {*estimate.nodes} == {*tree.tree.nodes.values()}
        assert all(node.parent in (tree.root, *estimate.nodes[:i]) for i, node in enumerate(estimate.nodes))
        expected = [slow.survival(node, tree.root) for node in estimate.nodes]
        assert list(estimate.survival) == pytest.approx(expected)
        twin = {node: mass for node, mass in slow.leaves(tree, 4).items() if mass > 1e-9}
        assert {node: mass for mass, _, node in estimate.openings if mass > 1e-9} == pytest.approx(twin)
        if rng.random() < 0.5:
            tokens = [rng.randrange(6) for _ in range(rng.randrange(1, 4))]
            slow.learn(tree, tokens)
            tree.advance(tokens)
            fast.learn(4)
            for hits, twins in ((fast.local, slow.hits[LOCAL]), (fast.worker, slow.hits["w"])):
                assert list(hits.shares) == pytest.approx([share / twins.full for share in twins.shares])
                assert hits.match == pytest.approx(twins.best / twins.judged)
                assert hits.trust == pytest.approx(twins.trust)


def both(worker: str, here: str, target: str, rounds: int = 60) -> TreeModel:
    """Both draft after each token, the worker first; each proposes one of its tokens of these letters in turn."""
    looker = TreeModel()
    tree = CandidateTree([1, 2])
    looker.workers_help = True
    tokens = {"a": 10, "b": 11}
    for _ in range(rounds):
        named = tree.add_local(tree.root, tokens[worker], 0.1, 1.0, "w")
        assert named is not None
        named.remote = True
        proposal = Proposal([tokens[here]], [0.1], 1.0)
        tree.propose([tree.root], looker.priced([tree.root], [proposal]))
        looker.estimate(tree, 4, 4)
        tree.advance([tokens[target]])
        looker.learn(4)
    return looker


@pytest.mark.claim("a-wrong-worker-leaves-the-local-draft-its-worth")
def test_hits_of_worker_and_local_draft_are_counted_apart() -> None:
    wrong = both(worker="b", here="a", target="a")
    assert wrong.local.match > 0.9 and wrong.worker.match < 0.1
    assert wrong.local.trust > 0.9 and wrong.worker.trust < 0.2
    mirror = both(worker="a", here="b", target="a")
    assert mirror.local.match < 0.1 and mirror.worker.match > 0.9


def test_a_token_that_both_proposed_counts_for_both() -> None:
    same = both(worker="a", here="a", target="a")
    assert same.local.match > 0.9 and same.worker.match > 0.9


def test_a_worker_that_named_another_token_missed_what_was_drafted_here() -> None:
    for drafted_here in (False, True):
        looker = TreeModel()
        tree = CandidateTree([1, 2])
        by_worker = tree.add_local(tree.root, 10, 0.1, 1.0, "w")
        assert by_worker is not None
        by_worker.remote = True
        if drafted_here:
            tree.add_local(tree.root, 11, 0.7, 1.0)
        looker.estimate(tree, 4, 4)
        tree.advance([99])
        assert looker.learn(4).missed


def test_a_local_draft_not_tried_yet_counts_as_the_workers_if_right() -> None:
    looker = TreeModel()
    for _ in range(40):
        looker.worker.observe(hit=True)
    assert looker.here is looker.worker
    for _ in range(200):
        looker.worker.observe(hit=False)
    assert looker.here is looker.local and looker.here.match == TUNING.match
