"""Exact targets on any processor: what the self-test says holds, and it finds planted products that depend on rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from cloud_gateway.core.verify.accept import FlatTree
from cloud_gateway.models.target_model import Work
from cloud_gateway.parts.torch_engine.linear import BLOCK_ROWS, PlainLinear
from cloud_gateway.parts.torch_engine.llama_forward import Kernels, LlamaForward
from cloud_gateway.parts.torch_engine.target import TorchTarget
from tests.support.tiny_target import load_tiny, make_tiny_target
from tests.support.trees import begin, chain, flat_trees, opened, path_to

VOCAB = 64
prompts = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=24)


@pytest.mark.parametrize("kernels", ["packed", "plain"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_exact_target_gives_the_same_bits_for_a_row_in_any_company(
    tmp_path: Path, dtype: torch.dtype, kernels: Kernels
) -> None:
    model = load_tiny(make_tiny_target(tmp_path, vocab=VOCAB), dtype)
    target = TorchTarget(model, slots=4, threads=1, kernels=kernels, max_lone_rows=BLOCK_ROWS)

    @settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(prompt=prompts, tree=flat_trees(VOCAB, 24), chunk=st.integers(1, 9))
    def check(prompt: list[int], tree: FlatTree, chunk: int) -> None:
        with opened(target, [*prompt, tree.tokens[0]], chunk) as slot:
            (whole,) = target.verify([Work(slot, tree)])
        with opened(target, [*prompt, tree.tokens[0]]) as slot:
            for row in path_to(tree, len(tree) - 1):
                (found,) = target.verify([Work(slot, chain(tree.tokens[row]))])
                np.testing.assert_array_equal(found.logits(0), whole.logits(row))
                target.keep(slot, [0])

    holds_where_claimed(target, check)


@pytest.mark.parametrize(("dtype", "kernels"), [(torch.float32, "packed"), (torch.bfloat16, "plain")])
def test_an_exact_target_gives_the_same_bits_alone_and_in_batches(
    tmp_path: Path, dtype: torch.dtype, kernels: Kernels
) -> None:
    model = load_tiny(wide(tmp_path), dtype)
    target = TorchTarget(model, slots=6, threads=2, kernels=kernels, max_lone_rows=BLOCK_ROWS)
    holds_where_claimed(target, in_batches_as_alone(target))


def wide(folder: Path) -> Path:
    """A model of one layer; narrow products are exact by chance."""
    return make_tiny_target(folder, vocab=VOCAB, layers=1, hidden=576)


def holds_where_claimed(target: TorchTarget, check: Callable[[], None]) -> None:
    """An exact target passes the check; of another one its own products show what it says of itself.

    The targets accept any cost of a row alone, as `target.exact = "yes"` does: on a processor with AMX one row in
    bfloat16 is exact only if it is computed as 64.
    """
    if target.exact:
        check()
        return
    assert isinstance(target.forward, LlamaForward) and "depends on the rows beside it" in target.inexact_because
    assert not target.forward.find_rows([torch.get_num_threads()]).counts


def in_batches_as_alone(target: TorchTarget) -> Callable[[], None]:
    """Whether requests that share a pass have the logits that they have alone."""

    @settings(max_examples=3)
    @given(requests=st.lists(st.tuples(prompts, flat_trees(VOCAB, 16)), min_size=2, max_size=6))
    def check(requests: list[tuple[list[int], FlatTree]]) -> None:
        works = [Work(begin(target, [*prompt, tree.tokens[0]]), tree) for prompt, tree in requests]
        for work, found in zip(works, target.verify(works)):
            (alone,) = target.verify([work])
            for row in range(len(work.tree)):
                np.testing.assert_array_equal(found.logits(row), alone.logits(row))
            target.keep(work.slot, path_to(work.tree, len(work.tree) - 1))
            target.close(work.slot)

    return check


def bits_change(product: Tensor, where: Tensor) -> Tensor:
    """The product with the last bits of some rows changed, as another order of summation does."""
    return torch.where(where[:, None], product * (1 + 2**-16), product)


ROW_DEPENDENT: dict[str, Callable[[Tensor], Tensor]] = {
    "their number is odd": lambda x: torch.full([len(x)], len(x) % 2 == 1),
    "there are more than 64": lambda x: torch.full([len(x)], len(x) > 64),
    "the last of an odd number": lambda x: torch.arange(len(x)) == (len(x) - 1 if len(x) % 2 else -1),
}


@pytest.mark.parametrize("where", ROW_DEPENDENT)
def test_a_product_that_depends_on_the_number_of_rows_is_padded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    plant(monkeypatch, ROW_DEPENDENT[where])
    target = TorchTarget(load_tiny(wide(tmp_path), torch.float32), slots=6, threads=1, kernels="plain")
    assert target.exact
    in_batches_as_alone(target)()


@pytest.mark.parametrize(
    "where",
    [lambda x: torch.arange(len(x)) == 0, lambda x: x[:, 0] > x[:, 0].median()],
    ids=["the place of a row", "the values beside it"],
)
def test_a_product_that_depends_on_more_makes_no_exact_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: Callable[[Tensor], Tensor]
) -> None:
    plant(monkeypatch, where)
    target = TorchTarget(load_tiny(wide(tmp_path)), threads=1, kernels="plain", max_lone_rows=BLOCK_ROWS)
    assert not target.exact and "depends on the rows beside it" in target.inexact_because
    assert target.forward.kv_dtype == torch.float32, "nothing is paid for what cannot be had"


def plant(monkeypatch: pytest.MonkeyPatch, where: Callable[[Tensor], Tensor]) -> None:
    """Changes bits of the products of 576 numbers, in these rows."""
    true = PlainLinear.__call__
    narrow = lambda self, x: bits_change(true(self, x), where(x)) if x.shape[1] == 576 else true(self, x)  # noqa: E731
    monkeypatch.setattr(PlainLinear, "__call__", narrow)


@pytest.mark.parametrize("most", [32, 64])
def test_a_row_alone_is_padded_only_so_far_unless_exact_is_required(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    plant(monkeypatch, lambda x: torch.full([len(x)], len(x) < 40))
    target = TorchTarget(load_tiny(wide(tmp_path)), threads=1, kernels="plain", max_lone_rows=most)
    assert target.exact == (most == 64)
    assert target.exact or "computed as 40" in target.inexact_because


def test_threads_that_change_bits_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, lambda x: torch.full([len(x)], torch.get_num_threads() > 1))
    forward = LlamaForward(load_tiny(wide(tmp_path)), 512, kernels="plain")
    rows = forward.find_rows([1, 2])
    assert rows.counts and rows.threads == 1
