"""A gateway's links over real TLS WebSockets, and workers made by hand that authenticate and then misbehave."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from cloud_gateway.core.requests.events import FrameArrived
from cloud_gateway.engine.exchange import Declined, LinkEvent, WorkerGone, WorkerReady
from cloud_gateway.links.judge import Judge
from cloud_gateway.links.link import TokenizerOffer
from cloud_gateway.links.paired import PairedWorkers
from cloud_gateway.links.server import Links
from edgespec.core.pairing.groups import DEFAULT_GROUPS
from edgespec.core.protocol import messages as m
from edgespec.core.protocol.handshake import GatewayIdentity, Pin, Standing, WorkerIdentity
from edgespec.core.protocol.inflow import InflowLimits
from edgespec.core.protocol.messages import ToWorker
from edgespec.core.protocol.names import key_id
from edgespec.core.protocol.session import DEFAULT_TIMERS, SessionState, Timers, WorkerSession
from edgespec.core.protocol.signing import SigningKey
from edgespec.shared.address import Address
from edgespec.shared.guards import PLAIN, Guards
from edgespec.shared.server_keys import ServerIdentity, ServerKeyStore, certificate_spki, new_identity
from edgespec.shared.tls import client_context, peer_spki_hash
from edgespec.worker.link import Handler, Link
from tools.doubles.limits import link_bounds

VOCAB = 1000
TOKENIZER = b"t" * 32
MODEL = b"m" * 32
HASH = b"h" * 32
GATEWAY_KEY = SigningKey(b"g" * 32)


def make_certificate(folder: Path) -> tuple[ssl.SSLContext, bytes]:
    """A server's TLS context with the folder's self-signed certificate, made at the first call, and its pin."""
    path = folder / "gateway.pem"
    if not path.exists():
        path.write_bytes(new_identity())
    server = ServerIdentity(path, certificate_spki(folder, path.read_bytes()))
    return server.context(), server.spki_hash


def worker_identity(seed: bytes = b"w" * 32, name: str = "lab-7", **changes: Any) -> WorkerIdentity:
    fields: dict[str, Any] = {"tokenizer_digest": TOKENIZER, "model_digest": MODEL, "vocab_size": VOCAB, "sequences": 4}
    return WorkerIdentity(**{"key": SigningKey(seed), "name": name} | fields | changes)


def some_tree(first: int = 1, request: int = 1, **changes: Any) -> m.Tree:
    fields: dict[str, Any] = {"parents": [0, first], "tokens": [10, 11], "costs": [100, 200], "entropies": [300, 400]}
    return m.Tree(request, 1, 3, HASH, first, **(fields | changes))


@dataclass
class Seen:
    """All events that the links post to the engine, in order, and what they refuse."""

    calls: list[tuple[Any, ...]] = field(default_factory=list)
    tree_raises: Exception | None = None

    def post(self, event: LinkEvent) -> None:
        match event:
            case WorkerReady(worker):
                self.calls.append(("up", worker))
            case WorkerGone(worker, why):
                self.calls.append(("down", worker, why))
            case Declined(worker, request, why):
                self.calls.append(("decline", worker, request, why))
            case FrameArrived(worker, tree):
                self.calls.append(("tree", worker, tree))
                if self.tree_raises is not None:
                    raise self.tree_raises

    def refused(self, reason: str) -> None:
        self.calls.append(("rejected", reason))

    def of(self, kind: str) -> list[tuple[Any, ...]]:
        return [call[1:] for call in self.calls if call[0] == kind]


class Watched(Seen):
    """Events of links, each with what the view says of the default worker when the engine gets it."""

    def __init__(self) -> None:
        super().__init__()
        self.links: Any = None
        self.paused: list[bool] = []

    def post(self, event: LinkEvent) -> None:
        super().post(event)
        view = self.links.view(key_id(worker_identity().key.public)) if self.links is not None else None
        if view is not None:
            assert view.groups == frozenset(DEFAULT_GROUPS)
            self.paused.append(view.paused)


@dataclass
class Listed:
    """The operator's list of workers, in memory."""

    standing: dict[bytes, Standing]
    names: dict[bytes, str]

    def lookup(self, key: bytes) -> Standing:
        return self.standing.get(key, "unpaired")

    def name_of(self, key: bytes) -> str:
        return self.names.get(key, "unlisted")

    def groups_of(self, key: bytes) -> frozenset[str]:
        return frozenset(DEFAULT_GROUPS)

    def seen(self, key: bytes) -> None:
        """No file."""

    def rotate(self, old: bytes, new: bytes) -> None:
        self.standing[new], self.names[new] = self.standing.pop(old), self.names.pop(old)

    def quarantine(self, text: str, why: str) -> str:
        (key,) = (key for key in self.standing if key_id(key) == text)
        self.standing[key] = "quarantined"
        return self.names[key]


@dataclass
class GatewayUnderTest:
    """Links that are being served on loopback."""

    links: Links
    seen: Seen
    port: int
    pin: Pin
    standing: dict[bytes, Standing]
    tls: ssl.SSLContext

    @property
    def address(self) -> Address:
        return Address("127.0.0.1", self.port)


