"""Spans of OpenTelemetry: they say what the usage says, with an event for each round, and no text."""

from __future__ import annotations

import gzip
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from cloud_gateway.api.errors import TRACE_PARENT
from cloud_gateway.core.requests.request import GenerationRequest, Speculation
from cloud_gateway.parts.opentelemetry import spans
from tests.support.engines import complete, engines
from tests.support.past import SHIPPED, past, usage_of
from tools.doubles.engines import TableDraft
from tools.doubles.workers import LoopWorker

otel = pytest.importorskip("opentelemetry.sdk.trace", reason="`make setup` installs the library")
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@contextmanager
def collected() -> Iterator[tuple[Any, list[Any]]]:
    """A provider, and the spans that it sends."""
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = otel.TracerProvider()
    found = list[Any]()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield provider, found
    found += exporter.get_finished_spans()


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_span_has_the_figures_of_the_usage_and_an_event_a_round(path: Path) -> None:
    with collected() as (provider, found):
        span = provider.get_tracer("test").start_span("completion")
        request = past(path)
        request.play(lambda generation: spans.SpanOf(generation, span, 0))
    usage = usage_of(request)
    (one,) = found
    rounds = [event.attributes for event in one.events if event.name == "round"]
    most = len(one.events) == provider._span_limits.max_events  # the library keeps the latest
    assert most or len(rounds) == usage.rounds == one.attributes["edgespec.rounds"]
    assert most or sum(each["tokens"] for each in rounds) == usage.completion_tokens
    assert most or sum(each["candidates"] for each in rounds) == one.attributes["edgespec.drafted"]
    assert one.attributes["gen_ai.usage.output_tokens"] == usage.completion_tokens
    assert one.attributes["edgespec.accepted"] == sum(usage.accepted.values())


async def test_a_request_of_the_engine_is_one_span_below_the_clients() -> None:
    before = time.time_ns()
    with collected() as (provider, found):
        with engines(recorders=[spans.Spans(provider, "tiny")]) as make:
            engine = make(LoopWorker(0.002, 0.8), TableDraft(0.7))
            TRACE_PARENT.set(PARENT)
            asked = GenerationRequest(
                [3, 1, 4], 30, id="req_1", key="k1", speculation=Speculation(policy="wanspec", k=2)
            )
            tokens, done = await complete(engine, asked)
    (one,) = found
    assert f"{one.context.trace_id:032x}" in PARENT and f"{one.parent.span_id:016x}" in PARENT
    assert one.attributes["gen_ai.request.model"] == "tiny" and one.attributes["edgespec.key"] == "k1"
    assert one.attributes["gen_ai.usage.output_tokens"] == len(tokens) == 30
    assert list(one.attributes["gen_ai.response.finish_reasons"]) == [done.finish]
    names = [event.name for event in one.events]
    assert {"admitted", "prefill", "worker", "round"} <= {*names} and names.count("round") == done.usage.rounds
    assert before <= one.start_time <= one.events[0].timestamp <= one.end_time <= time.time_ns()


async def test_a_collector_is_sent_the_span_and_no_token_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    bodies: list[bytes] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            body = self.rfile.read(int(self.headers["Content-Length"]))
            bodies.append(gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        monkeypatch.setenv(spans.ENDPOINTS[0], f"http://127.0.0.1:{server.server_port}")
        provider = spans.provider()
        assert provider is not None
        with engines(recorders=[spans.Spans(provider, "tiny")]) as make:
            await complete(make(), GenerationRequest([271828, 314159], 9, speculation=Speculation(policy="plain")))
        provider.shutdown()
        server.shutdown()
        thread.join()
    (sent,) = map(ExportTraceServiceRequest.FromString, bodies)
    assert [one.name for one in sent.resource_spans[0].scope_spans[0].spans] == ["completion"]
    assert "cloud-gateway" in str(sent.resource_spans[0].resource)
    assert "271828" not in str(sent) and "314159" not in str(sent)


def test_without_an_endpoint_or_the_library_there_are_no_spans(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in spans.ENDPOINTS:
        monkeypatch.delenv(name, raising=False)
    assert spans.provider() is None and not caplog.records
    monkeypatch.setenv(spans.ENDPOINTS[0], "http://127.0.0.1:9")
    monkeypatch.setattr(spans, "find_spec", lambda name: None)
    assert spans.provider() is None and re.search(r"pip install edgespec\[otel\]", caplog.text)
