"""A speculation tree as the arrays that one forward pass of the target needs (SpecInfer's tree attention).

Row 0 is the last committed token, whose keys and values the target has not computed yet; the other rows are the
candidate nodes, parents before children.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    ordered, base = sorted(nodes, key=attrgetter("position")), root.position
    rows: list[Node | None] = [root, *ordered]
    row_of = dict(zip(rows, count()))
    parents = [-1, *[row_of.get(node.parent, len(rows)) for node in ordered]]
    if any(map(ge, parents, count())):
        raise ValueError("a node was chosen without its parent")
    tokens = [root.token, *[node.token for node in ordered]]
    return FlatTree(tokens, parents, [0, *[node.position - base for node in ordered]], ordered)
