"""Random trees for property tests."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from cloud_gateway.core.verify.accept import FlatTree


@st.composite
def flat_trees(draw: Any, vocab: int = 64, max_rows: int = 10) -> FlatTree:
    """Trees of 1 to `max_rows` rows in any legal order of the rows, without duplicate siblings."""
    tokens, parents, depths = [draw(st.integers(0, vocab - 1))], [-1], [0]
    siblings: set[tuple[int, int]] = set()
    for _ in range(draw(st.integers(0, max_rows - 1))):
        parent, token = draw(st.integers(0, len(tokens) - 1)), draw(st.integers(0, vocab - 1))
        if (parent, token) not in siblings:
            siblings.add((parent, token))
            tokens.append(token)
            parents.append(parent)
            depths.append(depths[parent] + 1)
    return FlatTree(tokens, parents, depths)


def path_to(tree: FlatTree, row: int) -> list[int]:
    """Rows from row 0 to this one, by walking up the parents."""
    path = [row]
    while tree.parents[path[0]] >= 0:
        path.insert(0, tree.parents[path[0]])
    return path
