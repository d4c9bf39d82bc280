"""The drafter on the real model: a chain of the tree against a plain one."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgespec.llamacpp.drafter import Drafter
from tests.support.slow_drafter import SlowDrafter

PROMPT = [1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411, 407, 19712, 8182, 2]


@pytest.mark.live
def test_a_chain_equals_a_plain_chain_to_the_last_bit(quantised_model: Path) -> None:
    """Here even the cells lie in the same order."""
    slow, drafter = SlowDrafter(quantised_model), Drafter(quantised_model, context=1024, sequences=4, requests=2)
    drafter.open(1, PROMPT)
    path: tuple[int, ...] = ()
    for _ in range(16):
        (proposal,) = drafter.step(1, [path], 1)
        assert slow.error([*PROMPT, *path], proposal) < 1e-4
        path += (proposal.tokens[0],)
    assert drafter.rows == len(PROMPT) + 15
    drafter.shutdown()
    slow.close()
