"""A request at the worker: commits, draft steps and frames in any order."""

from __future__ import annotations

import random

import pytest

from edgespec.core.drafting.algorithm2 import Drafting, DraftRule, Proposal
from edgespec.core.drafting.best_first import BestFirst, BestFirstRule
from edgespec.core.drafting.tree import Part
from edgespec.core.protocol.digests import prefix_hash
from edgespec.core.protocol.messages import MAX_DEPTH, Tree, check_tree_shape, levels
from edgespec.core.protocol.ranges import MAX_ID

COSTS, ENTROPIES = (0.0, 0.3, 9.0, 1e40, float("inf")), (0.0, 0.5, 2.8)


def proposal(rng: random.Random) -> Proposal:
    count = rng.randint(0, 4)
    return Proposal(
        rng.sample(range(17), count), sorted(rng.choice(COSTS) for _ in range(count)), rng.choice(ENTROPIES)
    )


def committed(rng: random.Random, drafting: Drafting) -> None:
    known = list(drafting.prefix.tokens)
    ahead = [node.token for node in drafting.tree.most_probable(1, MAX_ID) if node.token >= 0]
    tokens = [rng.choice((*ahead, 0, 16, MAX_ID)) for _ in range(rng.choice((1, 1, 2, 9)))]
    digest = rng.choice((None, prefix_hash([*known, *tokens])))
    assert 0 <= drafting.commit(len(known), tokens, digest, chosen=rng.random() < 0.7) <= len(tokens)


@pytest.mark.claim("each-machine-takes-events-in-any-order")
@pytest.mark.parametrize("seed", range(40))
def test_any_order_gives_frames_of_the_right_shape_once_each(seed: int) -> None:
    rng, sent = random.Random(seed), list[Tree]()
    rule = BestFirstRule(max_depth=rng.choice((1, MAX_DEPTH)), max_nodes=rng.choice((8, 512)))
    drafting = BestFirst(1, 1, 3, rule) if seed % 3 else Drafting(1, 1, 3, DraftRule(theta=rng.choice((0.0, 0.5, 100))))
    for _ in range(120):
        leaves = drafting.candidates()[:6]
        proposals = [proposal(rng) for _ in leaves]
        if rng.random() < 0.3:
            committed(rng, drafting)
        drafting.record(leaves, proposals)
        count = rng.randint(1, 8)
        drafting.part = Part(rng.randrange(count), count)
        if drafting.due(rng.random(), rng.random(), 0.02) and (frame := drafting.delta()) is not None:
            check_tree_shape(frame, MAX_ID + 1)
            assert levels(frame) <= MAX_DEPTH
            assert all(one.first + len(one.tokens) <= frame.first for one in sent), "a number is sent twice"
            sent.append(frame)
    assert sent
