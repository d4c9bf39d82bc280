"""Which slot a prompt gets: against a twin that looks at every slot's tokens one by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cloud_gateway.target.slots import SlotTable, common_prefix

texts = st.lists(st.integers(0, 2), min_size=1, max_size=8)


@given(a=texts, b=texts)
def test_the_common_prefix_is_the_longest_equal_beginning(a: list[int], b: list[int]) -> None:
    n = common_prefix(a, b)
    assert a[:n] == b[:n]
    assert n == min(len(a), len(b)) or a[n] != b[n]


def test_the_longest_known_beginning_is_continued() -> None:
    table = SlotTable(3)
    for tokens in ([1, 2, 3], [1, 2, 3, 4, 5], [9]):
        slot = table.claim(tokens).slot
        table.extend(slot, tokens[len(table.held(slot)) :])
    for slot in range(3):
        table.release(slot)
    claim = table.claim([1, 2, 3, 4, 7])
    assert (claim.slot, claim.reused, claim.donor) == (1, 4, 1)
    assert table.held(1) == [1, 2, 3, 4]


def test_the_last_token_is_never_reused_so_that_a_verify_has_its_row() -> None:
    table = SlotTable(1)
    table.extend(table.claim([1, 2]).slot, [1, 2])
    table.release(0)
    assert table.claim([1, 2]).reused == 1


def test_the_least_recently_used_slot_gives_way() -> None:
    table = SlotTable(3)
    for tokens in ([1, 1], [2, 2], [3, 3]):
        table.extend(table.claim(tokens).slot, tokens)
    for slot in (1, 2, 0):
        table.release(slot)
    assert table.claim([7, 7]).slot == 1


def test_a_long_conversation_is_not_given_up_for_a_short_common_beginning() -> None:
    table = SlotTable(2)
    long = [1, 2, *range(10, 40)]
    table.extend(table.claim(long).slot, long)
    table.release(0)
    claim = table.claim([1, 2, 3])
    assert (claim.slot, claim.reused, claim.donor) == (1, 2, 0)
    assert table.held(0) == long


def test_a_full_table_says_so() -> None:
    table = SlotTable(1)
    table.claim([1])
    with pytest.raises(IndexError, match="taken"):
        table.claim([1])


class Slots(RuleBasedStateMachine):
    """Random claims, answers and releases."""

    def __init__(self) -> None:
        super().__init__()
        self.table = SlotTable(3)
        self.busy: set[int] = set()

    @rule(tokens=texts)
    def claim(self, tokens: list[int]) -> None:
        held = [list(self.table.held(slot)) for slot in range(3)]
        if len(self.busy) == 3:
            with pytest.raises(IndexError):
                self.table.claim(tokens)
            return
        claim = self.table.claim(tokens)
        assert claim.slot not in self.busy
        # As much as any slot has of the beginning, and never the last token.
        assert claim.reused == max(common_prefix(known, tokens[:-1]) for known in held) < len(tokens)
        assert held[claim.donor][: claim.reused] == tokens[: claim.reused] == self.table.held(claim.slot)
        self.table.extend(claim.slot, tokens[claim.reused :])
        self.busy.add(claim.slot)

    @rule(slot=st.integers(0, 2), tokens=texts)
    def extend(self, slot: int, tokens: list[int]) -> None:
        if slot in self.busy:
            self.table.extend(slot, tokens)

    @rule(slot=st.integers(0, 2))
    def release(self, slot: int) -> None:
        if slot in self.busy:
            held = list(self.table.held(slot))
            self.table.release(slot)
            self.busy.discard(slot)
            assert self.table.held(slot) == held

    @invariant()
    def three_slots(self) -> None:
        assert len(self.busy) <= 3


TestSlots = Slots.TestCase


def test_without_reuse_every_prompt_starts_afresh() -> None:
    table = SlotTable(2, reuse=False)
    claim = table.claim([1, 2, 3])
    table.extend(claim.slot, [1, 2])
    table.release(claim.slot)
    assert table.claim([1, 2, 3]).reused == 0
