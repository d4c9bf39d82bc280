"""The target's cost curve, measured at the start: what a pass takes over 1 to 32 rows."""

from __future__ import annotations

import time
from collections.abc import Callable

from cloud_gateway.core.verify.candidates import CandidateTree
from cloud_gateway.core.verify.flatten import FlatTree, flatten
from cloud_gateway.models.target_model import Target, Work

ROWS = (1, 4, 16, 2, 8, 32)
"""In the order measured: what a limit cuts off matters least."""
LIMIT_S = 1.0
"""No further row count is begun after this time. The start of a gateway takes several seconds anyway."""
PROMPT = 16
"""Tokens in the slot: longer prompts cost more, and are learnt from real passes."""


def measure(target: Target, clock: Callable[[], float] = time.perf_counter) -> dict[int, float]:
    """Rows -> seconds: the second of two passes each, since the first one also allocates memory.

    Call it before the engine starts, which owns the target from then on.
    """
    slot, _ = target.open([0] * PROMPT, room=PROMPT + max(ROWS))
    curve: dict[int, float] = {}
    began = clock()
    try:
        target.prefill(slot, [0] * (PROMPT - 1))
        for rows in ROWS:
            if curve and clock() - began > LIMIT_S:
                break
            work = [Work(slot, _chain(rows))]
            target.verify(work)
            before = clock()
            target.verify(work)
            curve[rows] = max(clock() - before, 0.0)
    finally:
        target.close(slot)
    return curve


def _chain(rows: int) -> FlatTree:
    tree = CandidateTree([0] * PROMPT)
    node = tree.root
    for _ in range(rows - 1):
        node = tree.add_local(node, 0, 1.0, 1.0) or node
    return flatten(tree.root, tree.best(rows))
