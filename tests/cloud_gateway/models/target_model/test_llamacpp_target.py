"""The llama.cpp target on tiny models: any tree's logits are those of its paths alone, whatever shares the pass, and
its cells are put in order if that pays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from cloud_gateway.core.verify.accept import FlatTree
from cloud_gateway.models.target_model import Target, Work, cell_order
from cloud_gateway.models.target_model.llamacpp import LlamaCppTarget, lay_out
from cloud_gateway.models.target_model.slots import groups
from edgespec.core.errors import ConfigError, ModelError
from edgespec.llamacpp.context import Context
from tests.support.thread_rules import Alternating
from tests.support.tiny_gguf import make_tiny_gguf
from tests.support.tiny_tokenizer import EOS_ID
from tests.support.trees import SCOPE, begin, chain, flat_trees, opened, path_to

VOCAB = 64
EOS = frozenset({EOS_ID})
prompts = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=24)
slow = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf", vocab=VOCAB)


@pytest.fixture(scope="module")
def target(model: Path) -> Iterator[LlamaCppTarget]:
    made = LlamaCppTarget(model, eos=EOS, slots=3, context=256, tree_nodes=32, threads=1)
    yield made
    made.shutdown()


@pytest.fixture(scope="module")
def exact(model: Path) -> Iterator[LlamaCppTarget]:
    made = LlamaCppTarget(model, eos=EOS, slots=3, context=256, tree_nodes=32, threads=1, exact=True)
    yield made
    made.shutdown()


def alone(target: Target, tokens: Sequence[int]) -> NDArray[np.float32]:
    """The logits after these tokens by plain decoding, one token a pass."""
    slot, _ = target.open(tokens)
    for token in tokens:
        (rows,) = target.verify([Work(slot, chain(token))])
        found = rows.logits(0).copy()
        target.keep(slot, [0])
    target.close(slot)
    return found


def read(rows: object, tree: FlatTree) -> NDArray[np.float32]:
    return np.array([rows.logits(row).copy() for row in range(len(tree))])  # type: ignore[attr-defined]


@slow
@given(prompt=prompts, trees=st.lists(flat_trees(VOCAB), min_size=1, max_size=3), chosen=st.randoms())
def test_rows_of_several_trees_in_one_pass_equal_their_paths_alone(
    target: LlamaCppTarget, prompt: list[int], trees: list[FlatTree], chosen: object
) -> None:
    slots = [begin(target, [*prompt, number, tree.tokens[0]]) for number, tree in enumerate(trees)]
    results = target.verify([Work(slot, tree) for slot, tree in zip(slots, trees)])
    assert [one.rows for one in target.passes] == [sum(map(len, trees))], "one pass over all rows"
    found = [read(rows, tree) for rows, tree in zip(results, trees)]
    for slot in slots:
        target.close(slot)
    for number, tree in enumerate(trees):
        row = chosen.randrange(len(tree))  # type: ignore[attr-defined]
        expected = alone(target, [*prompt, number, *(tree.tokens[i] for i in path_to(tree, row))])
        np.testing.assert_allclose(found[number][row], expected, atol=0.03, rtol=0)
        assert results[number].argmax[row] == int(found[number][row].argmax())


@slow
@given(prompt=prompts, trees=st.lists(flat_trees(VOCAB), min_size=1, max_size=4), chosen=st.randoms())
def test_an_exact_target_gives_the_bits_of_plain_decoding_after_any_rounds(
    exact: LlamaCppTarget, prompt: list[int], trees: list[FlatTree], chosen: object
) -> None:
    assert exact.exact
    with opened(exact, [*prompt, 1]) as other, opened(exact, [*prompt, trees[0].tokens[0]]) as slot:
        tokens = [*prompt, trees[0].tokens[0]]
        for tree in trees:
            tree = FlatTree([tokens[-1], *tree.tokens[1:]], tree.parents, tree.depths)
            rows, _ = exact.verify([Work(slot, tree), Work(other, chain(1))])
            path = path_to(tree, chosen.randrange(len(tree)))  # type: ignore[attr-defined]
            last = rows.logits(path[-1]).copy()
            exact.keep(slot, path)
            exact.keep(other, [0])
            tokens += [tree.tokens[row] for row in path[1:]]
            np.testing.assert_array_equal(last, alone(exact, tokens))
            tokens.append(int(last.argmax()))


def test_exact_cells_are_compacted_and_give_the_same_bits_after_it(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cell_order, "MIN_RETIRED", 8)
    target = LlamaCppTarget(model, eos=EOS, slots=2, context=256, tree_nodes=16, threads=1, exact=True)
    moved: list[int] = []
    compact = target._llama.compact
    monkeypatch.setattr(target._llama, "compact", lambda slots: (moved.append(len(slots)), compact(slots)))
    tokens = [1, 2, 3]
    slot = begin(target, [1, 2, 3])
    other = begin(target, [4, 5, 6])
    star = FlatTree([3, *range(10, 20)], [-1] + [0] * 10, [0] + [1] * 10)
    for _ in range(12):
        tree = FlatTree([tokens[-1], *star.tokens[1:]], star.parents, star.depths)
        (rows,) = target.verify([Work(slot, tree)])
        last = rows.logits(10).copy()
        target.keep(slot, [0, 10])
        tokens += [19, int(last.argmax())]
    assert len(moved) >= 3, "it ran out of room that often"
    target.close(other)
    np.testing.assert_array_equal(last, alone(target, tokens[:-1]))
    target.shutdown()


def test_cells_are_compacted_before_a_prompt_that_would_fill_holes(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = LlamaCppTarget(model, eos=EOS, slots=2, context=256, tree_nodes=16, threads=1)
    moved: list[Sequence[int]] = []
    compact = target._llama.compact
    monkeypatch.setattr(target._llama, "compact", lambda slots: (moved.append(slots), compact(slots)))
    first = [1, 2, 3]
    second = [4, 5, 6]
    third = [7 + i % 50 for i in range(cell_order.MIN_READ + 1)]

    def both(tokens: Sequence[Sequence[int]], rounds: int) -> list[NDArray[np.float32]]:
        for _ in range(rounds):
            trees = [chain(text[-1], 9) for text in tokens]
            rows = target.verify([Work(slot, tree) for slot, tree in zip(slots, trees, strict=True)])
            found = [one.logits(0).copy() for one in rows]
            for slot, text in zip(slots, tokens, strict=True):
                target.keep(slot, [0, 1])
                text += [9, 9]  # type: ignore[operator]
        return found

    slots = [begin(target, first), begin(target, second)]
    both([first, second], 4)
    target.close(slots[0])
    slots[0] = begin(target, third[:-2], scope=b"other")
    assert moved == [], "it is short"
    target.close(slots[0])
    slots[0] = begin(target, third, scope=b"third")
    assert moved == [[slots[1]]], "the first one's tokens lay among the second one's"
    for found, text in zip(both([third, second], 1), (third, second), strict=True):
        np.testing.assert_allclose(found, alone_elsewhere(model, text[:-2]), atol=0.03, rtol=0)
    target.close(slots[0])
    target.close(slots[1])
    slots = [begin(target, [8, *third], scope=b"fourth")]
    assert len(moved) == 2
    target.close(slots[0])
    begin(target, [9, *third], scope=b"fifth")
    assert len(moved) == 2, "no pass had rows of several requests since"
    target.shutdown()


def alone_elsewhere(model: Path, tokens: Sequence[int]) -> NDArray[np.float32]:
    """Like `alone`, in a target of its own."""
    target = LlamaCppTarget(model, eos=EOS, slots=1, context=256, tree_nodes=16, threads=1)
    found = alone(target, tokens)
    target.shutdown()
    return found


def test_a_closed_slot_without_a_scope_holds_no_cells(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = LlamaCppTarget(model, eos=EOS, slots=2, context=256, tree_nodes=16, threads=1)
    trimmed: list[tuple[int, int]] = []
    monkeypatch.setattr(target._llama, "trim", lambda sequence, start: trimmed.append((sequence, start)))
    target.close(begin(target, [1, 2, 3]))
    trimmed.clear()
    slot = begin(target, [4, 5, 6], scope=b"")
    trimmed.clear()
    target.close(slot)
    assert trimmed == [(slot, 0)] and target._table.held(slot) == []
    target.shutdown()


@pytest.mark.parametrize("kept", [[0], [0, 1], [0, 2, 3], [0, 2, 4, 5]])
def test_after_keep_a_slot_holds_the_accepted_path_alone(target: LlamaCppTarget, kept: list[int]) -> None:
    tree = FlatTree([7, 8, 9, 10, 11, 12], [-1, 0, 0, 2, 2, 4], [0, 1, 1, 2, 2, 3])
    slot = begin(target, [5, 6, 7])
    target.verify([Work(slot, tree)])
    target.keep(slot, kept)
    (rows,) = target.verify([Work(slot, chain(20))])
    found = rows.logits(0).copy()
    target.close(slot)
    expected = alone(target, [5, 6, *(tree.tokens[row] for row in kept), 20])
    np.testing.assert_allclose(found, expected, atol=0.03, rtol=0)
    assert len(target._forks) == len(set(target._forks)), "every fork is free once"


def test_a_prefix_is_shared_within_its_scope_and_never_beyond(model: Path) -> None:
    target = LlamaCppTarget(model, eos=EOS, slots=3, context=256, tree_nodes=8, threads=1)
    long = list(range(3, 43))
    first = begin(target, [*long, 1])
    assert target.open([*long, 2], b"other")[1] == 0, "another key's tokens are not shared"
    slot, reused = target.open([*long, 2], SCOPE)
    assert reused == len(long)
    target.close(first)
    (rows,) = target.verify([Work(slot, chain(2))])
    found = rows.logits(0).copy()
    target.close(slot)
    np.testing.assert_allclose(found, alone(target, [*long, 2]), atol=0.03, rtol=0)
    target.shutdown()


def test_what_free_slots_hold_gives_its_cells_to_a_prompt_that_needs_them(model: Path) -> None:
    target = LlamaCppTarget(model, eos=EOS, slots=4, context=256, kv_tokens=512, tree_nodes=8, threads=1)
    for number in range(6):  # of which two fit
        tokens = [number] * 200
        slot, reused = target.open(tokens, SCOPE, 210)
        target.prefill(slot, tokens[reused:])
        target.close(slot)
    target.shutdown()


def test_a_second_verify_replaces_a_tree_that_was_never_kept(target: LlamaCppTarget) -> None:
    slot = begin(target, [5, 6, 7])
    free = len(target._forks)
    for _ in range(3):
        (rows,) = target.verify([Work(slot, FlatTree([7, 1, 2], [-1, 0, 0], [0, 1, 1]))])
    found = rows.logits(0).copy()
    target.close(slot)
    assert len(target._forks) == free
    np.testing.assert_allclose(found, alone(target, [5, 6, 7]), atol=0.03, rtol=0)


def test_logits_read_after_a_further_pass_are_refused(target: LlamaCppTarget) -> None:
    slot = begin(target, [5, 6, 7])
    (rows,) = target.verify([Work(slot, chain(7))])
    target.keep(slot, [0])
    assert rows.logits(0).shape == (VOCAB,)
    target.prefill(slot, [8])
    with pytest.raises(RuntimeError, match="overwritten"):
        rows.logits(0)
    target.close(slot)


def test_a_round_of_too_many_rows_takes_several_passes(target: LlamaCppTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "_pass_rows", 4)
    trees = [FlatTree([7, 1, 2], [-1, 0, 0], [0, 1, 1])] * 2
    slots = [begin(target, [5, number, 7]) for number in range(2)]
    results = target.verify([Work(slot, tree) for slot, tree in zip(slots, trees)])
    found = [rows.logits(0).copy() for rows in results]
    assert [one.rows for one in target.passes] == [3, 3]
    for number, slot in enumerate(slots):
        target.close(slot)
        np.testing.assert_allclose(found[number], alone(target, [5, number, 7]), atol=0.03, rtol=0)


def test_a_failed_pass_leaves_the_slots_as_they_were(target: LlamaCppTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    slot = begin(target, [5, 6, 7])
    free = len(target._forks)
    with monkeypatch.context() as patch:
        patch.setattr(target._llama, "decode", lambda _: False)
        with pytest.raises(ModelError, match="no room"):
            target.verify([Work(slot, FlatTree([7, 1, 2], [-1, 0, 0], [0, 1, 1]))])
    (rows,) = target.verify([Work(slot, chain(7))])
    found = rows.logits(0).copy()
    target.close(slot)
    assert len(target._forks) == free
    np.testing.assert_allclose(found, alone(target, [5, 6, 7]), atol=0.03, rtol=0)


def test_a_rule_of_threads_is_called_at_each_pass_and_changes_no_logits(model: Path) -> None:
    rule = Alternating()
    target = LlamaCppTarget(model, eos=EOS, slots=1, context=256, tree_nodes=8, thread_rule=rule)
    slot = begin(target, [5, 6, 7])
    first, second = (target.verify([Work(slot, chain(7))])[0].logits(0).copy() for _ in range(2))
    np.testing.assert_array_equal(first, second)
    target.close(slot)
    target.idle()
    assert rule.calls == ["use [1, 2] for the target", "begin", "2 rows", "1 rows", "1 rows", "idle"]
    assert rule.taken == [1, 2, 1, 2]
    target.shutdown()


@pytest.mark.parametrize("wrong", [0.0, 1e-6])
def test_an_exact_target_compares_tokens_at_once_and_in_pieces(
    model: Path, monkeypatch: pytest.MonkeyPatch, wrong: float
) -> None:
    true = Context.all_logits
    monkeypatch.setattr(Context, "all_logits", lambda self, rows: true(self, rows) + wrong * (rows % 16 == 8))
    target = LlamaCppTarget(model, eos=EOS, slots=1, context=256, tree_nodes=64, threads=1, exact=True)
    assert target.exact == (wrong == 0.0)
    target.shutdown()


def test_more_sequences_than_llama_cpp_has_are_refused(model: Path) -> None:
    with pytest.raises(ConfigError, match=r"lower `target\.slots` \(200\)"):
        LlamaCppTarget(model, eos=EOS, slots=200, context=256, tree_nodes=100)


def test_a_tree_takes_a_fork_for_each_leaf_but_the_deepest() -> None:
    line = lay_out(chain(7, 8, 9), 5, 0, [10, 11])
    assert (list(line.forks), [list(row.sequences) for row in line.rows]) == ([], [[0], [0], [0]])
    assert [row.position for row in line.rows] == [5, 6, 7]
    tree = lay_out(FlatTree([7, 8, 9, 10], [-1, 0, 0, 2], [0, 1, 1, 2]), 5, 0, [10, 11])
    assert [sorted(row.sequences) for row in tree.rows] == [[0, 10], [10], [0], [0]]
    assert tree.holding([0, 1], 0) == (10, 1) and tree.holding([0, 2, 3], 0) == (0, 3)


def test_passes_are_cut_by_rows_and_by_forks() -> None:
    assert groups([(3, 0), (3, 0), (3, 0)], 6, 9) == [[0, 1], [2]]
    assert groups([(3, 2), (3, 2)], 99, 3) == [[0], [1]]
    assert groups([(9, 0)], 6, 0) == [[0]]


def test_the_self_test_refuses_a_library_that_mixes_up_the_rows_of_a_tree(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_all = Context.all_logits

    def mixed(context: Context, count: int) -> NDArray[np.float32]:
        logits = read_all(context, count)
        is_tree = count == 6  # of the self-test; its paths are shorter
        return np.roll(logits, 1, axis=0) if is_tree else logits

    monkeypatch.setattr(Context, "all_logits", mixed)
    with pytest.raises(ModelError, match="differ from those of its paths"):
        LlamaCppTarget(model, eos=EOS, slots=3, context=256, tree_nodes=32, threads=1)
