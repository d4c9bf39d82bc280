"""The metrics: what requests leave in them, and that nothing a client or worker sends becomes a label."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from cloud_gateway.api.listener import listen
from cloud_gateway.core.requests.accounting import Stats
from cloud_gateway.core.requests.request import Times, Usage
from cloud_gateway.part import Figure, Operating
from cloud_gateway.parts.prometheus.figures import BOUNDS, MAX_REASONS, Metrics, Totals, metrics_app
from edgespec.core.errors import AddressError
from tests.support.echo import echo_gateway
from tools.doubles.limits import TIMES

CHAT = {"model": "echo", "messages": [{"role": "user", "content": "tell nobody"}]}


def sample(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"edgespec_{name}", labels)


async def test_requests_are_counted_by_endpoint_and_status_without_their_content(tmp_path: Path) -> None:
    metrics = Metrics()
    async with echo_gateway(tmp_path, observers=[metrics]) as echo:
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {echo.key}"}) as session:
            for body in (CHAT, {**CHAT, "stream": True}, {**CHAT, "n": 0}):
                async with session.post(f"{echo.base_url}/chat/completions", json=body) as response:
                    await response.read()
            await session.get(f"{echo.base_url}/models/my-secret-model")
            await session.get(f"{echo.listener.url}/wp-login.php")
        chat = "/v1/chat/completions"
        assert sample(metrics, "requests_total", endpoint=chat, status="200") == 2
        assert sample(metrics, "requests_total", endpoint=chat, status="400") == 1
        assert sample(metrics, "requests_total", endpoint="/v1/models/{model:.+}", status="404") == 1
        assert sample(metrics, "requests_total", endpoint="other", status="404") == 1
        assert sample(metrics, "answers_total", finish="stop") == 2
        assert sample(metrics, "prompt_tokens_total") == 2 * len("user: tell nobody")
        assert sample(metrics, "ttft_seconds_count") == 2
        text = metrics.exposition().decode()
        for private in ("nobody", "my-secret-model", "wp-login", "echo", echo.key.split("-")[1]):
            assert private not in text


@dataclass
class FakeEngine:
    stats: Stats = field(default_factory=Stats)
    queued: int = 4
    active: int = 2


@dataclass(frozen=True)
class FakeWorker:
    rtt_s: float
    paused: bool


def test_the_engines_totals_and_the_workers_are_read_at_each_scrape() -> None:
    metrics = Metrics()
    engine = FakeEngine()
    workers: list[Any] = [FakeWorker(0.02, False), FakeWorker(0.08, True)]

    traffic = {"sent": 512, "received": 1024}
    metrics.registry.register(Totals(Operating(engine, lambda: workers, lambda: 5, traffic, list)))
    engine.stats.add(Usage(by_worker={"a": {"frames": 2, "evaluated": 9, "accepted": 3}, "b": {"evaluated": 1}}))
    engine.stats.rounds = 10
    engine.stats.ended.accepted["worker"] = 7
    engine.stats.frames.count("stale")
    engine.stats.ended.guard["local"] = {"slower": 3}
    engine.stats.ended.sources["lookup"] = {"proposed": 4, "verified": 3, "accepted": 2, "seconds": 0.5, "why": None}
    assert sample(metrics, "rounds_total") == 10
    engine.stats.rounds = 11
    assert sample(metrics, "rounds_total") == 11
    assert sample(metrics, "accepted_tokens_total", source="worker") == 7
    assert sample(metrics, "frames_total", outcome="stale") == 1
    assert sample(metrics, "worker_tokens_total", what="evaluated") == 10
    assert sample(metrics, "worker_tokens_total", what="frames") is None
    traffic["sent"] += 1
    assert (sample(metrics, "link_bytes_total", way="sent"), traffic["received"]) == (513, 1024)
    assert metrics.registry.get_sample_value("process_cpu_seconds_total")
    assert sample(metrics, "source_seconds_total", source="lookup") == 0.5
    assert sample(metrics, "source_tokens_total", source="lookup", what="verified") == 3
    assert sample(metrics, "guard_changes_total", mode="local", reason="slower") == 3
    assert (sample(metrics, "queued_requests"), sample(metrics, "active_requests")) == (4, 2)
    assert (sample(metrics, "workers", state="ready"), sample(metrics, "workers", state="paused")) == (1, 1)
    assert sample(metrics, "workers", state="quarantined") == 5
    assert sample(metrics, "worker_rtt_seconds", stat="median") == pytest.approx(0.05)
    workers.clear()
    assert sample(metrics, "worker_rtt_seconds", stat="median") is None
    assert metrics.exposition()


def test_figures_of_other_parts_are_read_at_each_scrape() -> None:
    figures = [Figure("visits", "Visits.", "counter", 3), Figure("fill", "Fill.", "gauge", 0.5)]
    metrics = Metrics()
    metrics.registry.register(Totals(Operating(FakeEngine(), list, lambda: 0, {}, lambda: figures)))
    assert (sample(metrics, "visits_total"), sample(metrics, "fill")) == (3, 0.5)
    figures[1] = Figure("fill", "Fill.", "gauge", 0.25)
    assert sample(metrics, "fill") == 0.25
    assert "# TYPE edgespec_visits_total counter" in metrics.exposition().decode()


def test_an_answers_mean_round_and_host_time_are_observed() -> None:
    metrics = Metrics()
    metrics.completed("stop", Usage(rounds=5, prompt_tokens=3, times=Times(decode_s=0.4, host_s=0.001)), 0.2)
    assert sample(metrics, "round_seconds_sum") == pytest.approx(0.08)
    assert sample(metrics, "host_seconds_sum") == pytest.approx(0.0002)
    metrics.completed("cancelled", None, None)
    assert sample(metrics, "answers_total", finish="cancelled") == 1
    assert sample(metrics, "round_seconds_count") == 1


def test_a_hostile_worker_cannot_grow_the_metrics_without_bound() -> None:
    metrics = Metrics()
    for number in range(1000):
        metrics.rejected(f"reason-{number}")
    assert sample(metrics, "rejected_frames_total", reason="reason-3") == 1
    assert sample(metrics, "rejected_frames_total", reason="other") == 1000 - MAX_REASONS
    assert metrics.exposition().decode().count("edgespec_rejected_frames_total{") == MAX_REASONS + 1


async def test_the_listener_serves_metrics_and_nothing_else() -> None:
    metrics = Metrics()
    metrics.rejected("sequence")
    listener = await listen(metrics_app(metrics), "127.0.0.1", 0, "metrics", BOUNDS, TIMES)
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{listener.url}/metrics") as response:
            assert response.status == 200
            assert response.headers["Content-Type"].startswith("text/plain")
            assert 'edgespec_rejected_frames_total{reason="sequence"} 1.0' in await response.text()
        async with session.get(listener.url) as response:
            assert response.url.path == "/metrics" and response.status == 200, "the port alone leads there"
        async with session.get(f"{listener.url}/v1/models") as response:
            assert response.status == 404
        async with session.post(f"{listener.url}/metrics") as response:
            assert response.status == 405
    with pytest.raises(AddressError, match=rf"127.0.0.1 port {listener.port} .*in use.*`metrics.port`"):
        await listen(metrics_app(metrics), "127.0.0.1", listener.port, "metrics", BOUNDS, TIMES)
    await listener.close()
    await asyncio.sleep(0)
    again = await listen(metrics_app(metrics), "127.0.0.1", listener.port, "metrics", BOUNDS, TIMES)
    await again.close()


@pytest.mark.claim("a-name-that-a-web-page-chose-is-refused")
@pytest.mark.parametrize(
    ("host", "status"),
    [("127.0.0.1", 200), ("localhost:9464", 200), ("[::1]:9464", 200), ("LOCALHOST", 200), ("prometheus.lan", 403),
     ("evil.example", 403), ("127.0.0.1.evil.example:9464", 403), ("localhost@evil.example", 403), ("", 403)],
)  # fmt: skip
async def test_a_name_that_a_web_page_chose_is_refused(host: str, status: int) -> None:
    listener = await listen(metrics_app(Metrics()), "127.0.0.1", 0, "metrics", BOUNDS, TIMES)
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{listener.url}/metrics", headers={"Host": host}) as response:
            assert response.status == status
            assert ("edgespec_" in await response.text()) == (status == 200)
    await listener.close()
