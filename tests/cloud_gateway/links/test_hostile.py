"""A worker that proves itself and then misbehaves ends its own link and leaves a count and a log line, no more; what
peers are sent that the link port refuses; and with an engine, the completion stays plain decoding's.

One case for each place that finds a fault: session, tree, library, wire, engine, operator. What each of them finds is
tested in tests/edgespec/core/protocol.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from websockets.exceptions import ConnectionClosed

from cloud_gateway.core.requests.request import DoneEvent, GenerationRequest
from cloud_gateway.engine.loop import Engine
from edgespec.core.errors import RemoteProtocolError
from edgespec.core.protocol import messages as m
from edgespec.core.protocol.digests import prefix_hash
from edgespec.core.protocol.handshake import Standing
from edgespec.core.protocol.names import key_id
from edgespec.core.protocol.session import WorkerSession
from edgespec.shared.tls import peer_spki_hash
from tests.support.engines import complete, engine_settings, started
from tests.support.hostile import HONEST, OTHER, Paced, ToEngine, opened, refused_once, serves_on
from tests.support.links import VOCAB, Client, GatewayUnderTest, client, raw, serving, some_tree, worker_identity
from tests.support.until import until
from tools.doubles.model import plain_greedy

pytestmark = pytest.mark.usefixtures("nothing_escapes")


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[GatewayUnderTest]:
    async with serving(tmp_path, paired=[HONEST, OTHER]) as serving_gateway:
        yield serving_gateway


async def ends(
    gateway: GatewayUnderTest,
    honest: Client,
    caplog: pytest.LogCaptureFixture,
    attack: Callable[[Client], Awaitable[Any]],
    reason: str,
    code: int = 4400,
) -> None:
    """Runs an attack on a link of its own and asserts all that must follow."""
    caplog.set_level(logging.INFO)
    async with client(gateway) as hostile:
        with contextlib.suppress(ConnectionClosed):  # the gateway may be quicker
            await attack(hostile)
        assert await hostile.closed() == code
    trees = [tree for worker, tree in gateway.seen.of("tree") if worker == key_id(hostile.me.key.public)]
    assert all(len(tree.tokens) <= m.MAX_NODES and max(tree.tokens) < VOCAB for tree in trees)
    await refused_once(gateway, caplog, reason, "lab-7")
    assert gateway.seen.of("down") == [(key_id(hostile.me.key.public), reason)]
    assert [worker.name for worker in gateway.links.workers()] == ["honest"]
    await serves_on(gateway, honest)


async def test_nothing_behind_a_bad_tree_in_a_frame_counts(
    gateway: GatewayUnderTest, honest: Client, caplog: pytest.LogCaptureFixture
) -> None:
    twice = some_tree(parents=[0, 0], tokens=[5, 5], costs=[1, 1], entropies=[1, 1])
    others = [msgspec.structs.replace(some_tree(), request=number) for number in (7, 8)]
    before, after = others

    async def attack(hostile: Client) -> None:
        await hostile.ws.send(hostile.session.send(before, twice, after))

    await ends(gateway, honest, caplog, attack, "shape-duplicate-sibling")
    assert before in [tree for _, tree in gateway.seen.of("tree")]
    assert after not in [tree for _, tree in gateway.seen.of("tree")]


@pytest.mark.claim("a-websocket-message-beyond-64-kib")
async def test_a_websocket_message_beyond_64_kib(
    gateway: GatewayUnderTest, honest: Client, caplog: pytest.LogCaptureFixture
) -> None:
    await ends(gateway, honest, caplog, lambda hostile: hostile.ws.send(bytes(70_000)), "oversize", 1009)


async def test_a_text_message(gateway: GatewayUnderTest, honest: Client, caplog: pytest.LogCaptureFixture) -> None:
    await ends(gateway, honest, caplog, lambda hostile: hostile.ws.send("hello"), "malformed")


@pytest.mark.claim("what-only-the-engine-can-see")
async def test_what_only_the_engine_can_see(
    gateway: GatewayUnderTest, honest: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """Depth and ids are checked by the merge; `punish` ends the link for them."""

    async def attack(hostile: Client) -> None:
        await hostile.send(some_tree())
        await until(lambda: gateway.seen.of("tree"))
        gateway.links.punish(key_id(hostile.me.key.public), RemoteProtocolError("shape-depth", "17 levels"), 1)

    await ends(gateway, honest, caplog, attack, "shape-depth")


@pytest.mark.claim("a-key-revoked-while-linked")
async def test_a_key_revoked_while_linked(
    gateway: GatewayUnderTest, honest: Client, caplog: pytest.LogCaptureFixture
) -> None:
    received = list[Any]()

    async def attack(hostile: Client) -> None:
        gateway.standing[hostile.me.key.public] = "revoked"
        gateway.links.revoke(hostile.me.key.public)
        gateway.links.revoke(b"nobody" + bytes(26))
        assert [worker.name for worker in gateway.links.workers()] == ["honest"]  # at once, before the socket closes
        await hostile.send(some_tree())
        while m.Bye("revoked") not in received:
            received.extend(await hostile.receive())

    await ends(gateway, honest, caplog, attack, "revoked", 4403)
    assert m.Bye("revoked") in received
    assert gateway.seen.of("tree") == [(key_id(HONEST.key.public), some_tree(request=77))]


@pytest.mark.claim("each-kind-has-one-line-a-minute-and-the-rest-is-counted")
async def test_a_stale_frame_is_counted_and_the_link_stays(
    gateway: GatewayUnderTest, honest: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """A wrong prefix hash is normal after a misprediction: the merge drops the nodes, the link lives on."""
    for _ in range(3):
        gateway.links.note(key_id(HONEST.key.public), "stale", "a frame for another prefix")
    assert gateway.links.rejected["stale"] == 3
    assert [record.getMessage().count("worker honest") for record in caplog.records] == [1]  # rate-limited
    await serves_on(gateway, honest)


async def stays_out(
    gateway: GatewayUnderTest,
    honest: Client,
    caplog: pytest.LogCaptureFixture,
    first: bytes,
    reason: str,
    code: int,
) -> None:
    async with raw(gateway) as ws:
        await ws.send(first)
        refuse = m.decode_handshake(await ws.recv())
        assert isinstance(refuse, m.Refuse) and refuse.reason == reason
        with pytest.raises(ConnectionClosed) as caught:
            async with asyncio.timeout(20):
                await ws.recv()
        assert caught.value.rcvd is not None and caught.value.rcvd.code == code
    await refused_once(gateway, caplog, reason, "peer 127.0.0.1")
    assert gateway.seen.of("down") == []
    await serves_on(gateway, honest)


def hello(tokenizer: bytes = b"t" * 32, protocol: str = m.PROTOCOL) -> bytes:
    key = worker_identity().key.public
    return m.encode(m.Hello(protocol, key, b"n" * 32, tokenizer, b"m" * 32, VOCAB, 4, "lab-7"))


@pytest.mark.claim("a-wrong-vocabulary")
async def test_a_wrong_vocabulary(gateway: GatewayUnderTest, honest: Client, caplog: pytest.LogCaptureFixture) -> None:
    await stays_out(gateway, honest, caplog, hello(tokenizer=b"\xab" * 32), "tokenizer", 4415)
    assert "ab" * 8 in caplog.text and (b"t" * 8).hex() in caplog.text


@pytest.mark.claim("an-unpaired-key")
@pytest.mark.parametrize(("standing", "code"), [("unpaired", 4401), ("revoked", 4403)])
async def test_an_unpaired_key(
    gateway: GatewayUnderTest, honest: Client, caplog: pytest.LogCaptureFixture, standing: Standing, code: int
) -> None:
    """Only a worker that has proven its key gets, signed, the pairing status of that key."""
    gateway.standing[OTHER.key.public] = standing
    async with raw(gateway) as ws:
        seen_spki = peer_spki_hash(ws.transport.get_extra_info("ssl_object"))
        stranger = Client(ws, WorkerSession(OTHER, gateway.pin, seen_spki, bytes(32), 0.0), OTHER)
        await stranger.flush()
        assert await stranger.receive() == []  # the challenge
        assert await stranger.receive() == [m.Bye(standing)]
        assert await stranger.closed() == code
    await refused_once(gateway, caplog, standing, "peer 127.0.0.1")
    assert key_id(OTHER.key.public) in caplog.text
    await serves_on(gateway, honest)


@pytest.mark.claim("an-unpaired-key")
async def test_another_version(gateway: GatewayUnderTest, honest: Client, caplog: pytest.LogCaptureFixture) -> None:
    await stays_out(gateway, honest, caplog, hello(protocol="edgespec/1"), "version", 4426)


async def test_junk_instead_of_tls(gateway: GatewayUnderTest, honest: Client, caplog: pytest.LogCaptureFixture) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(b"GET / HTTP/1.1\r\n\r\n")
    async with asyncio.timeout(20):
        await reader.read()
    writer.close()
    assert caplog.text == ""
    await serves_on(gateway, honest)


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
    known = len(PROMPT)
    right = expected()
    first = 1
    while known < len(PROMPT) + COUNT - 8:
        ahead = right[known - len(PROMPT) :][:8]
        nodes = [token for good in ahead for token in (good, good % 31 + 1)]
        parents = [first + i - i % 2 - 2 if i > 1 else 0 for i in range(len(nodes))]
        prefix = [*PROMPT, *right[: known - len(PROMPT)]]
        n = len(nodes)
        numbers = [cost] * n, [entropy] * n
        digest = prefix_hash(prefix)
        await hostile.send(m.Tree(opening.request, opening.epoch, known, digest, first, parents, nodes, *numbers))
        first = first + n
        before = known
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
