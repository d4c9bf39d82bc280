"""Whatever comes in, what goes out of the gate can be verified by vLLM."""

from __future__ import annotations

from typing import Any

import pytest
from edgespec_vllm.gate import admit
from hypothesis import given
from hypothesis import strategies as st

COMMITTED = [1, 2, 3]
BOUNDS = {"vocab_size": 100, "limit": 4, "room": 10}
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
near = st.integers(-3, 103) | st.integers()


@pytest.mark.parametrize(
    ("chain", "start", "kept"),
    [
        ([7, 8], 3, [7, 8]),
        ([2, 3, 7], 1, [7]),
        ([2, 4, 7], 1, []),  # it repeats other tokens than the committed ones
        ([7, 8], 4, []),  # a gap
        ([7, 8], -1, []),
        ([2], 1, []),  # stale: all of it is behind
        ([7, 100, 8], 3, [7]),
        ([-1, 7], 3, []),
        ([2**31 - 1], 3, []),
        ([True, 7], 3, []),
        ([5] * 9, 3, [5] * 4),
    ],
)
def test_a_chain_is_cut_to_what_continues_and_fits(chain: Any, start: int, kept: list[int]) -> None:
    assert admit(chain, start, COMMITTED, **BOUNDS) == kept


@pytest.mark.parametrize(("limit", "room", "count"), [(4, 2, 2), (2, 9, 2), (4, 0, 0), (4, -7, 0), (0, 5, 0)])
def test_limit_and_room_bound_a_draft(limit: int, room: int, count: int) -> None:
    assert len(admit([5] * 9, 3, COMMITTED, vocab_size=100, limit=limit, room=room)) == count


@pytest.mark.parametrize(
    ("grammar", "kept"),
    [
        (lambda tokens: tokens[:1], [7]),
        (lambda tokens: [], []),
        (lambda tokens: [7, 200, 300], [7]),  # only what was proposed goes on
        (lambda tokens: [*tokens, 500], [7, 8]),
        (lambda tokens: None, []),
        (lambda tokens: tokens[99], []),
    ],
)
def test_a_grammar_can_only_shorten_a_draft(grammar: Any, kept: list[int]) -> None:
    assert admit([7, 8], 3, COMMITTED, **BOUNDS, grammar=grammar) == kept


@given(anything | st.lists(near), anything | near, st.lists(near, max_size=5), st.integers(), st.integers(), near)
def test_no_input_makes_the_gate_raise_or_pass_bad_ids(
    chain: Any, start: Any, committed: list[int], limit: int, room: int, vocab_size: int
) -> None:
    kept = admit(chain, start, committed, vocab_size=vocab_size, limit=limit, room=room)
    assert len(kept) <= max(min(limit, room), 0)
    assert all(type(token) is int and 0 <= token < vocab_size for token in kept)
    assert not kept or list(chain)[: len(committed) - start + len(kept)] == committed[start:] + kept
