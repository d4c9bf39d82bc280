"""Both ends of pairing on loopback, an operator's command, and workers made by hand."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.connection import Connection
from websockets.asyncio.server import serve

from cloud_gateway.links.paired import PairedWorkers
from edgespec.core.pairing.exchange import Party, WorkerExchange
from edgespec.core.pairing.messages import Code, Reason, Refused, check_number, decode_pairing, parse_code
from edgespec.core.protocol.signing import SigningKey
from edgespec.shared.address import PAIR_PATH, Address
from edgespec.shared.paired import PairedGateway, PairedGateways
from edgespec.shared.pairing_listener import PairingListener
from edgespec.shared.server_keys import ServerKeyStore
from edgespec.shared.tls import client_context
from edgespec.worker.pair import pair


class Operator:
    """Runs `cloud-gateway pair` against the desk and keeps what it shows."""

    def __init__(self, desk: PairingListener, groups: Sequence[str] = ()) -> None:
        self.shown: list[dict[str, Any]] = []
        self._new = asyncio.Event()
        self.done = asyncio.ensure_future(self._watch(desk, groups))

    async def _watch(self, desk: PairingListener, groups: Sequence[str]) -> None:
        async for event in desk.pair(groups):
            self.shown.append(event)
            self._new.set()

    async def until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(20):
            while not condition():
                self._new.clear()
                await self._new.wait()

    async def code(self, number: int = 0) -> Code:
        """The `number`th code that is shown."""
        await self.until(lambda: len(self.codes) > number)
        return parse_code(self.codes[number])

    @property
    def codes(self) -> list[str]:
        return [event["code"] for event in self.shown if "code" in event]


@dataclass
class Gateway:
    """A gateway's pairing end, served on loopback."""

    desk: PairingListener
    workers: PairedWorkers
    key: SigningKey
    spki: bytes
    address: Address


@dataclass
class Worker:
    """A worker's key and list."""

    key: SigningKey
    gateways: PairedGateways

    async def pair(self, gateway: Gateway, code: Code) -> PairedGateway:
        return await pair(code, Party(self.key, "lab-7"), self.gateways.add, [gateway.address])


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[Gateway]:
    store = ServerKeyStore(folder / "gateway")
    tls = store.tls_identity()
    key = store.identity()
    workers = PairedWorkers(store.folder)
    desk = PairingListener(key, "dept gateway", tls.spki_hash, workers.add)
    async with serve(desk.handle, "127.0.0.1", 0, ssl=tls.context(), compression=None) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        yield Gateway(desk, workers, key, tls.spki_hash, Address("127.0.0.1", port))


@asynccontextmanager
async def by_hand(gateway: Gateway, source: str = "127.0.0.1") -> AsyncIterator[ClientConnection]:
    """A connection to /pair that sends what the test passes; `source` is an address of loopback."""
    where = gateway.address.url(PAIR_PATH)
    async with connect(where, ssl=client_context(), proxy=None, close_timeout=0.5, local_addr=(source, 0)) as ws:
        yield ws


def exchange(gateway: Gateway, code: Code) -> WorkerExchange:
    return WorkerExchange(code, Party(SigningKey(b"w" * 32), "by hand"), gateway.spki, os.urandom)


async def refusal(ws: Connection) -> Reason:
    async with asyncio.timeout(10):
        data = await ws.recv()
        assert isinstance(data, bytes)
        message = decode_pairing(data)
        assert isinstance(message, Refused)
        return message.reason


def some_code(spki: bytes, nameplate: int = 4821, words: tuple[str, ...] = ("acorn", "album", "amber")) -> Code:
    """A code that the gateway with this TLS key could show."""
    return Code(nameplate, words, check_number(nameplate, words, spki))


def wrong(gateway: Gateway, code: Code) -> Code:
    """The code with one wrong word."""
    return some_code(gateway.spki, code.nameplate, ("acorn" if code.words[0] != "acorn" else "album", *code.words[1:]))


def make_worker(folder: Path) -> Worker:
    """A worker with keys and list below a folder."""
    store = ServerKeyStore(folder / "worker")
    return Worker(store.identity(), PairedGateways(store.folder))
