"""What is done before the first request: the fingerprint that names everything that could change the text, the target's
cost curve, and rounds that are spared the cycle collector's work.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from cloud_gateway.core.policies.tree_model import TreeModel
from cloud_gateway.core.verify.candidates import CandidateTree
from cloud_gateway.models.target_model import Work
from cloud_gateway.models.target_model.llamacpp import LlamaCppTarget
from cloud_gateway.process import loading
from cloud_gateway.process.config import GatewaySettings
from cloud_gateway.process.loading import LIMIT_S, measure, spare_rounds, sweep
from edgespec.core.drafting.tree import Node
from edgespec.shared.settings import overridden
from tests.support.tiny_gguf import make_tiny_gguf
from tests.support.until import until
from tools.doubles.engines import TableTarget


def test_the_fingerprint_changes_with_model_choices_and_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = loading.fingerprint(b"model", "tokenizer", "float32", "cpu", "packed")
    seen = {plain, loading.fingerprint(b"other", "tokenizer", "float32", "cpu", "packed")}
    for changed in (["x", "float32", "cpu", "packed"], ["tokenizer", "bfloat16", "cpu", "packed"],
                    ["tokenizer", "float32", "cuda", "packed"], ["tokenizer", "float32", "cpu", "plain"]):  # fmt: skip
        seen.add(loading.fingerprint(b"model", *changed))
    monkeypatch.setattr(loading, "__version__", "another")
    seen.add(loading.fingerprint(b"model", "tokenizer", "float32", "cpu", "packed"))
    monkeypatch.setattr(sys.modules["transformers"], "__version__", "another")
    seen.add(loading.fingerprint(b"model", "tokenizer", "float32", "cpu", "packed"))
    assert len(seen) == 8 and all(one.startswith("es_") for one in seen)
    monkeypatch.undo()
    assert loading.fingerprint(b"model", "tokenizer", "float32", "cpu", "packed") == plain


def test_every_setting_that_could_change_the_text_of_a_seed_is_in_it() -> None:
    settings = [GatewaySettings()]
    settings.append(overridden(GatewaySettings(), {"target.exact": "no"}))
    policy = replace(GatewaySettings().policy, verification="another")
    settings.append(replace(GatewaySettings(), policy=policy))
    assert len({loading.choices(one) for one in settings}) == len(settings)
    assert loading.choices(overridden(GatewaySettings(), {"policy.k": "5"})) == loading.choices(GatewaySettings())


class Timed(TableTarget):
    """A pass takes `step_s`, and `row_s` for each row; the first over so many rows ten times that."""

    def __init__(self, step_s: float, row_s: float) -> None:
        super().__init__()
        self.now = 0.0
        self.step_s = step_s
        self.row_s = row_s
        self.seen: set[int] = set()

    def verify(self, batch: Sequence[Work]) -> list:
        rows = sum(len(work.tree) for work in batch)
        self.now += (self.step_s + self.row_s * rows) * (1 if rows in self.seen else 10)
        self.seen.add(rows)
        return super().verify(batch)


def test_the_curve_holds_what_a_second_pass_takes() -> None:
    target = Timed(0.002, 0.0001)
    curve = measure(target, lambda: target.now)
    assert sorted(curve) == [1, 2, 4, 8, 16, 32]
    assert all(abs(seconds - (0.002 + 0.0001 * rows)) < 1e-9 for rows, seconds in curve.items())


def test_a_slow_target_is_measured_for_about_a_second_and_no_longer() -> None:
    target = Timed(0.2, 0.0)
    assert list(measure(target, lambda: target.now)) == [1]
    assert target.now < LIMIT_S + 22 * 0.2


def test_every_slot_is_free_again() -> None:
    target = Timed(0.001, 0.0)
    for _ in range(3 * target.slots):
        measure(target, lambda: target.now)


def test_one_slot_with_small_trees_is_measured_by_llama_cpp_too(tmp_path: Path) -> None:
    model = make_tiny_gguf(tmp_path / "tiny.gguf")
    target = LlamaCppTarget(model, eos=frozenset(), slots=1, context=256, tree_nodes=4, threads=1)
    assert measure(target, clock=lambda: 0.0).keys() == {1, 2, 4, 8, 16, 32}
    target.shutdown()


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
    tree = CandidateTree([1])
    model = TreeModel()
    gc.collect()
    gc.disable()
    before = nodes()
    try:
        for _ in range(20):
            node = tree.root
            for _ in range(4):
                children = [tree.add_local(node, token, 0.5 + token, 1.0) for token in range(3)]
                node = children[0] or node
            model.estimate(tree, 4, 4)
            tree.advance([0, 0, 9])
        assert nodes() - before < 40, "of 240"
    finally:
        gc.enable()
