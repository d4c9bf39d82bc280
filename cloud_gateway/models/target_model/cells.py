"""Speculation trees as rows of one llama.cpp batch, where a row attends to the cells of its sequences.

Each leaf has a sequence: the deepest one its slot's own, whose cells are the committed tokens, and every other one a
copy of that. A row belongs to the sequences of all leaves below it, so a chain needs no copy. `CellOrder` says when to
move the cells together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from cloud_gateway.core.verify.accept import FlatTree
from edgespec.llamacpp.context import Row

BLOCK = 64
MIN_READ = 32
"""Tokens of a prompt for which cells are moved: moving one takes about as long as the attention of 22 rows to it."""
MIN_RETIRED = 512
"""Retired cells under `exact` before the others are moved; also at least as many as are in use."""


@dataclass(slots=True)
class CellOrder:
    """What happened since the cells were last in order, and so when it pays to move all to the beginning of the cache.

    On a CPU attention takes BLOCK cells together and skips a block of which no row attends to a cell. Cells that become
    free among those of other requests lie in many blocks; a prompt fills them first, and the rest of it attends to them
    there (dev/decisions/154-cells-in-order.md). Under `exact` no cell is used again, and retired ones are passed over
    in every pass.
    """

    cells: int
    """Of the cache."""
    skips: bool
    """Whether attention skips blocks."""
    filled: int = 0
    """Cells used since then, retired ones included."""
    holes: int = 0
    """Cells that became free among those of others."""
    strewn: dict[int, int] = field(default_factory=dict)
    """Tokens of each slot that were verified in one pass with other requests."""
    shared: dict[int, int] = field(default_factory=dict)
    """Cells that each slot shares with another one: moved, they would be there twice."""

    def kept(self, slot: int, rows: int, refused: int, *, company: bool) -> None:
        """Notes a pass over a slot's tree, of which `rows` were kept; `company`: over those of others, too."""
        self.holes += refused
        self.strewn[slot] = self.strewn.get(slot, 0) + rows * company

    def left(self, slot: int, start: int = 0) -> None:
        """Notes that a slot's cells at positions from `start` on became free."""
        self.holes += self.strewn.pop(slot, 0)
        self.shared[slot] = min(self.shared.get(slot, 0), start)

    def due(self, rows: int, live: int, *, exact: bool, reads: bool) -> bool:
        """Whether to move the `live` cells before `rows` are computed; `reads`: those of a prompt."""
        if exact and self.filled + rows > min(live + max(live, MIN_RETIRED), self.cells):
            return True
        scattered = self.skips and reads and rows >= MIN_READ and self.holes > live // BLOCK
        return scattered and sum(self.shared.values()) <= live // 2

    def moved(self, live: int) -> None:
        """Notes that the cells are in order."""
        self.filled, self.holes = live, 0
        self.strewn.clear()
        self.shared.clear()


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
