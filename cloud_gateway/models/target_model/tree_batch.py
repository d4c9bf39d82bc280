"""Speculation trees as rows of one llama.cpp batch, where a row attends to the cells of its sequences.

Each leaf has a sequence: the deepest one its slot's own, whose cells are the committed tokens, and every other one a
copy of that. A row belongs to the sequences of all leaves below it, so a chain needs no copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cloud_gateway.core.verify.flatten import FlatTree
from edgespec.llamacpp.context import Row


@dataclass(frozen=True, slots=True)
class Laid:
    """A tree in a slot: its batch rows, in the tree's order, and its sequences besides the slot's own."""

    rows: Sequence[Row]
    base: int
    """Position of row 0."""
    forks: Sequence[int]

    def holding(self, path: Sequence[int], slot: int) -> tuple[int, int]:
        """A sequence with all rows of `path`, and how many of them the slot's own has."""
        own = sum(slot in self.rows[row].sequences for row in path)
        return (slot if own == len(path) else self.rows[path[-1]].sequences[0]), own


def leaves(tree: FlatTree) -> list[int]:
    """Rows without children, the deepest one first."""
    parents = set(tree.parents)
    found = [row for row in range(len(tree)) if row not in parents]
    return sorted(found, key=lambda row: -tree.depths[row])


def lay_out(tree: FlatTree, base: int, slot: int, free: Sequence[int]) -> Laid:
    """The rows of a tree whose row 0 has position `base`; takes a sequence of `free` for each leaf but one."""
    members: list[list[int]] = [[] for _ in tree.tokens]
    ends = leaves(tree)
    forks = free[: len(ends) - 1]
    for row, sequence in zip(ends, (slot, *forks), strict=True):
        while row >= 0:
            members[row].append(sequence)
            row = tree.parents[row]
    rows = [
        Row(token, base + depth, sequences, True)
        for token, depth, sequences in zip(tree.tokens, tree.depths, members, strict=True)
    ]
    return Laid(rows, base, forks)


def groups(sizes: Sequence[tuple[int, int]], rows: int, forks: int) -> list[list[int]]:
    """Cuts a round into passes of at most so many rows and forks, in order; `sizes`: rows and forks of each tree."""
    made: list[list[int]] = []
    used = (0, 0)
    for index, (more_rows, more_forks) in enumerate(sizes):
        used = used[0] + more_rows, used[1] + more_forks
        if not made or used[0] > rows or used[1] > forks:
            made.append([])
            used = more_rows, more_forks
        made[-1].append(index)
    return made
