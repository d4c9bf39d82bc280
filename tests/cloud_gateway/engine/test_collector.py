"""Rounds are spared the cycle collector's work."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from cloud_gateway.core.verify.candidates import CandidateTree
from cloud_gateway.engine.collector import spare_rounds


@pytest.fixture
def restored() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


def collections() -> int:
    return sum(generation["collections"] for generation in gc.get_stats())


def committing(rounds: int) -> None:
    """Rounds of 40 candidates, one of them committed."""
    tree = CandidateTree([1, 2])
    for _ in range(rounds):
        for first in range(10, 14):
            node = tree.root
            for token in range(first, first + 10):
                node = tree.add_local(node, token, 0.1, 0.1) or node
        tree.advance([10])


@pytest.mark.usefixtures("restored")
def test_a_round_seldom_starts_the_cycle_collector() -> None:
    gc.set_threshold(700, 10, 10)
    before = collections()
    committing(200)
    usual = collections() - before
    spare_rounds()
    before = collections()
    committing(200)
    assert usual >= 10 and collections() - before <= usual / 5
    assert gc.get_freeze_count() > 0
