"""Spans of OpenTelemetry, one for each completion: its times, counts and end, and never a text.

The library (extra `otel`) reads its usual variables: `OTEL_EXPORTER_OTLP_ENDPOINT`, without which there are no spans,
`OTEL_SERVICE_NAME`, `OTEL_TRACES_SAMPLER` and others. It sends in a thread of its own.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from cloud_gateway.api.errors import TRACE_PARENT
from cloud_gateway.core.requests import events
from cloud_gateway.core.requests.generation import Generation
from cloud_gateway.core.requests.request import Usage
from cloud_gateway.engine.exchange import PolicyStart

log = logging.getLogger("cloud_gateway.parts.opentelemetry.spans")
ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def provider() -> Any | None:
    """The library's provider of tracers; None if the environment names no collector."""
    if not any(map(os.environ.get, ENDPOINTS)):
        return None
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.exporter.otlp.proto.http") is None:
        log.warning("no spans are sent: %s is set, and `pip install edgespec[otel]` is missing", ENDPOINTS[0])
        return None

    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    os.environ.setdefault("OTEL_SERVICE_NAME", "cloud-gateway")
    made = TracerProvider()
    made.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return made


class Spans:
    """Listens to all requests (`engine.exchange.Recording`)."""

    def __init__(self, provider: Any, model: str) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._tracer = provider.get_tracer("edgespec")
        self._model = model
        self._context = TraceContextTextMapPropagator()

    def listener(self, generation: Generation, start: PolicyStart) -> SpanOf:
        """A request has just come; its span's parent is that of the client's header `traceparent`."""
        request = generation.request
        now = time.perf_counter()
        shown = {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": self._model,
            "gen_ai.request.max_tokens": request.max_tokens,
            "gen_ai.usage.input_tokens": len(request.tokens),
            "edgespec.request": request.id,
            "edgespec.key": request.key,
            "edgespec.policy": generation.policy.name,
        }
        epoch = time.time_ns() - round(now * 1e9)
        context = self._context.extract({"traceparent": TRACE_PARENT.get()})
        span = self._tracer.start_span(
            "completion", context, _server(), attributes=shown, start_time=epoch + round(now * 1e9)
        )
        return SpanOf(generation, span, epoch)


class SpanOf(events.Listener):
    """One request as a span, with an event for each round."""

    def __init__(self, generation: Generation, span: Any, epoch: int) -> None:
        """`epoch`: nanoseconds since 1970 at 0 of the engine's clock."""
        self._generation = generation
        self._span = span
        self._epoch = epoch

    def handled(self, event: events.Event, effects: Sequence[events.Effect], now: float) -> None:
        match event:
            case events.Admitted(reused):
                self._event("admitted", now, {"reused": reused})
            case events.Read(tokens, seconds):
                self._event("prefill", now, {"tokens": tokens, "seconds": seconds})
            case events.WorkerChanged(_, why, name):
                self._event("worker", now, {"what": why, "name": name})
            case events.Preempted():
                self._event("preempted", now, {})
            case events.Failed(scope):
                self._event("fault", now, {"of": scope})
        for effect in effects:
            if isinstance(event, events.Verified) and isinstance(effect, events.Chosen):
                self._event("round", now, {"candidates": len(event.tree.nodes), "tokens": len(effect.tokens)})
            elif isinstance(effect, events.Finished):
                self._end(effect, now)

    def _event(self, name: str, now: float, attributes: Mapping[str, Any]) -> None:
        self._span.add_event(name, attributes, self._epoch + round(now * 1e9))

    def _end(self, finished: events.Finished, now: float) -> None:
        from opentelemetry.trace import StatusCode

        self._span.set_attributes(figures(self._generation.usage, finished.finish))
        if finished.finish == "error":
            self._span.set_status(StatusCode.ERROR)
        self._span.end(self._epoch + round(now * 1e9))


def figures(usage: Usage, finish: str) -> dict[str, Any]:
    """Attributes of the span of a completion that is over."""
    return {
        "gen_ai.usage.output_tokens": usage.completion_tokens,
        "gen_ai.response.finish_reasons": [finish],
        "edgespec.rounds": usage.rounds,
        "edgespec.drafted": sum(usage.drafted.values()),
        "edgespec.accepted": sum(usage.accepted.values()),
        "edgespec.local_draft_passes": usage.local_draft_passes,
        "edgespec.workers": usage.workers,
        "edgespec.why_off": usage.why_off or "",
        "edgespec.queued_s": usage.times.queued_s,
        "edgespec.prefill_s": usage.times.prefill_s,
        "edgespec.decode_s": usage.times.decode_s,
    }


def _server() -> Any:
    from opentelemetry.trace import SpanKind

    return SpanKind.SERVER
