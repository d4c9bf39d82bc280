"""Rounds are spared the cycle collector's work."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from cloud_gateway.core.policies.worth import Surveyor
from cloud_gateway.core.verify.candidates import CandidateTree
from cloud_gateway.process import loading
from cloud_gateway.process.loading import spare_rounds, sweep
from edgespec.core.drafting.tree import Node
from tests.support.until import until


@pytest.fixture
def restored() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.freeze()
    gc.set_threshold(*before)


def collections() -> int:
    return sum(generation["collections"] for generation in gc.get_stats())


def collections_of(objects: int) -> int:
    """Runs of the collector while so many containers are made that stay."""
    before = collections()
    kept = [[number] for number in range(objects)]
    return collections() - before if kept else 0


@pytest.mark.usefixtures("restored")
def test_lasting_objects_seldom_start_the_cycle_collector() -> None:
    gc.set_threshold(700, 10, 10)
    usual = collections_of(10_000)
    gc.unfreeze()
    spare_rounds()
    assert usual >= 10 and collections_of(10_000) <= usual / 5
    assert gc.get_freeze_count() > 0


class Connection:
    """Refers to itself, as a connection of asyncio and its TLS do."""

    def __init__(self) -> None:
        self.protocol = self


@pytest.mark.usefixtures("restored")
async def test_what_an_old_connection_leaves_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "SWEEP_S", 0.01)
    spare_rounds()
    old = Connection()
    left = weakref.ref(old)
    gc.collect()  # it is of the oldest generation now
    del old
    assert collections_of(100_000) >= 4 and left() is not None, "the younger generations' collections do not see it"
    sweeping = asyncio.ensure_future(sweep())
    await until(lambda: left() is None)
    sweeping.cancel()


def nodes() -> int:
    return sum(type(one) is Node for one in gc.get_objects())


def test_pruned_candidates_are_freed_without_the_cycle_collector() -> None:
    tree, surveyor = CandidateTree([1]), Surveyor()
    gc.collect()
    gc.disable()
    before = nodes()
    try:
        for _ in range(20):
            node = tree.root
            for _ in range(4):
                children = [tree.add_local(node, token, 0.5 + token, 1.0) for token in range(3)]
                node = children[0] or node
            surveyor.look(tree, 4, 4)
            tree.advance([0, 0, 9])
        assert nodes() - before < 40, "of 240"
    finally:
        gc.enable()
