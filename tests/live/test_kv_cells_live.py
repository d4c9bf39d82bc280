"""The demo's model, a KV cache for one long request: what a key that holds most of it costs another key."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from cloud_gateway.core.requests.request import GenerationRequest, TokensEvent
from cloud_gateway.engine.loop import Engine
from cloud_gateway.process.config import GatewaySettings
from cloud_gateway.process.loading import engine_settings, load_models
from edgespec.shared import models
from edgespec.shared.settings import overridden
from tests.support.engines import started

pytestmark = pytest.mark.live
SET = {
    "policy.name": "plain",
    "local_draft.model": "",
    "target.engine": "llamacpp",
    "target.context": "1024",
    "target.slots": "4",
    "target.kv_tokens": "1100",
}
LARGE = [500 + i % 90 for i in range(800)]
"""Beside it and its completion there is no room for 32 tokens of a small request, which would need no preemption."""
SMALL = [100 + 7 * i % 900 for i in range(60)]
SAMPLES = 3


@contextmanager
def gateway() -> Iterator[Engine]:
    """An engine with the demo's model."""
    settings = overridden(GatewaySettings(), {"target.model": str(models.quantised())})
    for name, value in SET.items():
        settings = overridden(settings, {name: value})
    engine = Engine(load_models(settings).target, None, engine_settings(settings))
    with started(engine):
        yield engine


async def first_token_s(stream: Any) -> float:
    """Seconds until the next tokens."""
    began = time.perf_counter()
    async for event in stream:
        if isinstance(event, TokensEvent):
            return time.perf_counter() - began
    raise AssertionError("it ended before")


def request(key: str, prompt: list[int], count: int) -> GenerationRequest:
    return GenerationRequest(prompt, count, ignore_eos=True, key=key, max_running=3)


@pytest.mark.claim("no-key-keeps-the-kv-cache-from-another")
async def test_a_key_that_holds_the_cache_does_not_delay_anothers_first_token() -> None:
    """In turns with and without the attack, so that both see the same load of the machine."""
    alone: list[float] = []
    beside: list[float] = []
    with gateway() as engine:
        for _ in range(SAMPLES):
            for attacked, waits in ((False, alone), (True, beside)):
                streams = [engine.submit(request("attacker", LARGE, 200))] if attacked else []
                for stream in streams:
                    await first_token_s(stream)
                streams.append(engine.submit(request("victim", SMALL, 200)))
                waits.append(await first_token_s(streams[-1]))
                for stream in streams:
                    stream.cancel()
                    await stream.whole()
    assert engine.stats.preemptions == SAMPLES
    ratio = statistics.median(beside) / statistics.median(alone)
    print(f"time to the first token beside the attack / alone: {ratio:.2f}, alone {statistics.median(alone):.3f} s")
    assert ratio <= 1.25
