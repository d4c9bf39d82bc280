"""The drafter on a tiny model, against evaluating every leaf from scratch; nothing is evaluated twice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from numpy.typing import NDArray

import edgespec.llamacpp.context
import edgespec.llamacpp.drafter
from edgespec.core.drafting.algorithm2 import Proposal
from edgespec.core.drafting.ranking import Asked
from edgespec.core.numbers import common_prefix
from edgespec.llamacpp.drafter import Drafter, DraftMemoryError, DraftTokenError
from edgespec.shared.vocabfiles import gguf_vocabulary
from tests.support.slow_drafter import SlowDrafter

TOLERANCE = 0.05
"""Nats. Cells are float16, and batches run through other kernels than single tokens. A wrong cell shows more."""
PROMPT = [1, 10, 20, 30, 40, 11, 21, 31, 41, 12]


def test_it_reports_its_model(model: Path, drafter: Drafter) -> None:
    assert (drafter.vocab_size, drafter.context, drafter.sequences) == (64, 512, 8)
    assert drafter.tokenizer_digest == gguf_vocabulary(model).digest
    assert len(drafter.model_digest) == 32


def test_a_step_over_several_requests_equals_each_alone_in_one_pass(drafter: Drafter, slow: SlowDrafter) -> None:
    prompts = {"a": PROMPT, "b": [7, *PROMPT[2:]], "c": [9, 8]}
    for name, prompt in prompts.items():
        drafter.open(name, prompt)
    for paths in (
        {"a": [()], "b": [(3,), (4, 5)], "c": [()]},
        {"b": [(3, 9), (4, 5)], "a": [(6,), (7,)], "c": [(1, 2)]},
    ):
        asked = [Asked(name, own, 3) for name, own in paths.items()]
        before = drafter.passes
        for one, proposals in zip(asked, drafter.step_together(asked), strict=True):
            for path, proposal in zip(one.paths, proposals, strict=True):
                slow.check([*prompts[str(one.request)], *path], proposal, TOLERANCE)
        assert drafter.passes == before + 1
    assert drafter.rows == 10 + 9 + 2 + 3 + 6, "prompts, what is below that of b, and the second step"
    drafter.commit("b", [4, 5])
    (proposal,) = drafter.step("b", [()], 3)
    slow.check([*prompts["b"], 4, 5], proposal, TOLERANCE)


def test_a_step_for_all_fails_as_one_and_keeps_what_each_had(drafter: Drafter, slow: SlowDrafter) -> None:
    for name in "abc":
        drafter.open(name, PROMPT)
        drafter.step(name, [(3,)], 2)
    free = sorted(drafter._free)
    with pytest.raises(DraftTokenError):
        drafter.step_together([Asked("a", [(4,)]), Asked("b", [(99,)])])
    with pytest.raises(ValueError, match="leaves of all"):
        drafter.step_together([Asked(name, [(n,) for n in range(8)]) for name in "abc"] * 3)
    with pytest.raises(DraftMemoryError):
        drafter.step_together([Asked(name, [tuple(range(1, 60)) * 3]) for name in "abc"])
    assert set(free) <= set(drafter._free), "idle tips went, and nothing is held that was not before"
    (proposal,) = drafter.step("a", [(3, 4)], 2)
    slow.check([*PROMPT, 3, 4], proposal, TOLERANCE)


def test_no_ancestor_is_evaluated_twice(drafter: Drafter, slow: SlowDrafter) -> None:
    drafter.open("r", PROMPT)
    drafter.step("r", [()], 2)
    levels: list[list[tuple[int, ...]]] = [[(3,), (4,)], [(3, 5), (3, 6), (4, 7)], [(3, 5, 8), (3, 6, 8), (3, 6, 9)]]
    for step, paths in enumerate(levels):
        before = drafter.rows
        for path, proposal in zip(paths, drafter.step("r", paths, 3), strict=True):
            slow.check([*PROMPT, *path], proposal, TOLERANCE)
        assert drafter.rows - before == len(paths), f"step {step}"


def test_a_leaf_asked_again_costs_one_row_and_gives_the_same(drafter: Drafter) -> None:
    drafter.open("r", PROMPT)
    paths = [(), (3,), (3, 4)]
    first = drafter.step("r", paths, 3)
    before = drafter.rows
    free = sorted(drafter._free)
    again = drafter.step("r", paths, 3)
    assert drafter.rows - before == 3
    assert sorted(drafter._free) == free
    assert [p.tokens for p in again] == [p.tokens for p in first]
    np.testing.assert_allclose([p.costs for p in again], [p.costs for p in first], atol=TOLERANCE)


def test_a_commit_along_the_tree_keeps_what_was_evaluated(drafter: Drafter, slow: SlowDrafter) -> None:
    drafter.open("r", PROMPT)
    drafter.step("r", [(3, 4, 5), (3, 4, 6), (7,)], 2)
    assert drafter.commit("r", [3, 4]) == 2
    assert drafter.backlog("r") == 0
    before = drafter.rows
    proposals = drafter.step("r", [(5, 9), (6, 9)], 2)
    assert drafter.rows - before == 2
    for path, proposal in zip([(5, 9), (6, 9)], proposals, strict=True):
        slow.check([*PROMPT, 3, 4, *path], proposal, TOLERANCE)


def test_catching_up_goes_in_limited_batches_and_leaves_the_last_token(drafter: Drafter, slow: SlowDrafter) -> None:
    assert drafter.open("r", PROMPT) == 0
    assert drafter.backlog("r") == 10
    assert [drafter.catch_up("r", 4) for _ in range(4)] == [5, 1, 0, 0]
    assert (drafter.backlog("r"), drafter.passes, drafter.rows) == (1, 3, 9)
    slow.check(PROMPT, drafter.step("r", [()], 3)[0], TOLERANCE)
    assert (drafter.backlog("r"), drafter.catch_up("r", 4)) == (0, 0)


def test_a_prompt_that_begins_like_another_shares_its_cells(drafter: Drafter, slow: SlowDrafter) -> None:
    drafter.open("a", PROMPT, b"s")
    drafter.step("a", [(3,)], 1)
    drafter.commit("a", [3, 4])
    assert drafter.open("open", [*PROMPT[:7], 50], b"s") == 7
    drafter.close("a")
    assert drafter.open("closed", [*PROMPT, 3, 9], b"s") == 11
    assert drafter.open("whole", PROMPT, b"s") == 10
    before = drafter.rows
    slow.check(PROMPT, drafter.step("whole", [()], 3)[0], TOLERANCE)
    slow.check([*PROMPT[:7], 50], drafter.step("open", [()], 3)[0], TOLERANCE)
    slow.check([*PROMPT, 3, 9], drafter.step("closed", [()], 3)[0], TOLERANCE)
    assert drafter.rows - before == 3


def test_prompts_that_are_opened_together_are_read_once(drafter: Drafter, slow: SlowDrafter) -> None:
    for name, scope in (("a", b"s"), ("b", b"s"), ("c", b"s"), ("other", b"t")):
        drafter.open(name, PROMPT, scope)
    assert [drafter.catch_up(name, 4) for name in ("a", "b", "a", "b", "a")] == [5, 1, 0, 0, 0]
    assert drafter.rows == 4 + 4 + 1
    for name in ("b", "c"):
        slow.check(PROMPT, drafter.step(name, [()], 3)[0], TOLERANCE)
    assert drafter.rows == 9 + 2
    assert drafter.catch_up("other", 999) == 0 and drafter.rows == 11 + 9


@pytest.mark.claim("a-scope-with-many-prompts-keeps-its-share-of-slots-only")
def test_a_scope_that_keeps_most_gives_way_before_the_others(model: Path) -> None:
    drafter = Drafter(model, context=512, sequences=2, requests=3)
    for number, scope in enumerate([b"alice", *[b"bob"] * 5]):
        drafter.open(number, [number, *PROMPT], scope)
        drafter.catch_up(number, 999)
        drafter.close(number)
    shared = []
    for number, scope in enumerate([b"alice", *[b"bob"] * 5]):
        shared.append(drafter.open("probe", [number, *PROMPT], scope))
        drafter.close("probe", keep=False)
    assert shared == [10, 0, 0, 0, 10, 10]
    drafter.shutdown()


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
    @rule(stem=st.sampled_from([0, 20, 70]), tail=tokens, scope=st.sampled_from([b"", b"a", b"a", b"b"]))
    def open(self, stem: int, tail: list[int], scope: bytes) -> None:
        tokens = [7 + i % 11 for i in range(stem)] + tail
        self.next += 1
        known = self.known(tokens, scope)
        shared = self.drafter.open(self.next, tokens, scope)
        assert shared + self.drafter.backlog(self.next) == len(tokens)
        assert shared <= known, "nothing of another scope"
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
        assert self.drafter.backlog(request) == 0

    @precondition(lambda self: self.committed)
    @rule(pick=st.integers(0, 2), tokens=tokens)
    def commit(self, pick: int, tokens: list[int]) -> None:
        request = self.pick(pick)
        backlog = self.drafter.backlog(request)
        matched = self.drafter.commit(request, tokens)
        assert 0 <= matched <= len(tokens)
        assert self.drafter.backlog(request) == backlog + len(tokens) - matched
        self.committed[request] += tokens

    @precondition(lambda self: self.committed)
    @rule(pick=st.integers(0, 2), limit=st.integers(1, 40))
    def catch_up(self, pick: int, limit: int) -> None:
        request = self.pick(pick)
        tokens = self.committed[request]
        known = self.known(tokens, self.drafter._open[request].scope)
        backlog = min(self.drafter.backlog(request), len(tokens) - known)
        try:
            left = self.drafter.catch_up(request, limit)
        except DraftMemoryError:
            return
        assert left == max(backlog - 1 - limit, 0)

    @precondition(lambda self: self.committed)
    @rule(pick=st.integers(0, 2), keep=st.booleans())
    def close(self, pick: int, keep: bool) -> None:
        request = self.pick(pick)
        self.drafter.close(request, keep=keep)
        del self.committed[request]

    def known(self, tokens: list[int], scope: bytes) -> int:
        """How many of these tokens some request of the scope has evaluated."""
        others = (*self.drafter._open.values(), *self.drafter._closed)
        found = [common_prefix(r.tokens[: r.evaluated], tokens) for r in others if scope and r.scope == scope]
        return max(found, default=0)

    def pick(self, number: int) -> int:
        return list(self.committed)[number % len(self.committed)]

    @invariant()
    def every_sequence_is_held_once(self) -> None:
        opened = self.drafter._open.values()
        closed = self.drafter._closed
        held = [r.trunk for r in (*opened, *closed)] + [tip.id for r in opened for tip in r.tips]
        assert sorted(held + self.drafter._free) == list(range(8 + 3 * edgespec.llamacpp.drafter.IDS_PER_REQUEST))

    def teardown(self) -> None:
        self.drafter.shutdown()


@pytest.mark.parametrize("ids", [1, 8])
def test_random_walks_equal_the_slow_twin(
    ids: int, model: Path, slow: SlowDrafter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edgespec.llamacpp.drafter, "IDS_PER_REQUEST", ids)
    monkeypatch.setattr(Walk, "model", model, raising=False)
    monkeypatch.setattr(Walk, "slow", slow, raising=False)
    run_state_machine_as_test(Walk, settings=settings(max_examples=25, stateful_step_count=40))