@asynccontextmanager
async def serving(
    folder: Path,
    *,
    timers: Timers = DEFAULT_TIMERS,
    inflow: InflowLimits | None = None,
    guards: Guards = PLAIN,
    pair: Callable[[Any], Any] | None = None,
    judges: Sequence[Judge] = (),
    quarantined: Callable[[str, str, str], None] = lambda *_: None,
    paired: Sequence[WorkerIdentity] = (),
    listed: PairedWorkers | None = None,
    seen: Seen | None = None,
    port: int = 0,
    branching: int = 4,
    keys: ServerKeyStore | None = None,
    tokenizer: bytes = TOKENIZER,
    offer: TokenizerOffer | None = None,
) -> AsyncIterator[GatewayUnderTest]:
    """Serves links to the default worker and those in `paired`, or to those in a list on disk, `listed`; with these
    `keys`, or `GATEWAY_KEY` and a new TLS key.
    """
    context, pin = make_certificate(folder)
    key = GATEWAY_KEY
    if keys is not None:
        key = keys.identity()
        context = keys.tls_identity().context()
        pin = keys.tls_identity().spki_hash
    standing: dict[bytes, Standing] = {me.key.public: "paired" for me in (worker_identity(), *paired)}
    names = {me.key.public: me.name for me in (worker_identity(), *paired)}
    seen = seen or Seen()
    me = GatewayIdentity(key, "gw", pin, tokenizer, branching)
    if offer is not None:
        me = replace(me, sends_tokenizer=offer.sends, advice=offer.advice)
    links = Links(
        me,
        VOCAB,
        listed or Listed(standing, names),
        seen.refused,
        pair=pair,
        judges=judges,
        quarantined=quarantined,
        timers=timers,
        bounds=link_bounds(),
        guards=guards,
        inflow=inflow or InflowLimits(),
        offer=offer,
    )
    links.inbox = seen
    port = await links.start("127.0.0.1", port, context)
    try:
        yield GatewayUnderTest(links, seen, port, Pin(key.public, pin), standing, context)
    finally:
        await links.stop()


class Client:
    """A worker made by hand: authenticates like a correct one, then sends what the test passes."""

    def __init__(self, ws: ClientConnection, session: WorkerSession, me: WorkerIdentity) -> None:
        self.ws = ws
        self.session = session
        self.me = me

    async def handshake(self) -> None:
        await self.flush()
        while self.session.state is not SessionState.OPEN:
            self.session.receive(await self.ws.recv(), 0.0)
            await self.flush()

    async def flush(self) -> None:
        for data in self.session.outgoing():
            await self.ws.send(data)

    async def send(self, body: m.WorkerBody) -> bytes:
        data = self.session.send(body)
        await self.ws.send(data)
        return data

    def frame(self, body: Any, seq: int = 1) -> bytes:
        return m.encode(m.Frame(self.session.session, seq, [body]))

    async def receive(self) -> list[Any]:
        """The next messages, pongs answered."""
        events = self.session.receive(await self.ws.recv(), 0.0)
        await self.flush()
        return events

    async def closed(self) -> int:
        """Reads until the gateway closes; returns the close code, 1006 for none."""
        try:
            async with asyncio.timeout(10):
                while True:
                    await self.ws.recv()
        except ConnectionClosed as closed:
            return closed.rcvd.code if closed.rcvd else 1006


@asynccontextmanager
async def raw(gateway: GatewayUnderTest, path: str = "/link", **options: Any) -> AsyncIterator[ClientConnection]:
    """A WebSocket on which nothing was sent yet."""
    uri = f"wss://127.0.0.1:{gateway.port}{path}"
    async with connect(
        uri, ssl=client_context(), proxy=None, compression=None, ping_interval=None, close_timeout=0.5, **options
    ) as ws:
        yield ws


@asynccontextmanager
async def client(gateway: GatewayUnderTest, me: WorkerIdentity | None = None, **options: Any) -> AsyncIterator[Client]:
    """A linked worker made by hand; `options` as for `raw`."""
    me = me or worker_identity()
    async with raw(gateway, **options) as ws:
        seen_spki = peer_spki_hash(ws.transport.get_extra_info("ssl_object"))
        session = WorkerSession(me, gateway.pin, seen_spki, os.urandom(32), 0.0, Timers(1e9, 1e9, 1e9, 1e9))
        hand_made = Client(ws, session, me)
        await hand_made.handshake()
        yield hand_made


@dataclass
class Daemon(Handler):
    """A worker's handler that records its calls."""

    calls: list[tuple[Any, ...]] = field(default_factory=list)
    link: Link | None = None
    raises: Exception | None = None

    def on_up(self, link: Link) -> None:
        self.link = link
        self.calls.append(("up",))

    def on_message(self, message: ToWorker) -> None:
        self.calls.append(("message", message))
        if self.raises is not None:
            raise self.raises

    def on_piece(self, piece: m.Piece) -> None:
        self.calls.append(("piece", piece))

    def on_writable(self) -> None:
        self.calls.append(("writable",))

    def on_down(self, why: str) -> None:
        self.link = None
        self.calls.append(("down", why))

    def of(self, kind: str) -> list[tuple[Any, ...]]:
        return [call[1:] for call in self.calls if call[0] == kind]
