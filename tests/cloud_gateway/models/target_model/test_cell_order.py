"""When llama.cpp's cells are put in order."""

from __future__ import annotations

from cloud_gateway.models.target_model.cells import BLOCK, MIN_READ, CellOrder


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


def test_an_exact_cache_is_put_in_order_before_it_is_full() -> None:
    order = CellOrder(1000, skips=True)
    order.filled = 990
    assert order.due(11, 600, exact=True, reads=False) and not order.due(11, 600, exact=False, reads=False)
    assert not order.due(10, 600, exact=True, reads=False)
