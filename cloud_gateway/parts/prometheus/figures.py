"""The figures, in Prometheus' text format, and the app that serves them on a listener bound to loopback.

No label comes from a client or a worker: metrics contain no prompt, key, model or worker name.
"""

from __future__ import annotations

import statistics
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from aiohttp import web
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from cloud_gateway.api.listener import is_local
from cloud_gateway.api.observer import Observer
from cloud_gateway.core.requests.request import Usage, added
from edgespec.shared.guards import PortBounds

if TYPE_CHECKING:
    from cloud_gateway.part import Operating

OUTCOMES = ("proposed", "verified", "accepted")
"""Counts of the candidates of a source without a draft model."""
MAX_REASONS = 32
"""Reasons of refused frames that get their own label; the protocol has fewer."""
TTFT_S = (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
ROUND_S = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1)
KINDS = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}
"""The classes of the figures that parts bring."""
Scrape = Callable[[web.Request], Awaitable[web.StreamResponse]]
HOST_S = (0.00005, 0.0001, 0.0002, 0.0003, 0.0005, 0.001, 0.002, 0.005, 0.02)
BOUNDS = PortBounds(total=64, unproven=32)
"""The port has no keys, and one Prometheus needs one connection."""


disable_created_metrics()  # they would add a second series to each counter, which nothing reads


class Metrics(Observer):
    """The gateway's metrics, in their own registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)  # process_cpu_seconds_total and memory, of this process
        self._requests = self._counter("requests", "API requests by endpoint and status.", "endpoint", "status")
        self._answers = self._counter("answers", "Answers by how they ended.", "finish")
        self._prompt_tokens = self._counter("prompt_tokens", "Tokens of the prompts of ended answers.")
        self._rejected = self._counter("rejected_frames", "Frames of workers refused, by reason.", "reason")
        self._ttft = self._histogram("ttft", "From request to first token.", TTFT_S)
        self._round = self._histogram("round", "Mean time of an answer's rounds.", ROUND_S)
        self._host = self._histogram("host", "Mean time of an answer's rounds outside the models.", HOST_S)
        self._reasons: set[str] = set()

    def responded(self, endpoint: str, status: int) -> None:
        self._requests.labels(endpoint, str(status)).inc()

    def completed(self, finish: str, usage: Usage | None, first_token_s: float | None) -> None:
        self._answers.labels(finish).inc()
        if first_token_s is not None:
            self._ttft.observe(first_token_s)
        if usage is None:
            return

        self._prompt_tokens.inc(usage.prompt_tokens)
        if usage.rounds:
            self._round.observe(usage.times.decode_s / usage.rounds)
        if usage.rounds and usage.times.host_s:
            self._host.observe(usage.times.host_s / usage.rounds)

    def rejected(self, reason: str) -> None:
        """A worker's frame was refused; `reason` is RemoteProtocolError's."""
        if reason not in self._reasons and len(self._reasons) >= MAX_REASONS:
            reason = "other"
        self._reasons.add(reason)
        self._rejected.labels(reason).inc()

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"edgespec_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(f"edgespec_{name}_seconds", text, buckets=buckets, registry=self.registry)

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)


@dataclass(eq=False)
class Totals(Collector):
    """Reads the gateway's totals at each scrape from its registration."""

    _gateway: Operating

    def describe(self) -> Iterable[Metric]:
        return ()  # without it, registering calls `collect`, and the engine may not run yet

    def collect(self) -> Iterator[Metric]:
        engine = self._gateway.engine
        stats = engine.stats
        ended = stats.ended
        yield _total("rounds", "Verify passes of the target.", stats.rounds)
        yield _total("tokens", "Tokens emitted by the target.", stats.tokens)
        yield _total("target_seconds", "Time in the target model.", stats.target_s)
        yield _total("draft_seconds", "Time in the gateway's own draft model.", stats.draft_s)
        yield _total("host_busy_seconds", "Time of busy engine turns outside the models.", stats.host_s)
        yield _total("local_draft_passes", "Draft passes at the gateway.", stats.local_passes)
        yield _total("fallbacks", "Times that the gateway drafted though a worker was there.", ended.fallbacks)
        yield _totals("drafted_tokens", "Candidate tokens verified, by source.", "source", ended.drafted)
        yield _totals("accepted_tokens", "Candidate tokens accepted, by source.", "source", ended.accepted)
        counted = {name: {what: one[what] for what in OUTCOMES} for name, one in ended.sources.items()}
        sources = "Candidates of sources without a draft model: proposed, verified, accepted."
        yield _pairs("source_tokens", sources, ("source", "what"), counted)
        asking = "Time of asking sources without a draft model."
        yield _totals("source_seconds", asking, "source", {name: one["seconds"] for name, one in ended.sources.items()})
        yield _pairs("guard_changes", "Changes of the guard's mode, by reason.", ("mode", "reason"), ended.guard)
        yield _totals("frames", "Frames of workers by outcome.", "outcome", stats.frames.counts)
        workers: dict[str, int] = reduce(added, ended.by_worker.values(), {})
        tokens = {what: count for what, count in workers.items() if what != "frames"}
        yield _totals("worker_tokens", "Draft tokens of workers, by what became of them.", "what", tokens)
        yield _totals("link_bytes", "Bytes of messages on the links with workers.", "way", self._gateway.traffic)
        yield GaugeMetricFamily("edgespec_queued_requests", "Requests that wait for a slot.", engine.queued)
        yield GaugeMetricFamily("edgespec_active_requests", "Requests in slots.", engine.active)
        yield from self._of_workers()
        for figure in self._gateway.figures():
            yield KINDS[figure.kind](f"edgespec_{figure.name}", figure.help, figure.value)

    def _of_workers(self) -> Iterator[Metric]:
        linked = list(self._gateway.workers())
        count = GaugeMetricFamily("edgespec_workers", "Linked and quarantined workers by state.", labels=["state"])
        paused = sum(worker.paused for worker in linked)
        count.add_metric(["ready"], len(linked) - paused)
        count.add_metric(["paused"], paused)
        count.add_metric(["quarantined"], self._gateway.quarantined())
        yield count
        rtt = GaugeMetricFamily("edgespec_worker_rtt_seconds", "Round trips to the linked workers.", labels=["stat"])
        times = [worker.rtt_s for worker in linked]
        if times:
            rtt.add_metric(["min"], min(times))
            rtt.add_metric(["median"], statistics.median(times))
            rtt.add_metric(["max"], max(times))
        yield rtt


