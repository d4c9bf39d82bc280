"""Hostile trees that only the engine can tell, over real TLS WebSockets: the answer stays plain decoding's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed

from cloud_gateway.core.requests.request import DoneEvent, GenerationRequest
from cloud_gateway.engine.loop import Engine
from edgespec.core.protocol import messages as m
from edgespec.core.protocol.digests import prefix_hash
from tests.support.engines import complete, engine_settings, started
from tests.support.hostile import Paced, ToEngine, opened
from tests.support.links import VOCAB, Client, GatewayUnderTest, client, serving
from tools.doubles.model import plain_greedy

PROMPT = [3, 1, 4, 1, 5]
COUNT = 120


@dataclass
class Whole:
    """Links and engine together."""

    gateway: GatewayUnderTest
    engine: Engine
    target: Paced


@pytest.fixture
async def whole(tmp_path: Path) -> AsyncIterator[Whole]:
    seen = ToEngine()
    async with serving(tmp_path, seen=seen) as gateway:
        target = Paced(seen)
        engine = seen.engine = Engine(target, None, engine_settings(k=2), gateway.links)
        with started(engine):
            yield Whole(gateway, engine, target)


def expected() -> list[int]:
    return plain_greedy(PROMPT, COUNT)


async def answer(engine: Engine) -> tuple[list[int], DoneEvent]:
    return await complete(engine, GenerationRequest(PROMPT, COUNT, ignore_eos=True))


async def follow(hostile: Client, opening: m.Open, cost: int, entropy: int) -> None:
    """Sends the right candidates and a wrong one beside each, with these numbers, until the request or link ends."""
    known, right, first = len(PROMPT), expected(), 1
    while known < len(PROMPT) + COUNT - 8:
        ahead = right[known - len(PROMPT) :][:8]
        nodes = [token for good in ahead for token in (good, good % 31 + 1)]
        parents = [first + i - i % 2 - 2 if i > 1 else 0 for i in range(len(nodes))]
        prefix, n = [*PROMPT, *right[: known - len(PROMPT)]], len(nodes)
        numbers = [cost] * n, [entropy] * n
        digest = prefix_hash(prefix)
        await hostile.send(m.Tree(opening.request, opening.epoch, known, digest, first, parents, nodes, *numbers))
        first, before = first + n, known
        while known == before:
            for message in await hostile.receive():
                if isinstance(message, m.Commit) and message.request == opening.request:
                    known += len(message.tokens)


@pytest.mark.claim("impossible-numbers-end-the-link-and-no-answer")
@pytest.mark.parametrize(("cost", "entropy", "reason"), [(1, 2**31 - 1, "shape-entropy"), (2**31 - 1, 1, "shape-cost")])
async def test_impossible_numbers_end_the_link_and_no_answer(
    whole: Whole, cost: int, entropy: int, reason: str
) -> None:
    async with client(whole.gateway) as hostile:
        answers = [asyncio.ensure_future(answer(whole.engine)) for _ in range(2)]
        opening = await opened(hostile)
        with suppress(ConnectionClosed):
            await follow(hostile, opening, cost, entropy)
        whole.target.paced = False
        done = [await one for one in answers]
    assert [tokens for tokens, _ in done] == [expected()] * 2
    assert [end.finish for _, end in done] == ["length"] * 2
    assert dict(whole.gateway.links.rejected) == {reason: 1}


@pytest.mark.claim("numbers-at-their-bounds-change-nothing")
async def test_numbers_at_their_bounds_change_nothing(whole: Whole) -> None:
    async with client(whole.gateway) as hostile:
        running = asyncio.ensure_future(answer(whole.engine))
        opening = await opened(hostile)
        await follow(hostile, opening, m.MAX_COST, m.max_entropy(VOCAB))
        whole.target.paced = False
        tokens, done = await running
    assert (tokens, done.finish) == (expected(), "length")
    assert done.usage.frames["used"] > 10 and not whole.gateway.links.rejected
