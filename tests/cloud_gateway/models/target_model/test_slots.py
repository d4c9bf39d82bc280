"""Which slot a prompt gets, against a twin that looks at every slot's tokens one by one."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cloud_gateway.models.target_model.slots import SlotTable
from edgespec.core.eviction import MAX_IDLE_S
from edgespec.core.numbers import common_prefix

S = b"scope"
CAPACITY = 24
texts = st.lists(st.integers(0, 2), min_size=1, max_size=8)


@given(a=texts, b=texts)
def test_the_common_prefix_is_the_longest_equal_beginning(a: list[int], b: list[int]) -> None:
    n = common_prefix(a, b)
    assert a[:n] == b[:n]
    assert n == min(len(a), len(b)) or a[n] != b[n]


def test_the_longest_known_beginning_is_continued() -> None:
    table = SlotTable(3)
    for tokens in ([1, 2, 3], [1, 2, 3, 4, 5], [9]):
        slot = table.claim(tokens, S).slot
        table.extend(slot, tokens[len(table.held(slot)) :])
    for slot in range(3):
        table.release(slot)
    claim = table.claim([1, 2, 3, 4, 7], S)
    assert (claim.slot, claim.reused, claim.donor) == (1, 4, 1)
    assert table.held(1) == [1, 2, 3, 4]


def test_the_last_token_is_never_reused_so_that_a_verify_has_its_row() -> None:
    table = SlotTable(1)
    table.extend(table.claim([1, 2], S).slot, [1, 2])
    table.release(0)
    assert table.claim([1, 2], S).reused == 1


def test_the_least_recently_used_slot_gives_way() -> None:
    table = SlotTable(3)
    for tokens in ([1, 1], [2, 2], [3, 3]):
        table.extend(table.claim(tokens, S).slot, tokens)
    for slot in (1, 2, 0):
        table.release(slot)
    assert table.claim([7, 7], S).slot == 1


def test_a_long_conversation_is_not_given_up_for_a_short_common_beginning() -> None:
    table = SlotTable(2)
    long = [1, 2, *range(10, 40)]
    table.extend(table.claim(long, S).slot, long)
    table.release(0)
    claim = table.claim([1, 2, 3], S)
    assert (claim.slot, claim.reused, claim.donor) == (1, 2, 0)
    assert table.held(0) == long


def test_a_full_table_says_so() -> None:
    table = SlotTable(1)
    table.claim([1])
    with pytest.raises(IndexError, match="taken"):
        table.claim([1])


@pytest.mark.parametrize(("first", "second"), [(b"alice", b"bob"), (b"alice", b""), (b"", b"bob"), (b"", b"")])
def test_prompts_of_different_scopes_share_nothing(first: bytes, second: bytes) -> None:
    table = SlotTable(3)
    slot = table.claim([1, 2, 3, 4], first).slot
    table.extend(slot, [1, 2, 3, 4, 5])
    assert table.claim([1, 2, 3, 4, 5], second).reused == 0, "while it is busy"
    table.release(slot)
    assert table.claim([1, 2, 3, 4, 5], second).reused == 0, "when it is free"


def used(table: SlotTable, scope: bytes, *prompts: list[int]) -> None:
    for tokens in prompts:
        claim = table.claim(tokens, scope)
        table.extend(claim.slot, tokens[claim.reused :])
        table.release(claim.slot)


@pytest.mark.claim("a-scope-with-many-prompts-keeps-its-share-of-slots-only")
def test_a_scope_with_many_prompts_keeps_its_share_of_slots_only() -> None:
    now = itertools.count(0.0)
    table = SlotTable(4, clock=lambda: next(now))
    used(table, b"alice", [1, 1, 1])
    used(table, b"carol", [2, 2, 2])
    used(table, b"bob", *([3, i, i] for i in range(40)))
    assert table.claim([1, 1, 1, 9], b"alice").reused == 3
    assert table.claim([2, 2, 2, 9], b"carol").reused == 3


def test_a_prefix_idle_for_long_gives_way_whosever_it_is() -> None:
    now = 0.0
    table = SlotTable(2, clock=lambda: now)
    used(table, b"alice", [1, 1, 1])
    now = MAX_IDLE_S / 2
    used(table, b"bob", [2, 2, 2], [3, 3, 3])
    assert table.claim([1, 1, 1, 9], b"alice").reused == 3
    table.release(0)
    now = 3 * MAX_IDLE_S
    used(table, b"bob", [4, 4, 4], [5, 5, 5])
    assert table.claim([4, 4, 4, 9], b"bob").reused == 3


def test_free_slots_make_room_for_a_prompt_the_donor_last() -> None:
    table = SlotTable(4, capacity=24)
    long = [1, 1, 1, 7, 7, 7, 7]
    for tokens in (long, [2, 2, 2], [3, 3, 3]):
        table.extend(table.claim(tokens, S, room=7).slot, tokens)
    for slot in (1, 2, 0):
        table.release(slot)
    claim = table.claim([4, 4], S, room=11)
    assert (claim.slot, claim.evicted) == (3, []), "13 entries are held"
    table.extend(3, [4])
    table.release(3, 11)
    claim = table.claim([1, 1, 1, 9, 9, 9, 9], S, room=14)
    assert (claim.slot, claim.reused, claim.donor, claim.evicted) == (1, 3, 0, [2, 3])
    assert [list(table.held(slot)) for slot in range(4)] == [long, [1, 1, 1], [], []]
    with pytest.raises(IndexError, match="no room for 11 entries more"):
        table.claim([5], S, room=11)
    claim = table.claim([1, 1, 1, 5, 5, 5, 5, 5], S, room=10)
    assert (claim.reused, claim.donor, claim.evicted) == (3, 1, [0]), "what it would copy must go first, a copy stays"


def test_where_the_donor_must_go_another_slot_gives_its_part() -> None:
    table = SlotTable(3, capacity=24)
    table.extend(table.claim([2, 0, 0, 0], S, room=8).slot, [2, 0, 0, 0])
    table.release(0)
    table.extend(table.claim([2], S, room=13).slot, [2])
    claim = table.claim([2, 0], S, room=8)
    assert (claim.reused, claim.donor, claim.evicted) == (1, 1, [0])


class Slots(RuleBasedStateMachine):
    """Random claims, answers and releases of two scopes and of requests without one."""

    def __init__(self) -> None:
        super().__init__()
        self.table = SlotTable(3, capacity=CAPACITY)
        self.busy: set[int] = set()
        self.scopes = [b""] * 3
        self.rooms = [0] * 3

    @rule(tokens=texts, scope=st.sampled_from([b"", b"a", b"a", b"b"]), room=st.integers(8, CAPACITY))
    def claim(self, tokens: list[int], scope: bytes, room: int) -> None:
        held = [list(self.table.held(slot)) for slot in range(3)]
        if len(self.busy) == 3 or room + sum(self.rooms[slot] for slot in self.busy) > CAPACITY:
            with pytest.raises(IndexError):
                self.table.claim(tokens, scope, room)
            return
        claim = self.table.claim(tokens, scope, room)
        assert claim.slot not in {*self.busy, *claim.evicted}
        for slot in claim.evicted:
            assert slot not in self.busy and self.table.held(slot) == []
            held[slot], self.rooms[slot] = [], 0
        self.rooms[claim.slot] = room
        assert sum(self.rooms) <= CAPACITY
        # A beginning as long as any slot of the scope has of the beginning, and never the last token.
        own = [known for known, whose in zip(held, self.scopes, strict=True) if scope and whose == scope]
        known = max((common_prefix(one, tokens[:-1]) for one in own), default=0)
        assert claim.reused == known < len(tokens)
        assert held[claim.donor][: claim.reused] == tokens[: claim.reused] == self.table.held(claim.slot)
        self.table.extend(claim.slot, tokens[claim.reused :])
        self.busy.add(claim.slot)
        self.scopes[claim.slot] = scope

    @rule(slot=st.integers(0, 2), tokens=texts)
    def extend(self, slot: int, tokens: list[int]) -> None:
        if slot in self.busy and len(self.table.held(slot)) + len(tokens) <= self.rooms[slot]:
            self.table.extend(slot, tokens)

    @rule(slot=st.integers(0, 2))
    def release(self, slot: int) -> None:
        if slot in self.busy:
            held = list(self.table.held(slot)) if self.scopes[slot] else []
            self.table.release(slot)
            self.rooms[slot] = len(held)
            self.busy.discard(slot)
            assert self.table.held(slot) == held

    @invariant()
    def three_slots(self) -> None:
        assert len(self.busy) <= 3


TestSlots = Slots.TestCase
