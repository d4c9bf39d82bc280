"""Attacks on everybody, over the HTTP API and TLS links with a real engine: they cost their sender at most."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from cloud_gateway.api import Api, Backend, ServedModel, make_app
from cloud_gateway.api.listener import listen
from cloud_gateway.auth import KeyRing
from cloud_gateway.engine.loop import Engine
from cloud_gateway.metrics import Metrics
from edgespec.core.protocol import messages as m
from edgespec.core.protocol.prefix import prefix_hash
from tests.support.echo import ByteText
from tests.support.engines import engine_settings
from tests.support.hostile import Paced, ToEngine, opened
from tests.support.links import GatewayUnderTest, client, serving
from tests.support.until import until
from tools.doubles.limits import TIMES, api_limits, request_limits
from tools.doubles.model import plain_greedy

MODEL = ServedModel("table", created=1_700_000_000, context=512, vocab_size=256, fingerprint="es_table")


@dataclass
class Served:
    """Gateway with links and API, and two keys."""

    gateway: GatewayUnderTest
    engine: Engine
    target: Paced
    url: str
    keys: dict[str, str]
    gone: list[bool]

    async def ask(self, key: str, prompt: list[int], count: int = 120, **more: Any) -> tuple[int, str]:
        """Status and text of a completion."""
        body = {"model": "table", "prompt": prompt, "max_tokens": count, "temperature": 0, **more}
        body["edgespec"] = {"ignore_eos": True, **more.get("edgespec", {})}
        headers = {"Authorization": f"Bearer {self.keys[key]}"}
        async with asyncio.timeout(20), aiohttp.ClientSession(headers=headers) as session:
            async with session.post(f"{self.url}/v1/completions", json=body) as response:
                found = await response.json()
                return response.status, found["choices"][0]["text"] if response.status == 200 else ""


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    seen, keys, gone = ToEngine(), KeyRing(tmp_path / "keys"), []
    _, alice = keys.create("alice", offload=True)
    _, bob = keys.create("bob", offload=False)
    async with serving(tmp_path, seen=seen) as gateway:
        target = Paced(seen)
        engine = seen.engine = Engine(target, None, engine_settings(), gateway.links)
        engine.on_failure = lambda: gone.append(True)
        engine.start()
        api = Api(request_limits(), Metrics())
        api.serve(Backend(engine, ByteText(), MODEL))
        listener = await listen(make_app(api, keys), "127.0.0.1", 0, "api", api_limits(), TIMES)
        yield Served(gateway, engine, target, listener.url, {"alice": alice, "bob": bob}, gone)
        await api.drain(0)
        await listener.close()
        engine.stop()


def twin(prompt: list[int], count: int = 120) -> str:
    return bytes(plain_greedy(prompt, count)).decode()


OFFLOADED, OTHER = [3, 1, 4, 1, 5], [2, 7, 1, 8]


def misleading(opening: m.Open) -> m.Tree:
    """The target's own path, so that some of it lies ahead of the target whenever it arrives, and beside each of its
    tokens a wrong one that looks likelier: what the calibrator learns from it makes the entropy's weight negative."""
    right = list(twin(OFFLOADED, 14).encode())
    tokens = [token for one in right for token in (one, (one + 1) % 31)]
    parents = [0, 0] + [2 * level + 1 for level in range(13) for _ in range(2)]
    costs, n = [5000, 10] * 14, 28
    digest = prefix_hash(OFFLOADED)
    return m.Tree(opening.request, opening.epoch, len(OFFLOADED), digest, 1, parents, tokens, costs, [2**31 - 1] * n)


@pytest.mark.claim("a-worker-that-names-an-endless-entropy-ends-no-answer")
async def test_a_worker_that_names_an_endless_entropy_ends_no_answer(served: Served) -> None:
    async with client(served.gateway) as hostile:
        offloaded = asyncio.ensure_future(served.ask("alice", OFFLOADED))
        other = asyncio.ensure_future(served.ask("bob", OTHER))
        opening = await opened(hostile)
        await hostile.send(misleading(opening))
        assert await hostile.closed() == 4400
        served.target.paced = False
        assert await offloaded == (200, twin(OFFLOADED))
        assert await other == (200, twin(OTHER))
    assert sum(served.gateway.links.rejected.values()) == 1
    assert await served.ask("bob", OTHER, 10) == (200, twin(OTHER, 10))


@pytest.mark.claim("requests-whose-sampler-fails-end-no-other-and-not-the-process")
async def test_requests_whose_sampler_fails_end_no_other_and_not_the_process(served: Served) -> None:
    for number in range(6):
        served.target.paced = True
        prompt = [9, number]
        other = asyncio.ensure_future(served.ask("bob", prompt, 40))
        await until(lambda: served.engine.active == 1)
        served.target.paced = False
        status, _ = await served.ask("alice", [1, 2], 8, repetition_penalty=1e-310)
        assert status in (200, 400, 500), "the request itself may be refused or fail"
        assert await other == (200, twin(prompt, 40))
    assert not served.gone
