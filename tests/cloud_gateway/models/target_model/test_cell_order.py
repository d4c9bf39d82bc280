"""When llama.cpp's cells are put in order, and that no request fails for want of cells under `exact`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cloud_gateway.models.target_model import Work
from cloud_gateway.models.target_model.cell_order import BLOCK, COMPANY, MIN_READ, CellOrder
from cloud_gateway.models.target_model.llamacpp import LlamaCppTarget
from tests.support.tiny_gguf import make_tiny_gguf
from tests.support.tiny_tokenizer import EOS_ID
from tests.support.trees import begin, chain

Make = Callable[..., LlamaCppTarget]
TIGHT = 510
"""Entries of a cache that llama.cpp makes no larger: with the two spare ones it has a multiple of 256 cells."""


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Targets on a tiny model, under `exact`."""
    path = make_tiny_gguf(tmp_path / "tiny.gguf", vocab=64)
    made: list[LlamaCppTarget] = []

    def target(**options: int) -> LlamaCppTarget:
        made.append(LlamaCppTarget(path, eos=frozenset({EOS_ID}), threads=1, exact=True, **options))
        assert made[-1].exact
        return made[-1]

    yield target
    for target_made in made:
        target_made.shutdown()


def complete(target: LlamaCppTarget, prompt: list[int], count: int) -> list[int]:
    """A greedy completion by passes over one row."""
    slot, reused = target.open(prompt, b"scope", len(prompt) + count + 1)
    target.prefill(slot, prompt[reused:-1])
    tokens = [prompt[-1]]
    for _ in range(count):
        (rows,) = target.verify([Work(slot, chain(tokens[-1]))])
        tokens.append(rows.argmax[0])
        target.keep(slot, [0])
    target.close(slot)
    return tokens[1:]


def prompt_of(number: int) -> list[int]:
    """Ten tokens, which begin like those of no other number."""
    return [1 + (number * 7 + place * (number + 3)) % 60 for place in range(10)]


def test_one_row_passes_that_fill_a_tight_cache_never_fail(make: Make) -> None:
    """The company of a lone row needs a cell, too."""
    tight = make(slots=4, context=256, tree_nodes=16, kv_tokens=TIGHT)
    completions = [complete(tight, prompt_of(number), 30 + number * 11 % 50) for number in range(40)]

    roomy = make(slots=4, context=256, tree_nodes=16)
    assert completions == [complete(roomy, prompt_of(number), 30 + number * 11 % 50) for number in range(40)]


def test_a_pass_that_does_not_fit_is_repeated_after_cells_are_in_order(make: Make) -> None:
    target = make(slots=1, context=256, tree_nodes=16, kv_tokens=254)
    slot = begin(target, prompt_of(1))
    token = 1
    for _ in range(100):
        target._order.filled = 0  # as if cells had been lost from the count
        (rows,) = target.verify([Work(slot, chain(token, 2, 3))])
        token = rows.argmax[0]
        target.keep(slot, [0])
    target._order.filled = 0
    target.close(slot)

    slot = target.open([5])[0]
    target._order.filled = 0
    target.prefill(slot, prompt_of(2))
    target.close(slot)


def test_trees_in_several_passes_get_room_for_all_of_them_at_once(make: Make) -> None:
    """After the first pass nothing can be moved."""
    target = make(slots=4, context=64, tree_nodes=16, kv_tokens=254)
    slots = [begin(target, prompt_of(number)) for number in range(4)]
    for _ in range(40):
        target._pass_rows = 4
        target.verify([Work(slot, chain(3, 4, 5)) for slot in slots])
        assert len(target.passes) == 4
        for slot in slots:
            target.keep(slot, [0])


def due(order: CellOrder, rows: int = MIN_READ, live: int = 10 * BLOCK, *, reads: bool = True) -> bool:
    return order.due(rows, live, exact=False, reads=reads)


def test_a_prompt_waits_for_order_if_free_cells_lie_in_many_blocks() -> None:
    order = CellOrder(1000, skips=True)
    order.kept(0, 2, refused=10, company=False)
    assert not due(order), "one in each block"
    order.kept(1, 5, refused=0, company=True)
    assert not due(order), "slot 1 still holds its tokens"
    order.left(0)
    assert not due(order), "those of slot 0 lay together"
    order.left(1)
    assert due(order)
    assert not due(order, reads=False) and not due(order, MIN_READ - 1) and not due(CellOrder(1000, skips=False))
    order.shared = {0: 4 * BLOCK, 2: 4 * BLOCK}
    assert not due(order), "they would be there twice"
    order.left(2, 4 * BLOCK)
    assert not due(order), "its prompt goes on behind what it shares"
    order.left(2)
    assert due(order)
    order.moved(10 * BLOCK)
    assert not due(order)


def test_a_slot_that_ended_without_shared_cells_counts_none() -> None:
    order = CellOrder(1000, skips=True)
    order.kept(1, 3 * BLOCK, refused=0, company=True)
    order.left(1)
    assert due(order)
    order.shared[0] = 5 * BLOCK
    assert due(order), "half of the cells are shared"
    order.shared[0] += 1
    assert not due(order)


def test_an_exact_cache_is_put_in_order_before_it_is_full() -> None:
    order = CellOrder(1000, skips=True)
    order.filled = 990
    free = 1000 - 990 - COMPANY
    assert order.due(free + 1, 600, exact=True, reads=False)
    assert not order.due(free + 1, 600, exact=False, reads=False)
    assert not order.due(free, 600, exact=True, reads=False)


def test_an_exact_cache_is_put_in_order_once_as_many_cells_are_retired() -> None:
    order = CellOrder(10_000, skips=True)
    order.filled = 1200
    assert order.due(1, 600, exact=True, reads=False)
    assert not order.due(0, 600, exact=True, reads=False)


def test_a_few_cells_in_use_move_only_behind_many_retired_ones() -> None:
    order = CellOrder(10_000, skips=True)
    order.filled = 100 + 512
    assert order.due(1, 100, exact=True, reads=False)
    assert not order.due(0, 100, exact=True, reads=False)
