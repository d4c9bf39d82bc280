"""The shared noise: bits equal to the specification, and statistical quality."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.core.sampling.gumbel import (
    gumbel,
    hash_bits,
    hash_bits_all,
    noisy_argmax,
    row_key,
    shortlist,
    uniform,
)
from tests.support.noise import gumbel_all

NUMERICS = Path(__file__).parents[4] / "docs" / "numerics.md"
VOCAB = 49152


def slow_bits(seed: int, position: int, token: int) -> int:
    """The specification in plain integers, written a second time."""

    def mix(x: int) -> int:
        x %= 2**64
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
        return x ^ (x >> 31)

    gamma = 0x9E3779B97F4A7C15
    key = mix(mix(seed ^ int.from_bytes(b"edgespec", "big")) + gamma * (position + 1))
    return mix(key + gamma * (token + 1))


def slow_gumbel(seed: int, position: int, token: int) -> float:
    u = ((slow_bits(seed, position, token) >> 12) + 0.5) / 2**52
    return -math.log(-math.log(u))


seeds = st.integers(0, 2**64 - 1)
positions = st.integers(0, 2**40)
token_lists = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=20)


def test_the_published_vector_holds() -> None:
    row = re.compile(r"^\| (\d+) \| (\d+) \| (\d+) \| `0x(\w{16})` \| `0x(\w{16})` \| (\S+) \| (\S+) \|$", re.MULTILINE)
    rows = row.findall(NUMERICS.read_text())
    assert len(rows) >= 5
    for seed, position, token, key, bits, u, g in rows:
        place = int(seed), int(position), np.array([int(token)])
        assert row_key(*place[:2]) == int(key, 16)
        assert int(hash_bits(*place)[0]) == int(bits, 16) == slow_bits(*place[:2], int(token))
        assert uniform(hash_bits(*place))[0] == float(u)
        assert gumbel(*place)[0] == pytest.approx(float(g), rel=1e-14)


@given(seeds, positions, token_lists)
def test_bits_equal_plain_integers(seed: int, position: int, tokens: list[int]) -> None:
    fast = hash_bits(seed, position, np.array(tokens))
    assert [int(b) for b in fast] == [slow_bits(seed, position, t) for t in tokens]


@given(seeds, positions, token_lists)
def test_noise_equals_plain_floats(seed: int, position: int, tokens: list[int]) -> None:
    slow = [slow_gumbel(seed, position, t) for t in tokens]
    np.testing.assert_allclose(gumbel(seed, position, np.array(tokens)), slow, rtol=1e-13, atol=1e-15)


@given(seeds, positions)
def test_any_subset_has_the_bits_of_the_whole(seed: int, position: int) -> None:
    whole = hash_bits_all(seed, position, 1000)
    subset = np.array([999, 3, 500, 3])
    assert (hash_bits(seed, position, subset) == whole[subset]).all()
    assert (gumbel(seed, position, subset) == gumbel_all(seed, position, 1000)[subset]).all()


@given(st.lists(seeds, min_size=1, max_size=5), positions)
def test_many_seeds_at_once_have_the_bits_of_each(many: list[int], position: int) -> None:
    column = np.array(many, dtype=np.uint64)[:, None]
    together = hash_bits_all(column, position, 50)
    for seed, row in zip(many, together):
        assert (row == hash_bits_all(seed, position, 50)).all()


def test_uniform_is_open_exact_and_symmetric() -> None:
    ends = uniform(np.array([0, 2**64 - 1], dtype=np.uint64))
    assert ends[0] == 2.0**-53 and ends[1] == 1 - 2.0**-53
    assert np.isfinite(-np.log(-np.log(ends))).all()


def test_a_seed_counts_modulo_two_to_the_64_and_a_position_is_not_negative() -> None:
    assert row_key(-1, 5) == row_key(2**64 - 1, 5)
    with pytest.raises(ValueError, match="negative"):
        row_key(1, -1)


# --- the choice ----------------------------------------------------------------------------------------------------


@given(seeds, st.integers(0, 1000), st.sampled_from([0.01, 0.5, 1.0, 3.0, 8.0]), st.integers(2000, 6000))
def test_pruned_argmax_is_the_plain_one(seed: int, position: int, spread: float, n: int) -> None:
    logits = np.random.default_rng(seed).normal(size=n) * spread
    scores = logits + gumbel_all(seed, position, n)
    token, margin = noisy_argmax(logits, seed, position)
    assert token == int(np.argmax(scores))
    second, first = np.partition(scores, -2)[-2:]
    assert margin == pytest.approx(min(first - second, 1.0), abs=1e-12)


@given(seeds, st.integers(0, 1000), st.integers(1, 3000))
def test_a_subset_of_candidates_gives_the_same_token(seed: int, position: int, kept: int) -> None:
    rng = np.random.default_rng(seed)
    tokens = np.sort(rng.choice(5000, kept, replace=False))
    logits = np.full(5000, -np.inf)
    logits[tokens] = rng.normal(size=kept)
    assert noisy_argmax(logits[tokens], seed, position, tokens) == noisy_argmax(logits, seed, position)


@given(seeds, st.sampled_from([0.5, 1.0, 4.0, 8.0]), st.sampled_from([3.0, 9.0, 14.0]))
def test_a_shortlist_misses_no_token_within_reach(seed: int, reach: float, below: float) -> None:
    logits = np.full(20_000, -below)
    logits[5] = 0.0
    scores = logits + gumbel_all(seed, 3, len(logits))
    tokens, short = shortlist(logits, seed, 3, reach=reach)
    assert (short == scores[tokens]).all() and (np.diff(tokens) > 0).all()
    assert set(np.flatnonzero(scores >= scores.max() - reach)) <= set(tokens.tolist())


def test_equal_scores_go_to_the_lowest_token() -> None:
    tokens = np.array([4, 4, 9])
    assert noisy_argmax(np.array([5.0, 5.0, -5.0]), 1, 1, tokens) == (4, 0.0)