def _total(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"edgespec_{name}", text, value)


def _totals(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = CounterMetricFamily(f"edgespec_{name}", text, labels=[label])
    for key, value in list(values.items()):  # the engine's thread may add a key meanwhile
        family.add_metric([key], value)
    return family


def _pairs(name: str, text: str, labels: Sequence[str], values: Mapping[str, Mapping[str, int]]) -> Metric:
    family = CounterMetricFamily(f"edgespec_{name}", text, labels=labels)
    for outer, counts in values.items():
        for inner, value in counts.items():
            family.add_metric([outer, inner], value)
    return family


def metrics_app(metrics: Metrics) -> web.Application:
    """The app of the loopback listener: `GET /metrics`, to which `/` leads, without a key.

    Answers under loopback's own names only: a page in a browser on this machine can point a name of its own
    at 127.0.0.1 (DNS rebinding), but the browser then sends that name as `Host`.
    """

    @web.middleware
    async def guarded(request: web.Request, handler: Scrape) -> web.StreamResponse:
        if not is_local(request.headers.get("Host", "")):
            raise web.HTTPForbidden(text="Use a name of this machine; a proxy before it sets `Host` to 127.0.0.1.")
        return await handler(request)

    async def scrape(request: web.Request) -> web.StreamResponse:
        return web.Response(body=metrics.exposition(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def lead(request: web.Request) -> web.StreamResponse:
        raise web.HTTPFound("/metrics")

    app = web.Application(middlewares=[guarded])
    app.router.add_route("GET", "/metrics", scrape)
    app.router.add_route("GET", "/", lead)
    return app
