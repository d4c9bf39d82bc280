"""The buffers of a slot, against plain lists of entries."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_gateway.parts.torch_engine.forward import MIN_ENTRIES, LayerShape, SlotKv, slot_cache

CPU = torch.device("cpu")
ALIKE = [LayerShape(2, 3, 3)] * 2
MIXED = [LayerShape(2, 3, 3), LayerShape(1, 4, 5), LayerShape(2, 3, 4)]


def write(kv: SlotKv, values: list[float]) -> None:
    """One pass over these rows: entry r of every plane is filled with its value plus a number of the plane."""
    kv.reserve(len(values))
    for number, plane in enumerate(kv.planes):
        for row, value in enumerate(values):
            plane[:, kv.length + row] = value + 1000 * number


def content(kv: SlotKv) -> list[list[float]]:
    """The committed entries of every plane, after checking that each is uniform."""
    found = []
    for number, plane in enumerate(kv.planes):
        entries = plane[:, : kv.length] - 1000 * number
        assert (entries == entries[:1, :, :1]).all()
        found.append(entries[0, :, 0].tolist())
    return found


rounds = st.lists(
    st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(1, n), max_size=n))), max_size=8
)


@given(rounds=rounds, mixed=st.booleans(), start=st.integers(0, 3))
def test_keeping_rows_equals_picking_them_from_a_list(
    rounds: list[tuple[int, set[int]]], mixed: bool, start: int
) -> None:
    kv = SlotKv(MIXED if mixed else ALIKE, torch.float32, CPU)
    twin: list[float] = [float(value) for value in range(start)]
    write(kv, twin)
    kv.keep(range(start))
    value = 100.0
    for extra, kept in rounds:
        rows = [value + i for i in range(extra + 1)]
        path = sorted({0} | kept)
        write(kv, rows)
        kv.keep(path)
        twin += [rows[i] for i in path]
        value += 100
    assert content(kv) == [twin] * len(kv.planes)


@settings(max_examples=20)
@given(sizes=st.lists(st.integers(1, MIN_ENTRIES), min_size=1, max_size=6))
def test_growing_loses_nothing_and_doubles_up_to_the_context(sizes: list[int]) -> None:
    kv = SlotKv(MIXED, torch.float32, CPU, limit=3 * MIN_ENTRIES)
    twin = []
    context = 3 * MIN_ENTRIES
    for size in sizes:
        rows = [float(i) for i in range(size)]
        write(kv, rows)
        kv.keep(range(size))
        twin += rows
        doubled = next(MIN_ENTRIES << n for n in range(10) if MIN_ENTRIES << n >= kv.length)
        assert kv.capacity in {min(doubled, context), kv.length}
        assert kv.capacity == min(doubled, context) or kv.length > context
    assert content(kv) == [twin] * len(kv.planes)


@given(length=st.integers(0, 5), own=st.integers(0, 5))
def test_a_copy_holds_the_beginning_and_stays_when_the_donor_goes_on(length: int, own: int) -> None:
    donor = SlotKv(MIXED, torch.float32, CPU)
    copy = SlotKv(MIXED, torch.float32, CPU)
    write(donor, [1, 2, 3, 4, 5])
    donor.keep(range(5))
    write(copy, [9.0] * own)
    copy.keep(range(own))
    copy.copy_from(donor, length)
    donor.length = 0
    write(donor, [7, 7, 7, 7, 7])
    assert content(copy) == [[1, 2, 3, 4, 5][:length]] * len(copy.planes)


def test_keys_and_values_of_a_layer_are_one_tensor_if_layers_are_alike() -> None:
    alike = SlotKv(ALIKE, torch.float32, CPU)
    mixed = SlotKv(MIXED, torch.float32, CPU)
    for kv in (alike, mixed):
        write(kv, [1.0, 2.0])
    assert torch.equal(alike.layers[1][:2], alike.planes[2])
    assert torch.equal(alike.layers[1][2:], alike.planes[3])
    assert mixed.layers == []


def test_transformers_writes_behind_the_committed_entries_and_sees_both() -> None:
    kv = SlotKv(MIXED, torch.float32, CPU)
    write(kv, [1.0, 2.0])
    kv.keep([0, 1])
    kv.reserve(3)
    cache = slot_cache(kv, len(MIXED))
    keys, values = cache.update(torch.full((1, 1, 3, 4), 8.0), torch.full((1, 1, 3, 5), 9.0), 1)
    assert keys.shape == (1, 1, 5, 4)
    assert values.shape == (1, 1, 5, 5)
    assert keys[0, 0, :, 0].tolist() == [2001, 2002, 8, 8, 8]
    assert cache.get_seq_length() == 2
    assert cache.get_mask_sizes(3, 1) == (5, 0)
    kv.keep([0, 2])
    assert kv.planes[2][0, :4, 0].tolist() == [2001, 2002, 8, 8]
