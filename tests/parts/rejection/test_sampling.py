"""Classic rejection sampling: exact for chains and trees, and closed to probabilities that it did not draw from."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_gateway.core.verify.accept import FlatTree, walk
from cloud_gateway.parts.rejection.sampling import NONE, Rejection, RejectionChooser
from edgespec.core.drafting.algorithm2 import Proposal
from edgespec.core.protocol.messages import Sampling

P = np.array([0.4, 0.25, 0.2, 0.1, 0.05, 0.0])
Q = np.array([0.1, 0.5, 0.0, 0.2, 0.1, 0.1])


def rejection(seed: int = 1) -> Rejection:
    return Rejection(np.random.default_rng(seed))


def exact_output(p: np.ndarray, q: np.ndarray, width: int) -> np.ndarray:
    """The distribution of what comes out, by summing over every order of siblings and every outcome of the tests.

    The slow twin of `draw` and `token` together, from the algorithm in the module's text.
    """
    result = np.zeros(len(p))
    for siblings in itertools.permutations(np.flatnonzero(q > 0).tolist(), min(width, int(np.count_nonzero(q)))):
        probability = 1.0
        left = q / q.sum()
        rest = p.copy()
        tested = q / q.sum()
        for x in siblings:
            probability *= left[x]
            left = left.copy()
            left[x] = 0
            left = left / left.sum() if left.sum() else left
        for x in siblings:
            accepted = min(1.0, rest[x] / tested[x])
            result[x] += probability * accepted
            probability *= 1 - accepted
            if probability == 0:
                break
            rest = np.maximum(rest - tested, 0)
            rest /= rest.sum()
            tested = tested.copy()
            tested[x] = 0
            tested = tested / tested.sum() if tested.sum() else tested
        result += probability * rest
    return result


@pytest.mark.parametrize("width", range(1, 6))
def test_the_algorithm_itself_is_exact(width: int) -> None:
    np.testing.assert_allclose(exact_output(P, Q, width), P, atol=1e-12)


@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_the_code_gives_the_targets_distribution(width: int) -> None:
    n = 50_000
    r = rejection(width)
    draft = r.draw(np.tile(Q, (n, 1)), width)
    counts = np.bincount(r.token(np.tile(P, (n, 1)), draft), minlength=6)
    expected = n * P[:5]
    assert counts[5] == 0
    assert (((counts[:5] - expected) ** 2) / expected).sum() < 28  # 4 degrees of freedom: p = 1e-5


def test_siblings_are_different_and_come_from_q_alone() -> None:
    draft = rejection().draw(np.tile(Q, (1000, 1)), 8)
    for row in draft.siblings.tolist():
        drawn = [token for token in row if token != NONE]
        assert len(set(drawn)) == len(drawn) == 5 and 2 not in drawn
        assert row[5:] == [NONE] * 3
    first = np.bincount(draft.siblings[:, 0], minlength=6) / 1000
    np.testing.assert_allclose(first, Q, atol=0.06)


def test_a_draft_equal_to_the_target_is_always_accepted() -> None:
    r = rejection()
    draft = r.draw(np.tile(P, (1000, 1)), 1)
    assert (r.token(np.tile(P, (1000, 1)), draft) == draft.siblings[:, 0]).all()


@given(st.integers(0, 2**32), st.integers(1, 8), st.integers(2, 12))
def test_nothing_impossible_ever_comes_out(seed: int, width: int, vocab: int) -> None:
    rng = np.random.default_rng(seed)
    p, q = rng.random((2, 50, vocab)) * (rng.random((2, 50, vocab)) < 0.6)
    p[:, 0] += 1e-3
    q[:, -1] += 1e-3
    p /= p.sum(axis=1, keepdims=True)
    r = Rejection(rng)
    tokens = r.token(p, r.draw(q, width))
    assert (p[np.arange(50), tokens] > 0).all()


def test_a_sample_by_inversion_never_lands_on_probability_zero() -> None:
    class Extreme(np.random.Generator):
        value = 0.0

        def random(self, size: Any = None) -> np.ndarray:  # type: ignore[override]
            return np.full(size, self.value)

    rng = Extreme(np.random.PCG64(1))
    p = np.array([[0.0, 0.3, 0.0, 0.7, 0.0]])
    for value, token in ((0.0, 1), (1 - 2**-53, 3)):
        rng.value = value
        assert Rejection(rng).sample(p)[0] == token


def test_probabilities_from_elsewhere_are_refused() -> None:
    r = rejection()
    p = P[None, :]
    for foreign in (Proposal([1], [0.1], 0.5), (Q[None, :], np.array([[1]])), Q[None, :]):
        with pytest.raises(TypeError, match="drew itself"):
            r.token(p, foreign)


# --- a request ------------------------------------------------------------------------------------------------------


class Rows:
    def __init__(self, logits: list[np.ndarray]) -> None:
        self.rows = logits

    @property
    def argmax(self) -> list[int]:
        return [int(np.argmax(row)) for row in self.rows]

    def logits(self, row: int) -> np.ndarray:
        return self.rows[row]


def test_candidates_of_a_worker_in_the_same_tree_change_nothing() -> None:
    """Two tokens by walk, with one local sibling and one of a worker: the exact joint distribution."""
    rng = np.random.default_rng(5)
    n = 4_000
    vocab = 4
    target = rng.normal(size=(vocab + 1, vocab)).astype(np.float32)
    draft_logits = rng.normal(size=vocab).astype(np.float32)
    chooser = RejectionChooser(Sampling(temperature=1.0), [0], np.random.default_rng(6))
    seen: Counter[tuple[int, int]] = Counter()
    for _ in range(n):
        local = chooser.draft(draft_logits, (), 1)
        mine = int(local.siblings[0, 0])
        tokens = [0, mine, *([3] if mine != 3 else [])]
        flat = FlatTree(tokens, [-1] + [0] * (len(tokens) - 1), [0] + [1] * (len(tokens) - 1))
        rows = Rows([target[0], *(target[1 + token] for token in tokens[1:])])
        answer = walk(flat, chooser.at(flat, rows), limit=2).tokens
        chooser.committed(answer)
        if len(answer) == 1:
            alone = FlatTree([answer[0]], [-1], [0])
            answer += walk(alone, chooser.at(alone, Rows([target[1 + answer[0]]])), limit=1).tokens
        seen[tuple(answer)] += 1  # type: ignore[index]
    p = np.exp(target) / np.exp(target).sum(axis=1, keepdims=True)
    statistic = sum(
        (seen[a, b] - n * p[0, a] * p[1 + a, b]) ** 2 / (n * p[0, a] * p[1 + a, b])
        for a in range(vocab)
        for b in range(vocab)
    )
    assert statistic < 52  # 15 degrees of freedom: p = 6e-6


def test_penalties_count_the_path_and_what_was_committed() -> None:
    logits = np.array([0.0, 0.0, 50.0], np.float32)
    chooser = RejectionChooser(Sampling(temperature=1.0, presence_penalty=100.0), [], np.random.default_rng(1))
    flat = FlatTree([0, 2], [-1, 0], [0, 1])
    assert walk(flat, chooser.at(flat, Rows([logits, logits]))).tokens[0] == 2
    assert walk(flat, chooser.at(flat, Rows([logits, logits]))).tokens[1] != 2
    chooser.committed([2])
    assert chooser.draft(logits, (), 1).siblings[0, 0] != 2


def test_a_node_is_drawn_for_once_and_its_draws_follow_the_commit() -> None:
    chooser = RejectionChooser(Sampling(temperature=1.0), [0], np.random.default_rng(1))
    logits = np.random.default_rng(2).normal(size=50).astype(np.float32)
    first = {path: chooser.draft(logits, path, 3) for path in ((), (7,), (7, 8), (9,))}
    assert all(chooser.draft(-logits, path, 2) is drawn for path, drawn in first.items())
    chooser.committed([7])
    assert chooser.draft(logits, (), 3) is first[7,] and chooser.draft(logits, (8,), 3) is first[7, 8]
    chooser.committed([1])
    assert chooser.draft(logits, (), 3) is not first[7,] and chooser.draft(logits, (8,), 3) is not first[7, 8]


def test_candidates_come_in_the_order_drawn_priced_by_their_place() -> None:
    chooser = RejectionChooser(Sampling(temperature=1.0, top_k=3), [0], np.random.default_rng(1))
    logits = np.arange(10, dtype=np.float32)
    proposal = chooser.rank(logits, (), 8)
    assert proposal.tokens == chooser.draft(logits, (), 8).siblings[0, :3].tolist() and set(proposal.tokens) == {
        7,
        8,
        9,
    }
    shares = np.exp(-np.array(proposal.costs))
    np.testing.assert_allclose(shares[1:] / shares[:-1], 1 - shares[0])
    assert proposal.entropy == pytest.approx(0.8324, abs=1e-3)
    for _ in range(200):  # draft and target agree, so every first sibling is accepted
        flat = FlatTree([0], [-1], [0])
        token = chooser.at(flat, Rows([logits]))(0)
        assert token == proposal.tokens[0]
        chooser.committed([token])
        proposal = chooser.rank(logits, (), 1)
    assert proposal.costs[0] < 0.03


def test_what_a_constraint_forbids_is_never_accepted() -> None:
    def odd(path: Sequence[int]) -> np.ndarray:
        return np.arange(6) % 2 == (1 - len(path) % 2)

    logits = np.zeros(6, np.float32)
    chooser = RejectionChooser(Sampling(temperature=1.0), [0], np.random.default_rng(1), constraint=odd)
    for _ in range(200):
        drawn = chooser.rank(logits, (), 3).tokens
        flat = FlatTree([0, *drawn], [-1, 0, 0, 0], [0, 1, 1, 1])
        tokens = walk(flat, chooser.at(flat, Rows([logits] * 4))).tokens
        assert tokens[0] % 2 == 1 and all(token % 2 == 0 for token in tokens[1:])
        chooser.committed(tokens)


def test_where_p_equals_q_rounding_leaves_p_itself() -> None:
    p = np.tile(P, (1, 1))
    np.testing.assert_array_equal(rejection().residual(p, p.copy()), p)
