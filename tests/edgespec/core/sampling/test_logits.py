"""Processing of logits: equal to a slow twin in plain Python, and exact at the edges."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.core.protocol.messages import Sampling
from edgespec.core.sampling.logits import History, Processor, entropy, kth_largest
from tests.support.processed import probabilities, process

INF = math.inf


def slow_process(
    logits: list[float], rule: Sampling, prompt: list[int], answer: list[int], allowed: list[bool] | None = None
) -> list[float]:
    """The order of processing, token by token; `answer` has the path's tokens at its end."""
    counts = Counter(answer)
    seen = {*prompt, *answer}
    x = []
    for v, logit in enumerate(logits):
        if allowed is not None and not allowed[v]:
            logit = -INF
        logit += rule.logit_bias.get(v, 0.0)
        if v in seen:
            logit = logit / rule.repetition_penalty if logit > 0 else logit * rule.repetition_penalty
        x.append(logit - (rule.frequency_penalty * counts[v] + rule.presence_penalty * (counts[v] > 0)))
    if rule.temperature < 1e-5:
        return [x[v] if v == x.index(max(x)) else -INF for v in range(len(x))]
    x = [logit / rule.temperature for logit in x]
    if rule.top_k:
        x = [a if sum(b > a for b in x) < rule.top_k else -INF for a in x]
    if rule.top_p < 1:
        weight = [math.exp(a - max(x)) for a in x]
        goal = rule.top_p * math.fsum(weight)
        above = [math.fsum(w for w, b in zip(weight, x) if b > a) for a in x]
        x = [a if mass < goal or a == max(x) else -INF for a, mass in zip(x, above)]
    if rule.min_p > 0:
        x = [a if a >= max(x) + math.log(rule.min_p) else -INF for a in x]
    return x


VOCAB = 40
tokens = st.lists(st.integers(0, VOCAB - 1), max_size=12)
rules = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.3, 0.7, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 2, 7, 39, 40, 1000]),
    top_p=st.sampled_from([0.0, 1e-9, 0.1, 0.5, 0.95, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.01, 0.2, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.8]),
    presence_penalty=st.sampled_from([0.0, 0.5, -1.0]),
    frequency_penalty=st.sampled_from([0.0, 0.25, -0.3]),
    logit_bias=st.dictionaries(st.integers(0, VOCAB - 1), st.sampled_from([-100.0, -1.0, 2.5, 100.0]), max_size=4),
)


def some_logits(seed: int, n: int = VOCAB, ties: bool = False) -> np.ndarray:
    values = np.random.default_rng(seed).normal(size=n) * 3
    return (np.round(values) if ties else values).astype(np.float32)


@given(st.integers(0, 2**32), rules, tokens, tokens, tokens, st.booleans())
def test_equals_the_slow_twin(
    seed: int, rule: Sampling, prompt: list[int], answer: list[int], path: list[int], masked: bool
) -> None:
    logits = some_logits(seed)
    allowed = np.random.default_rng(seed + 1).random(VOCAB) < 0.5 if masked else None
    if allowed is not None:
        allowed[3] = True
    fast = process(logits, rule, History(prompt, answer), path, allowed)
    mask = None if allowed is None else allowed.tolist()
    slow = slow_process([float(a) for a in logits], rule, prompt, answer + path, mask)
    np.testing.assert_allclose(fast, slow, rtol=1e-12)


@given(st.integers(0, 2**32), st.integers(0, 60), st.sampled_from([0.05, 0.5, 0.9, 1.0]), st.sampled_from([0.0, 0.05]))
def test_equals_the_slow_twin_where_many_logits_are_equal(seed: int, top_k: int, top_p: float, min_p: float) -> None:
    logits = some_logits(seed, n=300, ties=True)
    rule = Sampling(temperature=1.0, top_k=top_k, top_p=top_p, min_p=min_p)
    slow = slow_process([float(a) for a in logits], rule, [], [])
    np.testing.assert_allclose(process(logits, rule), slow, rtol=1e-12)


@given(st.integers(0, 2**32), rules, tokens, tokens, tokens)
def test_a_token_counts_alike_on_a_path_and_committed(
    seed: int, rule: Sampling, prompt: list[int], answer: list[int], path: list[int]
) -> None:
    logits = some_logits(seed)
    on_path = process(logits, rule, History(prompt, answer), path)
    committed = process(logits, rule, History(prompt, answer + path), [])
    assert (on_path == committed).all()  # to the bit: a choice must not depend on the end of a round


@given(st.integers(0, 2**32), rules, tokens)
def test_leaves_its_inputs_alone(seed: int, rule: Sampling, prompt: list[int]) -> None:
    logits = some_logits(seed)
    history = History(prompt)
    before = logits.copy()
    first = process(logits, rule, history, [1, 1, 2])
    assert (logits == before).all()
    assert (process(logits, rule, history, [1, 1, 2]) == first).all()


