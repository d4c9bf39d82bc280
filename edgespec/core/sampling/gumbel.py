"""The shared noise g(seed, position, token), and the choice by it: Gumbel-max (docs/numerics.md).

A token drawn as argmax_v(log p(v) + g(v)) is an exact sample of p when the g(v) are independent Gumbel(0, 1). Here
g is a pure function of three integers, so both sides can compute it from the seed for any subset of the vocabulary
and in any order, and get the same token:

    key  = mix(mix(seed xor DOMAIN) + GAMMA * (position + 1))      once per position
    bits = mix(key + GAMMA * (token + 1))                          once per token
    u    = (floor(bits / 2**12) + 1/2) / 2**52                     exact in float64, never 0 or 1
    g    = -log(-log(u))

in arithmetic modulo 2**64, `mix` being the finaliser of SplitMix64 (Steele, Lea, Flood 2014; constants by Stafford).
The bits and u are the same everywhere; the two logarithms may differ in the last place between libraries.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

MASK = 2**64 - 1
GAMMA = 0x9E3779B97F4A7C15
"""2**64 divided by the golden ratio, odd: SplitMix64's step."""
MIX_1 = 0xBF58476D1CE4E5B9
MIX_2 = 0x94D049BB133111EB
DOMAIN = int.from_bytes(b"edgespec", "big")
"""Separates the noise from other uses of SplitMix64 under the same seed."""

Bits = NDArray[np.uint64]
Floats = NDArray[np.float64]
Tokens = NDArray[np.int64]

BLOCK = 16384
"""Elements per block: temporary arrays stay in the cache, and below the size that malloc maps and unmaps each time."""
_NEAR_NATS = 8.0
"""`shortlist` evaluates all tokens this close to the best one, and the few others whose noise is large enough."""
MARGIN_NATS = 1.0
"""`noisy_argmax` returns margins up to this exactly, and this for larger ones."""


def mix64(x: int) -> int:
    """SplitMix64's finaliser on one integer, modulo 2**64: a bijection that turns any one changed bit into about 32."""
    x &= MASK
    x = ((x ^ (x >> 30)) * MIX_1) & MASK
    x = ((x ^ (x >> 27)) * MIX_2) & MASK
    return x ^ (x >> 31)


def _mix(x: Bits) -> Bits:
    """`mix64` in place on a contiguous array."""
    flat = x.reshape(-1)
    shifted = np.empty(min(BLOCK, flat.size), np.uint64)
    for start in range(0, flat.size, BLOCK):
        part = flat[start : start + BLOCK]
        aside = shifted[: part.size]
        part ^= np.right_shift(part, np.uint64(30), out=aside)
        part *= np.uint64(MIX_1)
        part ^= np.right_shift(part, np.uint64(27), out=aside)
        part *= np.uint64(MIX_2)
        part ^= np.right_shift(part, np.uint64(31), out=aside)

    return x


def row_key(seed: int, position: int) -> int:
    """The key with which one position's tokens are hashed. Seeds are taken modulo 2**64; positions start at 0."""
    if position < 0:
        raise ValueError(f"position {position} is negative")
    return mix64(mix64(seed ^ DOMAIN) + GAMMA * (position + 1))


def row_keys(seeds: Bits, position: int) -> Bits:
    """`row_key` of many seeds at one position; same shape as `seeds`."""
    return _mix(_mix(seeds ^ np.uint64(DOMAIN)) + np.uint64(GAMMA * (position + 1) & MASK))


def hash_bits(seed: int | Bits, position: int, tokens: Tokens) -> Bits:
    """64 hash bits per token. An array of seeds is broadcast against `tokens`: shapes [T, 1] and [n] give [T, n]."""
    offsets = (tokens.astype(np.uint64) + np.uint64(1)) * np.uint64(GAMMA)
    return _mix(offsets + _key(seed, position))


def hash_bits_all(seed: int | Bits, position: int, vocab_size: int) -> Bits:
    """`hash_bits` of the tokens 0 .. vocab_size - 1."""
    return _mix(_offsets(vocab_size) + _key(seed, position))


