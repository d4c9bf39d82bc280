"""Hostile trees that only the engine can tell, over real TLS WebSockets: the answer stays plain decoding's."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from cloud_gateway.core.requests.request import DoneEvent, GenerationRequest, Speculation
from cloud_gateway.core.sources.settings import SourceSettings
from cloud_gateway.engine.loop import Engine
from cloud_gateway.engine.queued.workers import FIRST_NUMBER
from edgespec.core.protocol import messages as m
from edgespec.core.protocol.prefix import prefix_hash
from edgespec.shared.address import ANSWERS, FEATURES, SHARE
from tests.support.engines import complete, engine_settings, started
from tests.support.hostile import Paced, ToEngine, opened
from tests.support.links import VOCAB, Client, GatewayUnderTest, client, serving, worker_identity
from tests.support.until import until
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


def tree(
    opening: m.Open, parents: list[int], prefix: list[int], first: int = 1, tokens: list[int] | None = None
) -> m.Tree:
    n = len(parents)
    tokens = tokens or [7 + i % 20 for i in range(n)]
    digest = prefix_hash(prefix)
    return m.Tree(opening.request, opening.epoch, len(prefix), digest, first, parents, tokens, [1] * n, [1] * n)


async def test_a_chain_deeper_than_allowed_ends_the_link_and_changes_nothing(
    whole: Whole, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with client(whole.gateway) as hostile:
        running = asyncio.ensure_future(answer(whole.engine))
        opening = await opened(hostile)
        right, most = expected(), m.MAX_DEPTH
        await hostile.send(tree(opening, list(range(most)), PROMPT, tokens=right[:most]))
        await hostile.send(tree(opening, [most], PROMPT, most + 1, right[most : most + 1]))
        assert await hostile.closed() == 4400
        whole.target.paced = False
        tokens, done = await running
    assert tokens == expected()
    assert done.usage.frames["rejected"] == 1 and whole.engine.stats.frames.counts["rejected"] == 1
    assert dict(whole.gateway.links.rejected) == {"shape-depth": 1}
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(lines) == 1 and "shape-depth" in lines[0] and "lab-7" in lines[0]


async def test_a_prefix_that_never_was_is_counted_and_logged_and_the_link_stays(
    whole: Whole, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with client(whole.gateway) as hostile:
        running = asyncio.ensure_future(answer(whole.engine))
        opening = await opened(hostile)
        await hostile.send(tree(opening, [0, 1], [9, 9, 9, 9, 9]))
        await until(lambda: whole.gateway.seen.of("tree"))
        whole.target.paced = False
        tokens, done = await running
        assert len(whole.gateway.links.workers()) == 1, "an honest mistake is possible here"
    assert tokens == expected() and done.usage.frames["stale"] >= 1
    assert whole.gateway.links.rejected["prefix"] == 1
    assert any("prefix" in record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING)


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


async def test_of_two_that_share_a_request_the_honest_one_takes_all(tmp_path: Path) -> None:
    seen, takes = ToEngine(), {FEATURES: SHARE}
    async with serving(tmp_path, seen=seen) as gateway:
        target = Paced(seen)
        engine = Engine(target, None, engine_settings(k=2, workers_per_request=2), gateway.links)
        seen.engine = engine
        engine.start()
        honest_key = worker_identity(b"h" * 32, "lab-8")
        gateway.standing[honest_key.key.public] = "paired"
        async with (
            client(gateway, additional_headers=takes) as hostile,
            client(gateway, honest_key, additional_headers=takes) as honest,
        ):
            await until(lambda: len(gateway.links.workers()) == 2)
            running = asyncio.ensure_future(answer(engine))
            theirs, given = await opened(hostile), list[Any]()
            while not any(isinstance(body, m.Open) for body in given):
                given += await honest.receive()  # what belongs to the same request comes in the same frame
            mine = next(body for body in given if isinstance(body, m.Open))
            await honest.send(tree(mine, [0, 1], PROMPT, tokens=expected()[:2]))
            await hostile.send(tree(theirs, [0, 1], PROMPT, tokens=[7, 8]))
            await hostile.send(tree(theirs, [0], PROMPT, first=9))
            assert await hostile.closed() == 4400
            shares = [body for body in given if isinstance(body, m.Share)]
            async with asyncio.timeout(10):
                while not shares or shares[-1].count == 2:
                    shares += [body for body in await honest.receive() if isinstance(body, m.Share)]
            target.paced = False
            tokens, _ = await running
        engine.stop()
    assert tokens == expected()
    assert {share.count for share in shares} == {1, 2} and shares[-1] == m.Share(mine.request, mine.epoch, 0, 1)
    assert gateway.links.rejected["shape-ids"] == 1


@pytest.mark.claim("a-workers-answer-saves-passes-and-changes-no-token")
async def test_foreign_tokens_in_an_answer_for_the_queue_end_the_link(tmp_path: Path) -> None:
    seen, settings = ToEngine(), engine_settings(sources=SourceSettings(queued_answers=1))
    plain, answers = Speculation(policy="plain"), Speculation(policy="adaptive", sources=("answers",))
    async with serving(tmp_path, seen=seen) as gateway:
        target = Paced(seen, slots=1)
        engine = seen.engine = Engine(target, None, settings, gateway.links)
        engine.start()
        async with client(gateway, additional_headers={FEATURES: ANSWERS}) as hostile:
            await until(gateway.links.workers)
            requests = [GenerationRequest(PROMPT, COUNT, ignore_eos=True, speculation=one) for one in (plain, answers)]
            running = [asyncio.ensure_future(complete(engine, request)) for request in requests]
            opening = await opened(hostile)
            assert opening.request >= FIRST_NUMBER and opening.tokens == PROMPT
            await hostile.send(tree(opening, [0], PROMPT, tokens=[VOCAB]))
            assert await hostile.closed() == 4400
            target.paced = False
            ended = [await one for one in running]
        engine.stop()
    assert [tokens for tokens, _ in ended] == [expected()] * 2
    assert dict(gateway.links.rejected) == {"shape-vocabulary": 1}
