"""Random trees for property tests, and slots of a target with a prompt in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hypothesis import strategies as st

from cloud_gateway.core.verify.accept import FlatTree
from cloud_gateway.models.target_model import Target


@st.composite
def flat_trees(draw: Any, vocab: int = 64, max_rows: int = 10) -> FlatTree:
    """Trees of 1 to `max_rows` rows in any legal order of the rows, without duplicate siblings."""
    tokens = [draw(st.integers(0, vocab - 1))]
    parents = [-1]
    depths = [0]
    siblings: set[tuple[int, int]] = set()
    for _ in range(draw(st.integers(0, max_rows - 1))):
        parent = draw(st.integers(0, len(tokens) - 1))
        token = draw(st.integers(0, vocab - 1))
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


SCOPE = b"scope"


def begin(target: Target, tokens: Sequence[int], chunk: int = 1000, scope: bytes = SCOPE) -> int:
    """Opens a slot and prefills all but the last token."""
    slot, reused = target.open(tokens, scope)
    for start in range(reused, len(tokens) - 1, chunk):
        target.prefill(slot, tokens[start : min(start + chunk, len(tokens) - 1)])
    return slot


@contextmanager
def opened(target: Target, tokens: Sequence[int], chunk: int = 1000) -> Iterator[int]:
    """A slot of these tokens, closed at the end, also after an error."""
    slot = begin(target, tokens, chunk)
    try:
        yield slot
    finally:
        target.close(slot)


def chain(*tokens: int) -> FlatTree:
    return FlatTree(tokens, range(-1, len(tokens) - 1), range(len(tokens)))
