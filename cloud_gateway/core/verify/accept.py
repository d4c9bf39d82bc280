"""The walk down a verified tree, losslessly, and the tree as the arrays that a pass of the target needs.

The target chooses its own token at every row that it reaches; a candidate only ever saves a pass. So the
answer depends on what the target chooses, never on which candidates were there.

One pass takes the whole tree (SpecInfer's tree attention). Row 0 is the last committed token, whose keys and values the
target has not computed yet; the other rows are the candidate nodes, parents before children.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from operator import attrgetter, ge

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from edgespec.core.drafting.tree import Node


class FlatTree(Struct, frozen=True):
    """n rows: `tokens[i]`, `parents[i]` (a row; -1 for row 0), `depths[i]` (0 for row 0); row i is `nodes[i - 1]`."""

    tokens: Sequence[int]
    parents: Sequence[int]
    depths: Sequence[int]
    nodes: Sequence[Node] = ()

    def __len__(self) -> int:
        return len(self.tokens)

    def mask(self) -> NDArray[np.bool_]:
        """Ancestor-or-self mask, shape [n, n]: row i attends to row j."""
        mask = np.eye(len(self), dtype=np.bool_)
        for row, parent in enumerate(self.parents):
            if parent >= 0:
                mask[row] |= mask[parent]
        return mask

    def children(self) -> list[dict[int, int]]:
        """For every row, its children as token -> row."""
        table: list[dict[int, int]] = [{} for _ in self.tokens]
        for row, parent in enumerate(self.parents):
            if parent >= 0:
                table[parent][self.tokens[row]] = row
        return table


def flatten(root: Node, nodes: Sequence[Node]) -> FlatTree:
    """Lays out the root and the chosen nodes below it.

    `nodes` is closed under parents; their order is free. Raises ValueError where a node's parent was not chosen.
    """
    ordered = sorted(nodes, key=attrgetter("position"))
    rows: list[Node | None] = [root, *ordered]
    row_of = dict(zip(rows, count()))
    parents = [-1, *[row_of.get(node.parent, len(rows)) for node in ordered]]
    if any(map(ge, parents, count())):
        raise ValueError("a node was chosen without its parent")

    tokens = [root.token, *[node.token for node in ordered]]
    depths = [0, *[node.position - root.position for node in ordered]]
    return FlatTree(tokens, parents, depths, ordered)


class Walk(Struct, frozen=True):
    """`tokens`: what the target emits, at least one. `rows`: the rows passed, row 0 first, whose KV entries are kept.

    `at_leaf`: the last row had no candidate children, so nothing is known yet of the draft's next token there.
    """

    tokens: list[int]
    rows: list[int]
    at_leaf: bool


NOT_COMPUTED = -1
"""In the place of the target's token after a row that it has not computed."""


def walk(
    flat: FlatTree,
    choose: Callable[[int], int],
    *,
    stop: Callable[[int], bool] = lambda token: False,
    limit: int = 2**31,
    ready: Callable[[int], bool] = lambda row: True,
) -> Walk:
    """Follows the target's choices from row 0 until one is not among the candidates.

    `choose(row)` is the target's token after that row, asked once per row passed, in order of depth; `stop(token)`
    ends the walk after that token (end of sequence), `limit` after so many tokens. The walk also ends before a row
    below row 0 that is not `ready` to be asked; the next pass begins there.
    """
    children = flat.children()
    row = 0
    rows = [0]
    tokens = []
    while True:
        token = choose(row)
        tokens.append(token)
        following = children[row].get(token)
        if following is None or stop(token) or len(tokens) >= limit or not ready(following):
            return Walk(tokens, rows, at_leaf=not children[row])

        row = following
        rows.append(row)


def at_open_end(flat: FlatTree, taken: Walk) -> bool:
    """`taken.at_leaf` as far as drafts go: whether none of a draft's candidates was refuted on the way.

    What a source without a draft model proposed says nothing of where a draft stands.
    """
    if all(node.evidence is None for node in flat.nodes):
        return taken.at_leaf

    children = flat.children()
    for row, token in zip(taken.rows, taken.tokens, strict=True):
        drafted = {tok for tok, child in children[row].items() if flat.nodes[child - 1].drafted}
        if drafted and token not in drafted:
            return False

    return True
