"""The list of the gateway's parts. No other file of the product names one of them.

A part is removed by its line here, `git rm -r cloud_gateway/parts/NAME tests/parts/NAME`, and its page.
"""

from __future__ import annotations

from cloud_gateway.part import GatewayPart
from cloud_gateway.parts import (
    audit,
    baselines,
    campus_store,
    conduct,
    draft_heads,
    flood_guard,
    function_calling,
    healing,
    http_engine,
    known_answers,
    kv_preemption,
    live_picture,
    log_probabilities,
    mdns,
    model_files,
    opentelemetry,
    parallel_draft,
    predicted_outputs,
    prometheus,
    queued_answers,
    quotas,
    rejection,
    request_traces,
    responses_api,
    rotate_keys,
    self_draft,
    structured_output,
    system_service,
    text_translation,
    thread_choice,
    torch_engine,
)
from edgespec.shared.part import brought

PARTS: tuple[GatewayPart, ...] = (
    audit.PART,
    baselines.PART,
    campus_store.PART,
    conduct.PART,
    draft_heads.PART,
    flood_guard.PART,
    function_calling.PART,
    healing.PART,
    http_engine.PART,
    known_answers.PART,
    kv_preemption.PART,
    live_picture.PART,
    log_probabilities.PART,
    mdns.PART,
    model_files.PART,
    opentelemetry.PART,
    parallel_draft.PART,
    predicted_outputs.PART,
    prometheus.PART,
    queued_answers.PART,
    quotas.PART,
    rejection.PART,
    request_traces.PART,
    responses_api.PART,
    rotate_keys.PART,
    self_draft.PART,
    structured_output.PART,
    system_service.PART,
    text_translation.PART,
    thread_choice.PART,
    torch_engine.PART,
)


def all_parts() -> tuple[GatewayPart, ...]:
    """The list, and the parts that other distributions bring. Raises ConfigError."""
    return PARTS + brought("cloud_gateway.parts", GatewayPart)
