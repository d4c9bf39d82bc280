"""When llama.cpp's cells are moved together: a count of those that are used, retired, or free among those of others.

On a CPU attention takes BLOCK cells together and skips a block of which no row attends to a cell. Cells that become
free among those of other requests lie in many blocks; a prompt fills them first, and the rest of it attends to them
there (dev/decisions/154-cells-in-order.md). Under `exact` no cell is used again before all are moved, and retired ones
are passed over in every pass.
"""

from __future__ import annotations

from dataclasses import dataclass, field

BLOCK = 64
MIN_READ = 32
"""Tokens of a prompt for which cells are moved: moving one takes about as long as the attention of 22 rows to it."""
MIN_RETIRED = 512
"""Retired cells under `exact` before the others are moved; also at least as many as are in use."""
COMPANY = 1
"""Cells of the row that a lone row gets as company under `exact`. They are free again after the pass."""


@dataclass(slots=True)
class CellOrder:
    """What happened since the cells were last in order, and so when to move all to the beginning of the cache."""

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
        if exact:
            pays = self.filled + rows > live + max(live, MIN_RETIRED)
            full = self.filled + rows + COMPANY > self.cells
            if pays or full:
                return True
        scattered = self.skips and reads and rows >= MIN_READ and self.holes > live // BLOCK
        return scattered and sum(self.shared.values()) <= live // 2

    def moved(self, live: int) -> None:
        """Notes that the cells are in order."""
        self.filled = live
        self.holes = 0
        self.strewn.clear()
        self.shared.clear()