def uniform(bits: Bits) -> Floats:
    """The upper 52 bits as a number in (0, 1): odd multiples of 2**-53, each exact."""
    result: Floats = (bits >> np.uint64(12)).view(np.int64).astype(np.float64)
    result += 0.5
    result *= 2.0**-52
    return result


def gumbel(seed: int | Bits, position: int, tokens: Tokens) -> Floats:
    """The noise g of the given tokens, in nats: from -3.61 to 36.7. Shapes as for `hash_bits`."""
    return _gumbel(hash_bits(seed, position, tokens))


def shortlist(
    logits: Floats,
    seed: int,
    position: int,
    tokens: Tokens | None = None,
    reach: float = MARGIN_NATS,
) -> tuple[Tokens, Floats]:
    """Ascending tokens with their noisy scores logits(v) + g(v): at least all that lie within `reach` nats of the best.

    `logits`: processed, of the given ascending tokens or of the whole vocabulary; -inf where a token is removed. Over a
    whole vocabulary the logarithms are taken only for tokens that can still matter: those near the largest logit, and
    the few whose noise alone could lift them there.
    """
    if tokens is None:
        tokens = every_token(len(logits))
        bits = hash_bits_all(seed, position, len(logits))
    else:
        bits = hash_bits(seed, position, tokens)
    if len(logits) <= 1024:
        return tokens, logits + _gumbel(bits)

    best = int(np.argmax(logits))
    near = max(_NEAR_NATS, reach + 5)

    # A token further than `near` below the best one needs at least this much noise to come within reach.
    needed = float(_gumbel(bits[best : best + 1].copy())[0]) + near - reach
    matter = (logits >= logits[best] - near) | (bits >= _min_bits(needed))
    if np.count_nonzero(matter) > len(logits) // 4:  # picking them out would cost more than it saves
        scores = _gumbel(bits)
        scores += logits
        return tokens, scores

    kept = np.flatnonzero(matter)
    return tokens[kept], logits[kept] + _gumbel(bits[kept])


def noisy_argmax(
    logits: Floats,
    seed: int,
    position: int,
    tokens: Tokens | None = None,
) -> tuple[int, float]:
    """argmax_v(logits(v) + g(v)) and the margin to the runner-up in nats (exact up to MARGIN_NATS, cut there).

    Arguments as for `shortlist`. On equal scores the lowest token wins.
    """
    tokens, scores = shortlist(logits, seed, position, tokens)
    winner = int(np.argmax(scores))
    top = float(scores[winner])
    scores[winner] = -np.inf
    return int(tokens[winner]), min(top - float(scores.max()), MARGIN_NATS)


def _key(seed: int | Bits, position: int) -> Bits | np.uint64:
    if isinstance(seed, int):
        return np.uint64(row_key(seed, position))
    return row_keys(seed, position)


@lru_cache(maxsize=4)
def every_token(vocab_size: int) -> Tokens:
    """0 .. vocab_size - 1, read-only."""
    tokens = np.arange(vocab_size)
    tokens.flags.writeable = False
    return tokens


@lru_cache(maxsize=4)
def _offsets(vocab_size: int) -> Bits:
    offsets = np.arange(1, vocab_size + 1, dtype=np.uint64) * np.uint64(GAMMA)
    offsets.flags.writeable = False
    return offsets


def _gumbel(bits: Bits) -> Floats:
    """The noise of these bits; their contiguous memory is reused for it."""
    noise = bits.view(np.float64)
    flat_bits = bits.reshape(-1)
    flat_noise = noise.reshape(-1)
    for start in range(0, flat_bits.size, BLOCK):
        part = flat_noise[start : start + BLOCK]
        part[:] = uniform(flat_bits[start : start + BLOCK])
        for _ in range(2):
            np.log(part, out=part)
            np.negative(part, out=part)

    return noise


def _min_bits(noise: float) -> np.uint64:
    """A hash below this has less noise than `noise`; the bound is loose by more than any rounding of the logarithms."""
    u = 0.0
    if noise > -4:
        u = math.exp(-math.exp(-noise + 1e-6))
    return np.uint64(max(int(u * 2.0**52) - 2, 0) << 12)
