"""Floods by a paired worker, which proves itself like any other and then misbehaves."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import WebSocketException

from edgespec.core.errors import EdgespecError
from edgespec.core.protocol.handshake import WorkerIdentity
from edgespec.core.protocol.messages import ROOT, Close, Commit, Open, Pause, Resume, Tree, WorkerBody
from edgespec.core.protocol.prefix import Prefix
from edgespec.core.protocol.session import State, Timers, WorkerSession
from edgespec.shared import folders
from edgespec.shared.digests import model_digest
from edgespec.shared.keystore import KeyStore
from edgespec.shared.models import resolve_model
from edgespec.shared.paired import PairedGateways
from edgespec.shared.tls import peer_spki_hash
from edgespec.shared.vocabfiles import gguf_metadata, gguf_tokenizer_digest
from edgespec.worker import config
from edgespec.worker.service import paired_gateway
from tools.attacks.aim import Aim, Pace, at_once
from tools.attacks.floods import Flood
from tools.attacks.floods.link import PING, pour, websocket

TREES_PER_S = 1000.0
NODES = 16
"""Of one tree."""
PAUSES_PER_S = 490.0
ENTROPY = 2**31 - 1
"""Millinats: 2.1 million nats, of which `math.exp` knows nothing."""
RELINK_S = 0.5
"""Between two links, as a patient attacker."""


class Request:
    """One open request: its text so far, and the next free node id."""

    def __init__(self, opening: Open) -> None:
        self.opening, self.prefix, self.next_id = opening, Prefix(opening.tokens), 1

    def tree(self, tokens: Sequence[int], entropy: int) -> Tree | None:
        """These tokens as children of the newest prefix; None while the prompt is not there yet."""
        if len(self.prefix) < self.opening.prompt_len:
            return None
        first, self.next_id = self.next_id, self.next_id + len(tokens)
        n, ids = len(tokens), (self.opening.request, self.opening.epoch, len(self.prefix), self.prefix.digest, first)
        return Tree(*ids, [ROOT] * n, list(tokens), list(range(100, 100 + n)), [entropy] * n)


class Hostile:
    """One link of the attacker's worker. Keeps the protocol's pings answered, and the open requests."""

    def __init__(self, ws: ClientConnection, session: WorkerSession) -> None:
        self.ws, self._session = ws, session
        self.requests: dict[int, Request] = {}

    async def handshake(self) -> None:
        """Until the gateway's welcome."""
        await self._flush()
        while self._session.state is not State.OPEN:
            await self._receive()

    async def send(self, body: WorkerBody) -> None:
        """Signs and sends one message."""
        await self.ws.send(self._session.send(body))

    async def listen(self) -> None:
        """Takes in what the gateway sends, until the link ends."""
        while True:
            await self._receive()

    async def _receive(self) -> None:
        data = await self.ws.recv()
        assert isinstance(data, bytes)
        for event in self._session.receive(data, 0.0):
            match event:
                case Open():
                    self.requests[event.request] = Request(event)
                case Commit() if event.request in self.requests:
                    self.requests[event.request].prefix.extend(event.tokens)
                case Close():
                    self.requests.pop(event.request, None)
        await self._flush()

    async def _flush(self) -> None:
        for data in self._session.outgoing():
            await self.ws.send(data)


class Identity:
    """Keys and models of the attacker's worker, read once."""

    def __init__(self, path: str) -> None:
        settings = config.load(Path(path))
        store = KeyStore(folders.state_dir("worker", settings.daemon.state_dir))
        gateway, model = paired_gateway(PairedGateways(store.folder)), resolve_model(settings.draft.model)
        self.vocab_size = len(gguf_metadata(model)["tokenizer.ggml.tokens"])
        self.pin = gateway.pin
        self.me = WorkerIdentity(
            store.identity(), config.worker_name(settings), gguf_tokenizer_digest(model),
            model_digest(model), self.vocab_size, 1,
        )  # fmt: skip

    @asynccontextmanager
    async def linked(self, aim: Aim) -> AsyncIterator[Hostile]:
        """A link that proved itself."""
        async with websocket(aim, "/link") as ws:
            seen = peer_spki_hash(ws.transport.get_extra_info("ssl_object"))
            never = Timers(1e9, 1e9, 1e9, 1e9)
            hostile = Hostile(ws, WorkerSession(self.me, self.pin, seen, os.urandom(32), 0.0, never))
            async with asyncio.timeout(15):
                await hostile.handshake()
            yield hostile


Behaviour = Callable[[Hostile, Identity, Counter[str]], Awaitable[None]]


def linked(behave: Behaviour) -> Callable[[Aim, Counter[str]], Awaitable[None]]:
    """Links, behaves so, and links again when the gateway ends it."""

    async def flood(aim: Aim, count: Counter[str]) -> None:
        identity = await asyncio.to_thread(Identity, aim.worker_config)

        async def one() -> None:
            with suppress(WebSocketException, EdgespecError):
                async with identity.linked(aim) as hostile:
                    count["links"] += 1
                    await _until_either_ends(hostile.listen(), behave(hostile, identity, count))
            await asyncio.sleep(RELINK_S)

        await at_once(1, one)

    return flood


async def _until_either_ends(*works: Awaitable[None]) -> None:
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def paused(hostile: Hostile, identity: Identity, count: Counter[str]) -> None:
    """Linked, and out of use."""
    await hostile.send(Pause("quiet"))
    await asyncio.Event().wait()


async def useless(hostile: Hostile, identity: Identity, count: Counter[str]) -> None:
    """Linked and given requests, for which it drafts nothing."""
    await asyncio.Event().wait()


async def pings(hostile: Hostile, identity: Identity, count: Counter[str]) -> None:
    await hostile.send(Pause("quiet"))
    await pour(hostile.ws, PING, count)


async def pauses(hostile: Hostile, identity: Identity, count: Counter[str]) -> None:
    pace = Pace(PAUSES_PER_S)
    while True:
        for body in (Pause("again"), Resume()):
            await pace.turn()
            await hostile.send(body)
            count["messages"] += 1


async def trees(hostile: Hostile, identity: Identity, count: Counter[str]) -> None:
    pace, rng = Pace(TREES_PER_S), random.Random(1)
    while True:
        await pace.turn()
        for request in list(hostile.requests.values()):
            tree = request.tree(rng.sample(range(identity.vocab_size), NODES), 700)
            if tree is not None:
                await hostile.send(tree)
                count["trees"] += 1


async def entropies(hostile: Hostile, identity: Identity, count: Counter[str]) -> None:
    pace = Pace(50)
    while True:
        await pace.turn()
        for request in list(hostile.requests.values()):
            tree = request.tree([request.next_id % identity.vocab_size], ENTROPY)
            if tree is not None:
                await hostile.send(tree)
                count["trees"] += 1


FLOODS = {
    "paired-pings": Flood("WebSocket pings of a paired worker (B3)", "paired", linked(pings), linked(paused)),
    "paired-pauses": Flood("490 pauses and resumptions a second", "paired", linked(pauses), linked(paused)),
    "paired-trees": Flood(
        "1000 random trees a second on the newest prefix", "paired", linked(trees), linked(useless), True
    ),
    "paired-entropies": Flood(
        "trees with an entropy of 2 million nats (A1)", "paired", linked(entropies), linked(useless), True
    ),
}