@given(st.integers(0, 2**32), rules)
def test_candidates_and_dense_logits_are_one_distribution(seed: int, rule: Sampling) -> None:
    logits = some_logits(seed)
    found = Processor(rule).candidates(logits)
    dense = found.dense(VOCAB)
    kept = np.flatnonzero(dense > -INF)
    if found.tokens is not None:
        assert (found.tokens == kept).all() and (np.diff(found.tokens) > 0).all()
    p = probabilities(found, VOCAB)
    assert p.sum() == pytest.approx(1) and (p[dense == -INF] == 0).all()
    slow = -sum(x * math.log(x) for x in p if x > 0)
    assert found.entropy() == pytest.approx(slow, abs=1e-9)


# --- edges -----------------------------------------------------------------------------------------------------------


def kept(logits: list[float], **rule: float) -> list[int]:
    processed = process(np.array(logits, np.float32), Sampling(**{"temperature": 1.0, **rule}))
    return np.flatnonzero(processed > -INF).tolist()


def test_temperature_zero_leaves_the_lowest_of_the_largest() -> None:
    assert kept([1, 5, 5, 2], temperature=0.0, top_p=0.5) == [1]
    assert kept([1, 5, 5, 2], temperature=1e-6) == [1]


def test_all_removed_but_one() -> None:
    allowed = np.array([False, False, True, False])
    rule = Sampling(temperature=0.7, top_k=3, top_p=0.9, min_p=0.1)
    x = process(np.array([9, 8, -50, 7], np.float32), rule, allowed=allowed)
    assert np.flatnonzero(x > -INF).tolist() == [2]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nothing_left_or_not_a_number_is_an_error(temperature: float) -> None:
    rule = Sampling(temperature=temperature, top_p=0.9)
    with pytest.raises(ValueError, match="no token"):
        process(np.array([1, 2], np.float32), rule, allowed=np.array([False, False]))
    with pytest.raises(ValueError, match="a number"):
        process(np.array([np.nan, np.nan], np.float32), rule)


@pytest.mark.claim("infinite-and-huge-logits-leave-a-distribution")
@pytest.mark.parametrize("temperature", [0.0, 1e-310, 1e-5, 1.0, 2.0])
@pytest.mark.parametrize("penalty", [0.01, 1.0, 10.0])
@pytest.mark.parametrize("top_p", [5e-324, 0.5, 1.0])
def test_infinite_and_huge_logits_leave_a_distribution(temperature: float, penalty: float, top_p: float) -> None:
    rule = Sampling(
        temperature, repetition_penalty=penalty, top_p=top_p, min_p=5e-324, presence_penalty=-2, logit_bias={0: -100}
    )
    big = float(np.finfo(np.float32).max)
    for row in ([INF, 1, 2], [INF, INF, -INF], [-INF, -INF, -INF], [big, -big, 0], [np.nan, 1, 2], [0, 0, 0]):
        found = Processor(rule).candidates(np.array(row, np.float32), History([0, 1]), [1])
        p = probabilities(found, 3)
        assert np.isfinite(p).all() and p.sum() == pytest.approx(1)
        assert 0 <= found.entropy() <= math.log(3) + 1e-9
        assert (
            Processor(rule).candidates(np.array(row, np.float32), History([0, 1]), [1]).logits == found.logits
        ).all()


def test_a_mask_that_allows_only_infinite_logits_still_leaves_a_token() -> None:
    found = process(np.array([5, -np.inf, 3], np.float32), Sampling(), allowed=np.array([False, True, False]))
    assert int(np.argmax(found)) == 1


@given(st.integers(0, 2**32), st.integers(16_000, 40_000))
def test_entropy_of_a_large_vocabulary_equals_the_slow_one(seed: int, n: int) -> None:
    logits = np.random.default_rng(seed).normal(size=n)
    logits[: n // 2] = -INF
    p = np.exp(logits) / np.exp(logits).sum()
    assert entropy(logits) == pytest.approx(-float((p[n // 2 :] * np.log(p[n // 2 :])).sum()), rel=1e-9)


@given(st.integers(0, 2**32), st.integers(1, 2000), st.data())
def test_kth_largest_equals_sorting(seed: int, n: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, n))
    rng = np.random.default_rng(seed)
    x = rng.normal(size=n)
    x[::64] += rng.choice([0, 10], size=len(x[::64]))  # the largest spread over the chunks, or not
    assert kth_largest(x, k) == np.sort(x)[n - k]


def test_greedy_needs_logits_only_when_something_moves_the_argmax() -> None:
    assert Processor(Sampling()).keeps_argmax
    assert not Processor(Sampling(frequency_penalty=0.1)).keeps_argmax
    assert not Processor(Sampling(logit_bias={1: 1.0})).keeps_argmax
