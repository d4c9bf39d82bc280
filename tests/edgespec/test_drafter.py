"""The drafter on a tiny model, held to evaluating every leaf from scratch, and to never evaluating anything twice."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from numpy.typing import NDArray

import edgespec.drafter
import edgespec.llama
from edgespec.core.drafting import Proposal
from edgespec.core.errors import ConfigError, ModelError
from edgespec.drafter import Drafter, DraftMemoryError
from edgespec.shared.vocabfiles import gguf_tokenizer_digest
from tests.support.slow_drafter import SlowDrafter
from tests.support.tiny_gguf import make_tiny_gguf

TOLERANCE = 0.05
"""Nats. Cells are float16, and batches run through other kernels than single tokens. A wrong cell shows more."""
PROMPT = [1, 10, 20, 30, 40, 11, 21, 31, 41, 12]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(scope="module")
def slow(model: Path) -> Iterator[SlowDrafter]:
    twin = SlowDrafter(model)
    yield twin
    twin.close()


@pytest.fixture
def drafter(model: Path) -> Iterator[Drafter]:
    made = Drafter(model, context=512, sequences=8, requests=4)
    yield made
    made.shutdown()


def test_it_says_what_it_drafts_with(model: Path, drafter: Drafter) -> None:
    assert (drafter.vocab_size, drafter.context, drafter.sequences) == (64, 512, 8)
    assert drafter.tokenizer_digest == gguf_tokenizer_digest(model)
    assert len(drafter.model_digest) == 32


def test_a_step_over_a_tree_equals_each_leaf_from_scratch(drafter: Drafter, slow: SlowDrafter) -> None:
    drafter.open("r", PROMPT)
    paths = [(), (3,), (4,), (3, 5), (3, 6), (4, 7, 8, 9), (3, 5, 5)]
    for path, proposal in zip(paths, drafter.step("r", paths, 4), strict=True):
        slow.check([*PROMPT, *path], proposal, TOLERANCE)
    assert drafter.passes == 1
    assert drafter.rows == len(PROMPT) + 8  # the tree's distinct nodes, (4, 7) and (4, 7, 8) included


def test_the_answers_come_in_the_order_of_the_paths_also_when_one_is_asked_twice(drafter: Drafter) -> None:
    drafter.open("r", PROMPT)
    first, again, other = drafter.step("r", [(3,), (3,), (4,)], 2)
    assert first == again != other
    assert drafter.rows == len(PROMPT) + 2


def test_no_ancestor_is_evaluated_twice(drafter: Drafter, slow: SlowDrafter) -> None:
    drafter.open("r", PROMPT)
    drafter.step("r", [()], 2)
    for step, paths in enumerate([[(3,), (4,)], [(3, 5), (3, 6), (4, 7)], [(3, 5, 8), (3, 6, 8), (3, 6, 9)]]):
        before = drafter.rows
        for path, proposal in zip(paths, drafter.step("r", paths, 3), strict=True):
            slow.check([*PROMPT, *path], proposal, TOLERANCE)
        assert drafter.rows - before == len(paths), f"step {step}"


def test_a_leaf_asked_again_costs_one_row_and_gives_the_same(drafter: Drafter) -> None:
    drafter.open("r", PROMPT)
    paths = [(), (3,), (3, 4)]
    first = drafter.step("r", paths, 3)
    before, free = drafter.rows, sorted(drafter._free)
    again = drafter.step("r", paths, 3)
    assert drafter.rows - before == 3
    assert sorted(drafter._free) == free
    assert [p.tokens for p in again] == [p.tokens for p in first]
    np.testing.assert_allclose([p.costs for p in again], [p.costs for p in first], atol=TOLERANCE)


def test_a_commit_along_the_tree_keeps_what_was_evaluated(drafter: Drafter, slow: SlowDrafter) -> None:
    drafter.open("r", PROMPT)
    drafter.step("r", [(3, 4, 5), (3, 4, 6), (7,)], 2)
    assert drafter.commit("r", [3, 4]) == 2
    assert drafter.pending("r") == 0
    before = drafter.rows
    proposals = drafter.step("r", [(5, 9), (6, 9)], 2)
    assert drafter.rows - before == 2
    for path, proposal in zip([(5, 9), (6, 9)], proposals, strict=True):
        slow.check([*PROMPT, 3, 4, *path], proposal, TOLERANCE)


def test_a_commit_off_the_tree_keeps_the_part_that_agrees(drafter: Drafter, slow: SlowDrafter) -> None:
    drafter.open("r", PROMPT)
    drafter.step("r", [(3, 4, 5), (7,)], 2)
    assert drafter.commit("r", [3, 4, 8, 9]) == 2
    assert drafter.pending("r") == 2
    before = drafter.rows
    slow.check([*PROMPT, 3, 4, 8, 9], drafter.step("r", [()], 2)[0], TOLERANCE)
    assert drafter.rows - before == 2


def test_a_commit_drops_what_lies_beside_it_even_where_the_tokens_below_are_the_same(
    drafter: Drafter, slow: SlowDrafter
) -> None:
    drafter.open("r", PROMPT)
    drafter.step("r", [(3, 4), (5, 6, 7)], 2)
    assert drafter.commit("r", [3]) == 1
    before = drafter.rows
    for path, proposal in zip([(6, 7), (4, 7)], drafter.step("r", [(6, 7), (4, 7)], 2), strict=True):
        slow.check([*PROMPT, 3, *path], proposal, TOLERANCE)
    assert drafter.rows - before == 3


def test_catching_up_goes_in_limited_batches_and_leaves_the_last_token(drafter: Drafter, slow: SlowDrafter) -> None:
    assert drafter.open("r", PROMPT) == 0
    assert drafter.pending("r") == 10
    assert [drafter.catch_up("r", 4) for _ in range(4)] == [5, 1, 0, 0]
    assert (drafter.pending("r"), drafter.passes, drafter.rows) == (1, 3, 9)
    slow.check(PROMPT, drafter.step("r", [()], 3)[0], TOLERANCE)
    assert (drafter.pending("r"), drafter.catch_up("r", 4)) == (0, 0)


def test_a_commit_may_come_between_two_batches(drafter: Drafter, slow: SlowDrafter) -> None:
    drafter.open("r", PROMPT)
    drafter.catch_up("r", 4)
    assert drafter.commit("r", [5, 6]) == 0
    assert drafter.catch_up("r", 4) == 3
    slow.check([*PROMPT, 5, 6], drafter.step("r", [()], 3)[0], TOLERANCE)


def test_a_prompt_may_arrive_in_parts(drafter: Drafter, slow: SlowDrafter) -> None:
    assert drafter.open("r", []) == 0
    assert (drafter.pending("r"), drafter.catch_up("r", 4)) == (0, 0)
    with pytest.raises(ValueError, match="at least one committed token"):
        drafter.step("r", [()], 1)
    drafter.commit("r", PROMPT)
    slow.check([*PROMPT, 7], drafter.step("r", [(7,)], 3)[0], TOLERANCE)


def test_a_prompt_that_begins_like_another_shares_its_cells(drafter: Drafter, slow: SlowDrafter) -> None:
    drafter.open("a", PROMPT)
    drafter.step("a", [(3,)], 1)
    drafter.commit("a", [3, 4])
    assert drafter.open("open", [*PROMPT[:7], 50]) == 7
    drafter.close("a")
    assert drafter.open("closed", [*PROMPT, 3, 9]) == 11
    assert drafter.open("whole", PROMPT) == 10
    before = drafter.rows
    slow.check(PROMPT, drafter.step("whole", [()], 3)[0], TOLERANCE)
    slow.check([*PROMPT[:7], 50], drafter.step("open", [()], 3)[0], TOLERANCE)
    slow.check([*PROMPT, 3, 9], drafter.step("closed", [()], 3)[0], TOLERANCE)
    assert drafter.rows - before == 3


def test_a_request_closed_without_keeping_leaves_nothing(drafter: Drafter) -> None:
    drafter.open("a", PROMPT)
    drafter.step("a", [()], 1)
    drafter.close("a", keep=False)
    assert drafter.open("b", PROMPT) == 0


def test_two_requests_do_not_see_each_other(drafter: Drafter, slow: SlowDrafter) -> None:
    other = [*PROMPT[:5], 60, 61]
    drafter.open("a", PROMPT)
    drafter.step("a", [()], 1)
    drafter.open("b", other)
    for path in ((3,), (3, 4), (3, 4, 5)):
        slow.check([*PROMPT, *path], drafter.step("a", [path], 2)[0], TOLERANCE)
        slow.check([*other, *path], drafter.step("b", [path], 2)[0], TOLERANCE)
    drafter.close("a")
    slow.check([*other, 3, 9], drafter.step("b", [(3, 9)], 2)[0], TOLERANCE)


def test_a_ranker_sees_raw_logits_and_decides(drafter: Drafter, slow: SlowDrafter) -> None:
    seen = {}

    def rank(logits: NDArray[np.float32], path: tuple[int, ...], width: int) -> Proposal:
        assert not logits.flags.writeable
        seen[path] = logits.copy()
        return Proposal([len(path)], [0.5], 1.5)

    drafter.open("r", PROMPT)
    assert drafter.step("r", [(3,), ()], 7, rank) == [Proposal([1], [0.5], 1.5), Proposal([0], [0.5], 1.5)]
    for path, logits in seen.items():
        log_probabilities = logits - np.log(np.exp(logits.astype(np.float64)).sum())
        np.testing.assert_allclose(log_probabilities, slow.log_probabilities([*PROMPT, *path]), atol=TOLERANCE)


# --- limits -------------------------------------------------------------------------------------------------------


def test_when_sequence_ids_run_out_the_tip_idle_longest_goes_and_nothing_breaks(
    model: Path, slow: SlowDrafter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edgespec.drafter, "IDS_PER_REQUEST", 1)
    drafter = Drafter(model, context=512, sequences=3, requests=2)
    drafter.open("closed", PROMPT[:2])
    drafter.step("closed", [()], 1)
    drafter.close("closed")
    drafter.open("a", PROMPT)
    drafter.open("b", PROMPT[:4])
    drafter.step("b", [(9,)], 1)
    for paths in ([(3,), (4,), (5,)], [(6,), (7,)], [(3, 8), (6, 8)], [(4, 8), (5, 8), (7, 8)]):
        for path, proposal in zip(paths, drafter.step("a", paths, 2), strict=True):
            slow.check([*PROMPT, *path], proposal, TOLERANCE)
    assert not drafter._free
    # Three leaves beside three others whose cells they share: nothing else can be kept.
    drafter.step("a", [(3, 1, 1), (4, 1, 1), (5, 1, 1)], 1)
    beside = [(3, 1, 2), (4, 1, 2), (5, 1, 2)]
    for path, proposal in zip(beside, drafter.step("a", beside, 2), strict=True):
        slow.check([*PROMPT, *path], proposal, TOLERANCE)
    slow.check([*PROMPT[:4], 9, 9], drafter.step("b", [(9, 9)], 2)[0], TOLERANCE)
    drafter.shutdown()


def test_when_cells_run_out_closed_prefixes_go_then_idle_tips_then_the_request_is_refused(
    model: Path, slow: SlowDrafter
) -> None:
    drafter = Drafter(model, context=256, sequences=4, requests=3)
    long = [i % 50 for i in range(120)]
    drafter.open("old", [5, *long])
    drafter.step("old", [()], 1)
    drafter.close("old")
    for name in ("a", "b"):
        drafter.open(name, [ord(name) % 64, *long])
        drafter.catch_up(name, 999)
    assert drafter.open("c", [5, *long]) == 0, "the closed prefix had to go"
    drafter.step("a", [(i, i, i) for i in range(3)], 1)
    with pytest.raises(DraftMemoryError, match="256 KV cells are full"):
        drafter.catch_up("c", 999)
    assert drafter.catch_up("c", 9) == 111
    for name in ("a", "b"):
        slow.check([ord(name) % 64, *long, 1], drafter.step(name, [(1,)], 2)[0], TOLERANCE)
    drafter.close("a", keep=False)
    drafter.catch_up("c", 999)
    slow.check([5, *long, 1], drafter.step("c", [(1,)], 2)[0], TOLERANCE)
    drafter.shutdown()


def test_a_refused_step_may_be_tried_again(model: Path, slow: SlowDrafter) -> None:
    drafter = Drafter(model, context=256, sequences=8, requests=2)
    tokens = [i % 60 for i in range(230)]
    drafter.open("a", tokens)
    drafter.catch_up("a", 999)
    drafter.step("a", [(1,), (2,)], 1)
    with pytest.raises(DraftMemoryError, match="full"):
        drafter.step("a", [(i, 1, 1, 1) for i in range(8)], 1)
    for path, proposal in zip([(1, 5), (3,)], drafter.step("a", [(1, 5), (3,)], 2), strict=True):
        slow.check([*tokens, *path], proposal, TOLERANCE)
    drafter.shutdown()


def test_a_step_of_more_rows_than_there_are_cells_is_refused(model: Path, slow: SlowDrafter) -> None:
    drafter = Drafter(model, context=256, sequences=8, requests=2)
    drafter.open("a", [i % 60 for i in range(200)])
    with pytest.raises(DraftMemoryError, match="full"):
        drafter.step("a", [(i,) * 16 for i in range(8)], 1)
    slow.check([*(i % 60 for i in range(200)), 1], drafter.step("a", [(1,)], 2)[0], TOLERANCE)
    drafter.shutdown()


def test_the_smallest_settings_work(model: Path, slow: SlowDrafter) -> None:
    drafter = Drafter(model, context=1, sequences=1, requests=1, prefill_batch=1)
    drafter.open("r", [5])
    slow.check([5], drafter.step("r", [()], 2)[0], TOLERANCE)
    drafter.shutdown()
    drafter = Drafter(model, context=100, sequences=32, requests=64, prefill_batch=16)
    drafter.open("r", [5] * 90)
    paths = [(1, 2, i, 3) for i in range(32)]
    for path, proposal in zip(paths, drafter.step("r", paths, 1), strict=True):
        slow.check([*[5] * 90, *path], proposal, TOLERANCE)
    drafter.shutdown()


def test_more_requests_or_tokens_than_there_is_room_for_are_refused(drafter: Drafter) -> None:
    for request in range(4):
        drafter.open(request, [request])
    with pytest.raises(DraftMemoryError, match="4 requests already"):
        drafter.open(4, [1])
    drafter.close(0)
    with pytest.raises(DraftMemoryError, match="600 tokens are more than the draft model's context of 512"):
        drafter.open(4, [1] * 600)
    drafter.open(4, [1] * 505)
    drafter.step(4, [(1,) * 7], 1)
    with pytest.raises(DraftMemoryError, match="513 tokens"):
        drafter.step(4, [(1,) * 8], 1)
    drafter.commit(4, [1] * 20)
    with pytest.raises(DraftMemoryError, match="context"):
        drafter.catch_up(4, 1000)
    drafter.close(4)


def test_a_model_is_not_used_beyond_the_context_that_it_was_trained_for(tmp_path: Path) -> None:
    drafter = Drafter(make_tiny_gguf(tmp_path / "short.gguf", context=100), context=512)
    assert drafter.context == 100
    with pytest.raises(DraftMemoryError):
        drafter.open("r", [1] * 101)
    drafter.shutdown()


@pytest.mark.parametrize("bad", [[64], [-1], [2**31 - 1]])
def test_a_token_outside_the_vocabulary_is_refused_before_the_model_sees_it(bad: list[int], drafter: Drafter) -> None:
    with pytest.raises(ValueError, match="vocabulary of 64"):
        drafter.open("r", bad)
    drafter.open("r", PROMPT)
    with pytest.raises(ValueError, match="vocabulary of 64"):
        drafter.commit("r", bad)
    with pytest.raises(ValueError, match="vocabulary of 64"):
        drafter.step("r", [tuple(bad)], 1)
    assert len(drafter.step("r", [()], 1)) == 1


def test_more_leaves_than_agreed_and_a_second_open_are_bugs_of_the_caller(drafter: Drafter) -> None:
    drafter.open("r", PROMPT)
    with pytest.raises(ValueError, match="1 to 8 leaves"):
        drafter.step("r", [(i,) for i in range(9)], 1)
    with pytest.raises(ValueError, match="1 to 8 leaves"):
        drafter.step("r", [], 1)
    with pytest.raises(ValueError, match="open already"):
        drafter.open("r", PROMPT)


def test_old_prefixes_give_way_to_newer_ones(drafter: Drafter) -> None:
    for i in range(8):
        drafter.open(i, [i, *PROMPT * 4])
        drafter.catch_up(i, 999)
        drafter.close(i)
    shared = []
    for i in range(8):
        shared.append(drafter.open("probe", [i, *PROMPT * 4]))
        drafter.close("probe", keep=False)
    assert shared == [0, 0, 0, 0, 0, 40, 40, 40], "only a quarter of 512 cells is for closed requests"


# --- bad files ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["missing", "empty", "text", "head", "cut", "folder"])
def test_an_unusable_file_is_one_sentence_and_nothing_on_stderr(
    kind: str, model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    whole, path = model.read_bytes(), tmp_path / "draft.gguf"
    contents = {"empty": b"", "text": b"not a model\n" * 99, "head": whole[:3000], "cut": whole[:-5000]}
    if kind == "folder":
        path.mkdir()
    elif kind != "missing":
        path.write_bytes(contents[kind])
    with pytest.raises(ModelError, match=r"draft\.gguf") as caught:
        Drafter(path)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_a_missing_llama_cpp_is_one_sentence_that_says_what_to_install() -> None:
    code = "import sys; sys.modules['llama_cpp'] = None; import edgespec.drafter"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "ModelError: a draft model needs llama.cpp: install it with" in run.stderr


def test_loading_and_drafting_print_nothing(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    drafter = Drafter(model, context=256)
    drafter.open("r", PROMPT)
    drafter.step("r", [(1,), (2,)], 1)
    drafter.shutdown()
    assert capfd.readouterr() == ("", "")


def test_a_context_that_memory_cannot_hold_is_refused_before_it_is_touched(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert 2**26 < edgespec.llama._available_bytes() < 2**50
    monkeypatch.setattr(edgespec.llama, "_available_bytes", lambda: 100e6)
    with pytest.raises(ModelError, match=r"1048576 tokens of .* needs 0\.1 GB .* 0\.1 GB .*: lower `context`"):
        Drafter(model, context=2**20)
    Drafter(model, context=2**19).shutdown()


@pytest.mark.parametrize("wrong", [{"context": 0}, {"sequences": 33}, {"requests": -1}, {"threads": 0}])
def test_an_impossible_setting_names_its_key_and_range(wrong: dict[str, int], model: Path) -> None:
    (name,) = wrong
    with pytest.raises(ConfigError, match=rf"`{name}` = .*: choose 1 to"):
        Drafter(model, **wrong)


# --- random walks -------------------------------------------------------------------------------------------------


class Walk(RuleBasedStateMachine):
    """Opens, drafts, commits and closes at random, with few sequences and cells, against the slow twin."""

    model: Path
    slow: SlowDrafter
    tokens = st.lists(st.integers(3, 5), min_size=1, max_size=4)
    """Few token ids, so that random trees and prompts overlap."""

    def __init__(self) -> None:
        super().__init__()
        self.drafter = Drafter(self.model, context=256, sequences=4, requests=3)
        self.committed: dict[int, list[int]] = {}
        self.next = 0

    @precondition(lambda self: len(self.committed) < 3)
    @rule(stem=st.sampled_from([0, 20, 70]), tail=tokens)
    def open(self, stem: int, tail: list[int]) -> None:
        tokens = [7 + i % 11 for i in range(stem)] + tail
        self.next += 1
        assert self.drafter.open(self.next, tokens) + self.drafter.pending(self.next) == len(tokens)
        self.committed[self.next] = tokens

    @precondition(lambda self: self.committed)
    @rule(pick=st.integers(0, 2), paths=st.lists(st.lists(st.integers(3, 5), max_size=4), min_size=1, max_size=4))
    def step(self, pick: int, paths: list[list[int]]) -> None:
        request = self.pick(pick)
        try:
            proposals = self.drafter.step(request, [tuple(path) for path in paths], 3)
        except DraftMemoryError:
            return
        for path, proposal in zip(paths, proposals, strict=True):
            self.slow.check([*self.committed[request], *path], proposal, TOLERANCE)
        assert self.drafter.pending(request) == 0

    @precondition(lambda self: self.committed)
    @rule(pick=st.integers(0, 2), tokens=tokens)
    def commit(self, pick: int, tokens: list[int]) -> None:
        request = self.pick(pick)
        owed = self.drafter.pending(request)
        matched = self.drafter.commit(request, tokens)
        assert 0 <= matched <= len(tokens)
        assert self.drafter.pending(request) == owed + len(tokens) - matched
        self.committed[request] += tokens

    @precondition(lambda self: self.committed)
    @rule(pick=st.integers(0, 2), limit=st.integers(1, 40))
    def catch_up(self, pick: int, limit: int) -> None:
        request = self.pick(pick)
        owed = self.drafter.pending(request)
        try:
            left = self.drafter.catch_up(request, limit)
        except DraftMemoryError:
            return
        assert left == max(owed - 1 - limit, 0)

    @precondition(lambda self: self.committed)
    @rule(pick=st.integers(0, 2), keep=st.booleans())
    def close(self, pick: int, keep: bool) -> None:
        request = self.pick(pick)
        self.drafter.close(request, keep=keep)
        del self.committed[request]

    def pick(self, number: int) -> int:
        return list(self.committed)[number % len(self.committed)]

    @invariant()
    def every_sequence_is_held_once(self) -> None:
        opened, closed = self.drafter._open.values(), self.drafter._closed
        held = [r.trunk for r in (*opened, *closed)] + [tip.id for r in opened for tip in r.tips]
        assert sorted(held + self.drafter._free) == list(range(8 + 3 * edgespec.drafter.IDS_PER_REQUEST))

    def teardown(self) -> None:
        self.drafter.shutdown()


@pytest.mark.parametrize("ids", [1, 8])
def test_random_walks_equal_the_slow_twin(
    ids: int, model: Path, slow: SlowDrafter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edgespec.drafter, "IDS_PER_REQUEST", ids)
    monkeypatch.setattr(Walk, "model", model, raising=False)
    monkeypatch.setattr(Walk, "slow", slow, raising=False)
    run_state_machine_as_test(Walk, settings=settings(max_examples=25, stateful_step_count=40))
