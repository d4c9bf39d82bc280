"""A forced token is proposed, a forbidden one is not verified, and neither counts as the draft's."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from cloud_gateway.core.verify.accept import flatten
from cloud_gateway.core.verify.candidates import LOCAL, CandidateTree
from cloud_gateway.core.verify.guide import GRAMMAR, MAX_FORCED, Guide
from cloud_gateway.core.verify.interface import Constraint
from edgespec.core.drafting.tree import Node

PROMPT = [1, 2, 3]


class Rules(Constraint):
    """Forbids the token 9 everywhere, and says what is forced after which path."""

    def __init__(self, forced: dict[tuple[int, ...], list[int]] | None = None) -> None:
        self._forced = forced or {}

    def __call__(self, path: Sequence[int]) -> None:
        raise AssertionError("masks are for the target's choices")

    def allowed(self, path: Sequence[int]) -> int:
        return path.index(9) if 9 in path else len(path)

    def forced(self, path: Sequence[int]) -> Sequence[int]:
        return self._forced.get(tuple(path), ())

    def committed(self, tokens: Sequence[int]) -> None: ...


def grow(tree: CandidateTree, *paths: Sequence[int]) -> None:
    """Every path's tokens cost as many nats as they say."""
    for path in paths:
        node = tree.root
        for token in path:
            node = node.children.get(token) or tree.add_local(node, token, float(token), 0.0)


def everything(tree: CandidateTree) -> list[Node]:
    return list(tree.tree.nodes.values())


def paths(tree: CandidateTree, nodes: Sequence[Node]) -> set[tuple[int, ...]]:
    return {node.path(tree.root) for node in nodes}


def test_what_is_forbidden_is_left_out_with_all_below_it() -> None:
    tree = CandidateTree(PROMPT)
    grow(tree, [5, 9, 6], [5, 7], [9, 5])
    guide = Guide(Rules())
    chosen = guide.select(tree, everything(tree), 100)
    assert paths(tree, chosen) == {(5,), (5, 7)}
    flatten(tree.root, chosen)  # raises if a parent is missing
    five = tree.root.children[5]
    assert guide.forbade(five) and guide.forbade(tree.root) and not guide.forbade(five.children[7])
    assert len(everything(tree)) == 6, "the draft's own tree stays as it is: the controller decides by it"


def test_what_was_forbidden_once_is_forgotten_with_the_next_selection() -> None:
    tree = CandidateTree(PROMPT)
    grow(tree, [9])
    guide = Guide(Rules())
    assert guide.select(tree, everything(tree), 100) == [] and guide.forbade(tree.root)
    assert guide.select(tree, [], 100) == [] and not guide.forbade(tree.root)


def test_forced_tokens_are_in_the_tree_before_any_draft() -> None:
    tree = CandidateTree(PROMPT)
    Guide(Rules({(): [5, 6]})).propose(tree)
    assert paths(tree, everything(tree)) == {(5,), (5, 6)}
    assert {node.owner for node in everything(tree)} == {GRAMMAR}
    assert tree.best_leaf().token == 6, "a draft goes on behind it"


def test_what_is_forced_follows_the_likeliest_path_that_is_verified() -> None:
    tree = CandidateTree(PROMPT)
    grow(tree, [4, 5], [6])
    guide = Guide(Rules({(4, 5): [7, 8], (6,): [7], (4,): [3]}))
    chosen = guide.select(tree, everything(tree), 100)
    assert paths(tree, chosen) == {(4,), (4, 5), (6,), (4, 5, 7), (4, 5, 7, 8)}
    assert [node.owner for node in chosen].count(GRAMMAR) == 2
    assert guide.select(tree, [], 100) == [], "nothing is forced after the committed tokens"


def test_a_draft_that_had_the_forced_token_first_keeps_the_credit() -> None:
    tree = CandidateTree(PROMPT)
    grow(tree, [4, 5])
    chosen = Guide(Rules({(): [4]})).select(tree, everything(tree), 100)
    assert len(chosen) == 2 and {node.owner for node in chosen} == {LOCAL}


@pytest.mark.parametrize("room", [1, 2, 3, 10, 50])
def test_there_are_never_more_nodes_than_there_is_room(room: int) -> None:
    tree = CandidateTree(PROMPT)
    grow(tree, [4])
    guide = Guide(Rules({(4,): [5] * 40}))
    chosen = guide.select(tree, everything(tree), room)
    assert len(chosen) == min(room, 1 + MAX_FORCED)
    flatten(tree.root, chosen)
