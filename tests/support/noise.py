"""Noise of a whole vocabulary; the product computes that of the tokens that can matter."""

from __future__ import annotations

from edgespec.core.sampling.gumbel import Bits, Floats, every_token, gumbel


def gumbel_all(seed: int | Bits, position: int, vocab_size: int) -> Floats:
    """`gumbel` of the tokens 0 .. vocab_size - 1."""
    return gumbel(seed, position, every_token(vocab_size))
