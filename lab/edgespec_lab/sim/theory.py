"""Closed forms of speculative decoding with a chain: expected tokens, speed-up, best K (Leviathan et al. 2023).

All assume that every drafted token is accepted with probability alpha, independently. Times in any one unit.
"""

from __future__ import annotations

from collections.abc import Sequence


def expected_tokens(alpha: float, k: int) -> float:
    """Tokens of one round with k drafted: 1 + alpha + … + alpha^k = (1 - alpha^(k+1)) / (1 - alpha)."""
    if alpha == 1:
        return float(k + 1)
    return (1 - alpha ** (k + 1)) / (1 - alpha)


def expected_accepted(alpha: float, k: int) -> float:
    """Drafted tokens accepted in one round: alpha (1 - alpha^k) / (1 - alpha), one less than the tokens emitted."""
    return expected_tokens(alpha, k) - 1


def speedup(alpha: float, k: int, draft: float, verify: float, network: float = 0.0) -> float:
    """Over plain decoding, of rounds of k draft steps, one round trip and one verify pass (cluster post)."""
    return expected_tokens(alpha, k) * verify / (k * draft + verify + network)


def best_k(alpha: float, draft: float, verify: float, network: float = 0.0, ks: Sequence[int] = range(1, 41)) -> int:
    """The k of the greatest speed-up."""
    return max(ks, key=lambda k: speedup(alpha, k, draft, verify, network))


def printed_overview(alpha: float, k: int) -> float:
    """K alpha / (1 - alpha^K), which the overview (section 3.3) prints for the accepted tokens of a round.

    It is wrong: K times too large for small alpha, and without bound for alpha near 1, where K is the most there can
    be. `expected_accepted` is right.
    """
    return k * alpha / (1 - alpha**k)
