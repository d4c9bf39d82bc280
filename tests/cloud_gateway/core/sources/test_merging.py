"""Candidates of sources without a draft model, in the tree of the drafts."""

from __future__ import annotations

import math

import pytest

from cloud_gateway.core.policies.adaptive import Adaptive
from cloud_gateway.core.policies.alone import Plain
from cloud_gateway.core.policies.settings import PolicySettings
from cloud_gateway.core.policies.tree_model import TreeModel
from cloud_gateway.core.sources.asking import MAX_TAKEN, make_sources, put
from cloud_gateway.core.sources.interface import ROOT, Suggestion
from cloud_gateway.core.verify.accept import at_open_end, flatten, walk
from cloud_gateway.core.verify.candidates import LOCAL, CandidateTree
from edgespec.core.protocol.messages import Tree

CHAIN = [Suggestion(ROOT, 5, 0.5), Suggestion(0, 6, 0.8)]


def suggested(prompt: tuple[int, ...] = (1, 2)) -> tuple[CandidateTree, int]:
    tree = CandidateTree(list(prompt))
    return tree, put(tree, "lookup", CHAIN)


def frame(tree: CandidateTree, *tokens: int) -> Tree:
    """A worker's first delta: a chain, each token at 0.1 nats."""
    count = len(tokens)
    parents = list(range(count))
    prefix = tree.prefix
    return Tree(1, 1, len(prefix), prefix.digest, 1, parents, list(tokens), [100] * count, [700] * count)


def survival(tree: CandidateTree, model: TreeModel | None = None) -> dict[int, float]:
    estimate = (model or TreeModel()).estimate(tree, 4, 4)
    return {node.token: chance for node, chance in zip(estimate.nodes, estimate.survival)}


def test_a_sources_estimate_is_its_candidates_survival() -> None:
    tree, proposed = suggested()
    assert survival(tree) == pytest.approx({5: 0.5, 6: 0.4})
    assert proposed == 2


def test_a_draft_that_agrees_shares_the_node_and_its_evidence_adds() -> None:
    tree, _ = suggested()
    model = TreeModel()
    assert survival(tree, model)[5] == pytest.approx(0.5), "looked at before, so that the look is remembered"
    merged = tree.merge(1, frame(tree, 5), "w")
    node = tree.root.children[5]
    assert merged.fresh == 1 and len(tree.tree) == 2
    assert node.owner == "w" and node.evidence == {"lookup": 0.5} and node.cost == pytest.approx(0.1)
    assert survival(tree, model)[5] == pytest.approx(1 - 0.5 * (1 - math.exp(-0.1)))
    assert tree.root.children[5].children[6].cost == pytest.approx(0.1 - math.log(0.8)), "what lies below moves along"


def test_the_order_of_the_proposals_does_not_matter() -> None:
    first, _ = suggested()
    first.merge(1, frame(first, 5, 6), "w")
    second = CandidateTree([1, 2])
    second.merge(1, frame(second, 5, 6), "w")
    put(second, "lookup", CHAIN)
    assert survival(first) == pytest.approx(survival(second))
    costs = [[node.cost for node in tree.tree.nodes.values()] for tree in (first, second)]
    assert costs[0] == pytest.approx(costs[1])


def test_a_local_draft_that_agrees_takes_the_node_over() -> None:
    tree, _ = suggested()
    node = tree.add_local(tree.root, 5, 0.2, 1.5)
    assert node is tree.root.children[5] and (node.owner, node.entropy) == (LOCAL, 1.5)


def test_a_revoked_workers_candidate_goes_back_to_the_source_that_had_it() -> None:
    tree, _ = suggested()
    tree.merge(1, frame(tree, 5, 9), "w")
    tree.discard("w")
    assert [node.token for node in tree.tree.nodes.values()] == [5, 6]
    assert survival(tree) == pytest.approx({5: 0.5, 6: 0.4})


def test_a_draft_learns_nothing_from_what_it_did_not_propose() -> None:
    tree, _ = suggested()
    model = TreeModel()
    before = model.local.state(), model.worker.state()
    model.estimate(tree, 4, 4)
    tree.advance([5, 6])
    model.learn(4)
    assert (model.local.state(), model.worker.state()) == before


def test_a_refuted_suggestion_does_not_mark_the_worker_as_off_the_path() -> None:
    tree, _ = suggested()
    flat = flatten(tree.root, tree.best(8))
    assert at_open_end(flat, walk(flat, lambda row: 7)), "no draft has proposed anything"
    tree.merge(1, frame(tree, 8), "w")
    flat = flatten(tree.root, tree.best(8))
    assert not at_open_end(flat, walk(flat, lambda row: 7))
    taken = walk(flat, lambda row: 5)
    assert len(taken.tokens) == 2 and not at_open_end(flat, taken), "the target left the draft's path by a suggestion"
    assert at_open_end(flat, walk(flat, lambda row: 8 if row == 0 else 1))


def test_a_full_tree_takes_no_suggestion_and_says_so() -> None:
    tree = CandidateTree([1, 2], max_nodes=1)
    assert put(tree, "lookup", CHAIN) == len(tree.tree) == 1


def test_a_request_has_the_named_sources_if_its_policy_uses_them() -> None:
    assert make_sources(Adaptive(), PolicySettings(), [1, 2, 3]) is not None
    assert make_sources(Adaptive(), PolicySettings(sources=()), [1, 2, 3]) is None
    assert make_sources(Plain(), PolicySettings(), [1, 2, 3]) is None


def test_a_long_prompt_is_taken_in_parts_and_asked_about_at_its_end() -> None:
    prompt = [*range(MAX_TAKEN), 1, 2, 3, 4]
    sources = make_sources(Adaptive(), PolicySettings(), prompt)
    tree = CandidateTree(prompt)
    assert sources is not None
    assert [(name, proposed) for name, _, proposed, _ in sources.ask(tree)] == [("lookup", 0)] and not len(tree.tree)
    assert [name for name, *_ in sources.ask(tree)] == ["lookup"]
    assert [node.token for node in tree.tree.nodes.values()][:2] == [5, 6]
    assert not list(sources.ask(tree)), "once for each commit"
