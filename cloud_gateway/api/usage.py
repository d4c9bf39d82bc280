"""The `usage` object: OpenAI's counts and, on request, figures of speculation; and llama.cpp's `timings`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from cloud_gateway.core.policies.policy import LearntLimit
from cloud_gateway.core.requests.request import Usage, added
from cloud_gateway.core.verify.candidates import LOCAL

COLOCATED_DEPTH = 2
"""k of the co-located speculative decoding that the offload share compares with."""


class SpeculationTimes(Struct, forbid_unknown_fields=True):
    """Milliseconds."""

    queued: float
    prefill: float
    local: float
    decode: float
    before_worker: float
    total: float
    host: float


class SourceFigures(Struct, forbid_unknown_fields=True, kw_only=True):
    """Of a source without a draft model."""

    proposed: int
    verified: int
    accepted: int
    ms: float
    why: str | None


class Speculated(Struct, forbid_unknown_fields=True, kw_only=True):
    """`usage.edgespec` (docs/api.md explains each field)."""

    policy: str
    verification: str
    why_off: str | None
    workers: list[str]
    by_worker: dict[str, dict[str, int]]
    why: str | None
    why_not_local: str | None
    rounds: int
    drafted: dict[str, int]
    accepted: dict[str, int]
    sources: dict[str, SourceFigures]
    worker_share: float | None
    offload_share: float | None
    local_draft_passes: int
    fallbacks: int
    guard: dict[str, dict[str, int]]
    phi: LearntLimit | None
    frames: dict[str, int]
    tokens_before_worker: int
    timings_ms: SpeculationTimes


class Counts(Struct, forbid_unknown_fields=True):
    """`usage`."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    completion_tokens_details: Mapping[str, int] | UnsetType = UNSET
    """The counts of the request's parameters, if it has one that counts."""
    edgespec: Speculated | UnsetType = UNSET


class Timings(Struct, forbid_unknown_fields=True):
    """`timings` as llama.cpp's server gives them; times in milliseconds. `prompt_n` is without `cache_n`, which
    the KV cache held."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_second: float
    draft_n: int
    draft_n_accepted: int


def usage_object(prompt_tokens: int, completion_tokens: int) -> Counts:
    """`usage` without the extension. `prompt_tokens` counts each prompt once, however many choices it has."""
    return Counts(prompt_tokens, completion_tokens, prompt_tokens + completion_tokens)


def timings(usage: Usage) -> Timings:
    """The figures of a whole response: its choices' times are sums."""
    read = usage.times.prefill_s
    made = usage.times.decode_s
    drafted = sum(usage.drafted.values())
    processed = usage.prompt_tokens - usage.cached_tokens
    return Timings(
        *(usage.cached_tokens, processed, _ms(read), _rate(processed, read)),
        *(usage.completion_tokens, _ms(made), _rate(usage.completion_tokens, made)),
        *(drafted, sum(usage.accepted.values())),
    )


def _rate(count: int, seconds: float) -> float:
    if seconds > 0:
        return round(count / seconds, 3)
    return 0.0


def unnamed(usage: Usage) -> Usage:
    """The same with numbers in place of the workers' names."""
    by_worker = {f"worker {number}": counts for number, counts in enumerate(usage.by_worker.values(), 1)}
    return replace(usage, by_worker=by_worker)


def combined(choices: Sequence[Usage]) -> Usage:
    """One Usage for all choices of a response: counts and times are summed, of texts the first one is kept."""
    total: Usage = reduce(added, choices)
    return total


def usage_extension(usage: Usage) -> Speculated:
    """The `edgespec` object of `usage`: fields of `Usage` of the same names, and what follows from them."""
    shown: dict[str, Any] = {
        name: getattr(usage, name) for name in Speculated.__struct_fields__ if hasattr(usage, name)
    }
    shown["sources"] = {name: _figures(counts) for name, counts in usage.sources.items()}
    return Speculated(
        **shown,
        worker_share=worker_share(usage),
        offload_share=offload_share(usage),
        tokens_before_worker=usage.before_worker_tokens,
        timings_ms=SpeculationTimes(
            *(_ms(getattr(usage.times, f"{name}_s")) for name in SpeculationTimes.__struct_fields__)
        ),
    )


def _figures(counts: Mapping[str, Any]) -> SourceFigures:
    """Of one source, its time in milliseconds."""
    shown = {name: value for name, value in counts.items() if name != "seconds"}
    return SourceFigures(**shown, ms=_ms(counts["seconds"]))


def worker_share(usage: Usage) -> float | None:
    """Share of the accepted candidates that came from a worker; None where none was accepted."""
    accepted = sum(usage.accepted.values())
    if accepted:
        return round(usage.accepted.get("worker", 0) / accepted, 4)
    return None


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
