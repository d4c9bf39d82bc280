"""Requests that need more room in the KV cache than there is, for the engines of the core and of parts."""

from __future__ import annotations

import asyncio
from typing import Any

from cloud_gateway.core.requests.request import GenerationRequest
from cloud_gateway.engine.loop import Engine
from tests.support.engines import complete, started

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


def request(number: int, count: int = 20, **more: Any) -> GenerationRequest:
    return GenerationRequest([*PROMPT, number], count, ignore_eos=True, **more)


async def seven_requests_keep_within(engine: Engine) -> None:
    """Their texts are those of each alone. The second half continues beginnings of the first, whose slots must give way
    to others at the same time.

    With a rule that preempts, some requests read their tokens again.
    """
    with started(engine):
        asked = [request(n % 5, 90 + n, cache_scope=b"one" if n % 2 else b"two", key="ab"[n % 2]) for n in range(7)]
        together = await asyncio.gather(*(complete(engine, each) for each in asked))
        assert engine.stats.failed_passes == engine.stats.retries == 0
        assert [(await complete(engine, each))[0] for each in asked] == [tokens for tokens, _ in together]
        assert [len(tokens) for tokens, _ in together] == [90 + n for n in range(7)]
