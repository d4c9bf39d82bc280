"""The `usage` object: OpenAI's counts, and figures of speculation in the `edgespec` extension."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from cloud_gateway.core.requests.request import Usage
from cloud_gateway.core.verify.candidates import LOCAL

COLOCATED_DEPTH = 2
"""k of the co-located speculative decoding that the offload share compares with."""


def usage_object(prompt_tokens: int, choices: Sequence[Usage]) -> dict[str, object]:
    """`usage` of a whole response. `prompt_tokens` counts each prompt once, however many choices it has."""
    completion_tokens = sum(usage.completion_tokens for usage in choices)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "edgespec": usage_extension(combined(choices)),
    }


def combined(choices: Sequence[Usage]) -> Usage:
    """One Usage for all choices of a response: counts and times are summed, of texts the first one is kept."""
    total = choices[0]
    for usage in choices[1:]:
        total = Usage(
            **{field.name: _added(getattr(total, field.name), getattr(usage, field.name)) for field in fields(Usage)}
        )
    return total


def _added(left: Any, right: Any) -> Any:
    if isinstance(left, list):
        return list(dict.fromkeys([*left, *right]))
    if isinstance(left, dict):
        both = left.keys() & right.keys()
        return left | right | {key: _added(left[key], right[key]) for key in both}
    return left + right if isinstance(left, int | float) else left or right


def usage_extension(usage: Usage) -> dict[str, object]:
    """The `edgespec` object of `usage` (docs/api.md explains each field)."""
    return {
        "policy": usage.policy,
        "verification": usage.verification,
        "why_off": usage.why_off,
        "workers": usage.workers,
        "by_worker": usage.by_worker,
        "why": usage.why,
        "why_not_local": usage.why_not_local,
        "rounds": usage.rounds,
        "drafted": usage.drafted,
        "accepted": usage.accepted,
        "sources": {name: _figures(counts) for name, counts in usage.sources.items()},
        "worker_share": worker_share(usage),
        "offload_share": offload_share(usage),
        "local_draft_passes": usage.local_draft_passes,
        "fallbacks": usage.fallbacks,
        "guard": usage.guard,
        "frames": usage.frames,
        "tokens_before_worker": usage.before_worker_tokens,
        "timings_ms": {
            "queued": _ms(usage.queued_s),
            "prefill": _ms(usage.prefill_s),
            "local": _ms(usage.local_s),
            "decode": _ms(usage.decode_s),
            "before_worker": _ms(usage.before_worker_s),
            "total": _ms(usage.total_s),
            "host": _ms(usage.host_s),
        },
    }


def _figures(counts: Mapping[str, Any]) -> dict[str, Any]:
    """Of one source, its time in milliseconds."""
    return {name: value for name, value in counts.items() if name != "seconds"} | {"ms": _ms(counts["seconds"])}


def worker_share(usage: Usage) -> float | None:
    """Share of the accepted candidates that came from a worker; None where none was accepted."""
    accepted = sum(usage.accepted.values())
    return round(usage.accepted.get("worker", 0) / accepted, 4) if accepted else None


def offload_share(usage: Usage) -> float | None:
    """1 - (draft passes at the gateway) / (those of co-located speculative decoding), the latter estimated.

    Co-located decoding makes COLOCATED_DEPTH draft passes in each round, and is assumed to need no more rounds than
    this completion took, so the share is a low estimate. Rounds that verified only what sources without a draft model
    proposed are no draft's. None where no draft model proposed what was verified.
    """
    rounds = usage.rounds - usage.undrafted_rounds
    if rounds <= 0 or not any(usage.drafted.get(source) for source in ("worker", LOCAL)):
        return None
    return round(max(0.0, 1 - usage.local_draft_passes / (COLOCATED_DEPTH * rounds)), 4)


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
