"""Figures of an arm's completions: tokens a round, drafts that were accepted, and the time of decoding."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from cloud_gateway.core.requests.request import Usage


def row(usages: Sequence[Usage]) -> dict[str, Any]:
    """Sums over the prompts, and the median of their times."""
    drafted, accepted = (sum(sum(getattr(one, name).values()) for one in usages) for name in ("drafted", "accepted"))
    return {
        "tokens / round": round(sum(u.completion_tokens for u in usages) / max(sum(u.rounds for u in usages), 1), 2),
        "accepted / drafted": round(accepted / drafted, 3) if drafted else None,
        "ms / token": round(median(map(decode_ms, usages)), 2),
    }


def decode_ms(usage: Usage) -> float:
    """Milliseconds per token once target and local draft have read the prompt; 0 where nothing was timed."""
    return 1000 * usage.decode_s / max(usage.completion_tokens, 1)


def ratios(usages: Sequence[Usage], base: Sequence[Usage]) -> list[float]:
    """Times per token over those of `base` on the same prompt, ascending."""
    return sorted(decode_ms(one) / decode_ms(other) for one, other in zip(usages, base, strict=True))
