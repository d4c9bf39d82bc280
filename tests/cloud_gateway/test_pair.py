"""Pairing over real TLS WebSockets: what the operator sees, what the worker is told, and what is stored."""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.connection import Connection
from websockets.asyncio.server import serve
from websockets.exceptions import ConnectionClosed

from cloud_gateway import pair as gateway_pair
from cloud_gateway.pair import MAX_CONNECTIONS, PairingDesk
from edgespec.core import pairing_window
from edgespec.core.errors import KeyStoreError, NoGatewayError, PairingError
from edgespec.core.messages import encode
from edgespec.core.pairing import Party, WorkerExchange
from edgespec.core.pairing_messages import Code, PairingFailed, Reason, Refused, Reply, decode_pairing
from edgespec.core.signing import SigningKey
from edgespec.pair import pair
from edgespec.shared.address import PAIR_PATH, Address
from edgespec.shared.files import write_private
from edgespec.shared.keystore import KeyStore, key_id
from edgespec.shared.paired import PairedGateway, PairedGateways, PairedWorkers
from edgespec.shared.tls import client_context, new_identity, peer_spki_hash
from edgespec.shared.words import parse_code


class Operator:
    """Runs `cloud-gateway pair` against the desk and keeps what it shows."""

    def __init__(self, desk: PairingDesk) -> None:
        self.shown: list[dict[str, Any]] = []
        self._new = asyncio.Event()
        self.done = asyncio.ensure_future(self._watch(desk))

    async def _watch(self, desk: PairingDesk) -> None:
        async for event in desk.pair():
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

    desk: PairingDesk
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
        return await pair([gateway.address], code, self.key, "lab-7", self.gateways)


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[Gateway]:
    store = KeyStore(folder / "gateway")
    tls, key, workers = store.tls_identity(), store.identity(), PairedWorkers(store.folder)
    desk = PairingDesk(key, "dept gateway", tls.spki_hash, workers)
    async with serve(desk.handle, "127.0.0.1", 0, ssl=tls.context(), compression=None) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        yield Gateway(desk, workers, key, tls.spki_hash, Address("127.0.0.1", port))


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    async with served(tmp_path) as gateway:
        yield gateway


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    store = KeyStore(tmp_path / "worker")
    return Worker(store.identity(), PairedGateways(store.folder))


@asynccontextmanager
async def by_hand(gateway: Gateway) -> AsyncIterator[ClientConnection]:
    """A connection to /pair that says what the test wants."""
    async with connect(gateway.address.url(PAIR_PATH), ssl=client_context(), proxy=None, close_timeout=0.5) as ws:
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


def wrong(code: Code) -> Code:
    return Code(code.nameplate, ("acorn" if code.words[0] != "acorn" else "album", *code.words[1:]))


async def test_the_code_shown_pairs_and_both_sides_store_what_they_need(gateway: Gateway, worker: Worker) -> None:
    operator = Operator(gateway.desk)
    stored = await worker.pair(gateway, await operator.code())
    await operator.done
    assert worker.gateways.all() == [stored]
    assert (stored.key, stored.spki, stored.name) == (gateway.key.public, gateway.spki, "dept gateway")
    assert (stored.address, stored.min_version) == (str(gateway.address), 1)
    assert gateway.workers.lookup(worker.key.public) == "paired"
    assert gateway.workers.find("lab-7").min_version == 1
    assert 100 < operator.shown[0]["expires_in_s"] <= 120
    assert operator.shown[-1] == {"paired": {"name": "lab-7", "id": key_id(worker.key.public)}}


async def test_a_wrong_code_is_told_to_both_and_a_new_one_is_shown(gateway: Gateway, worker: Worker) -> None:
    operator = Operator(gateway.desk)
    code = await operator.code()
    with pytest.raises(PairingFailed, match="the code is wrong") as failure:
        await worker.pair(gateway, wrong(code))
    assert failure.value.exit_code == 77
    with pytest.raises(PairingFailed, match="not the gateway's, or a failed attempt used it up"):
        await worker.pair(gateway, code)
    assert worker.gateways.all() == []
    await worker.pair(gateway, await operator.code(2))
    await operator.done
    failed = [(event["failed"], event["left"]) for event in operator.shown if "failed" in event]
    assert failed == [("code", 4), ("nameplate", 3)]


async def test_five_failures_stop_pairing_until_the_operator_asks_again(gateway: Gateway, worker: Worker) -> None:
    operator = Operator(gateway.desk)
    for attempt in range(pairing_window.MAX_FAILURES):
        with pytest.raises(PairingFailed):
            await worker.pair(gateway, wrong(await operator.code(attempt)))
    with pytest.raises(
        PairingError, match="5 attempts failed, so pairing was stopped; .* run `cloud-gateway pair` again"
    ):
        await operator.done
    with pytest.raises(PairingFailed, match="five attempts failed and the gateway stopped pairing"):
        await worker.pair(gateway, await operator.code())
    again = Operator(gateway.desk)
    await worker.pair(gateway, await again.code())
    await again.done


async def test_without_a_window_nothing_is_paired(gateway: Gateway, worker: Worker) -> None:
    with pytest.raises(PairingFailed, match="not waiting for a worker; ask for a new code with `cloud-gateway pair`"):
        await worker.pair(gateway, Code(7, ("acorn", "album", "amber")))


async def test_an_expired_code_is_told_to_both(
    gateway: Gateway, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pairing_window, "WINDOW_S", 0.3)
    operator = Operator(gateway.desk)
    code = await operator.code()
    with pytest.raises(PairingError, match="No worker was paired within 120 s; run `cloud-gateway pair` again"):
        await operator.done
    with pytest.raises(PairingFailed, match="the code has expired"):
        await worker.pair(gateway, code)


async def test_a_command_that_leaves_closes_the_window(gateway: Gateway, worker: Worker) -> None:
    operator = Operator(gateway.desk)
    code = await operator.code()
    operator.done.cancel()
    await asyncio.wait([operator.done])
    with pytest.raises(PairingFailed, match="not waiting for a worker"):
        await worker.pair(gateway, code)


async def test_only_one_operator_pairs_at_a_time(gateway: Gateway, worker: Worker) -> None:
    operator = Operator(gateway.desk)
    code = await operator.code()
    with pytest.raises(PairingError, match="open already"):
        await anext(gateway.desk.pair())
    await worker.pair(gateway, code)
    await operator.done


async def test_a_worker_that_hangs_up_in_the_middle_burns_the_code(gateway: Gateway, worker: Worker) -> None:
    operator = Operator(gateway.desk)
    hand = exchange(gateway, await operator.code())
    async with by_hand(gateway) as ws:
        await ws.send(encode(hand.start()))
        await ws.recv()
        await ws.close()
    async with asyncio.timeout(5):  # at once, not when the attempt's time is over
        await worker.pair(gateway, await operator.code(1))
    assert {"abandoned"} == {event["failed"] for event in operator.shown if "failed" in event}


async def test_a_silent_attempt_ends_by_itself(
    gateway: Gateway, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pairing_window, "ATTEMPT_S", 0.3)
    operator = Operator(gateway.desk)
    hand = exchange(gateway, await operator.code())
    async with by_hand(gateway) as ws:
        await ws.send(encode(hand.start()))
        await ws.recv()
        assert await refusal(ws) is Reason.ABANDONED
    monkeypatch.undo()
    await worker.pair(gateway, await operator.code(1))


async def test_a_second_worker_is_told_to_wait_and_costs_no_code(gateway: Gateway, worker: Worker) -> None:
    operator = Operator(gateway.desk)
    code = await operator.code()
    hand = exchange(gateway, code)
    async with by_hand(gateway) as ws:
        await ws.send(encode(hand.start()))
        reply = await ws.recv()
        with pytest.raises(PairingFailed, match="another worker is being paired"):
            await worker.pair(gateway, code)
        for _ in range(2):
            assert isinstance(reply, bytes)
            answer = hand.receive(decode_pairing(reply))
            assert answer is not None
            await ws.send(encode(answer))
            reply = await ws.recv()
    await operator.done
    assert operator.shown[-1]["paired"]["name"] == "by hand"


@pytest.mark.parametrize("data", [b"", b"\xc1", b"x" * 2000, "text", encode(Refused(Reason.CODE)), os.urandom(50)])
async def test_garbage_is_refused_and_costs_no_code(gateway: Gateway, worker: Worker, data: bytes | str) -> None:
    operator = Operator(gateway.desk)
    code = await operator.code()
    async with by_hand(gateway) as ws:
        await ws.send(data)
        assert await refusal(ws) is Reason.PROTOCOL
        with pytest.raises(ConnectionClosed):
            await ws.recv()
    await worker.pair(gateway, code)
    assert operator.codes == [str(code)]


async def test_garbage_in_the_middle_burns_the_code(gateway: Gateway) -> None:
    operator = Operator(gateway.desk)
    hand = exchange(gateway, await operator.code())
    async with by_hand(gateway) as ws:
        await ws.send(encode(hand.start()))
        await ws.recv()
        await ws.send(b"garbage")
        assert await refusal(ws) is Reason.PROTOCOL
    await operator.code(1)
    operator.done.cancel()


async def test_idle_connections_do_not_keep_a_worker_out_for_long(
    gateway: Gateway, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_pair, "FIRST_MESSAGE_S", 0.5)
    operator = Operator(gateway.desk)
    code = await operator.code()
    idle = [by_hand(gateway) for _ in range(MAX_CONNECTIONS)]
    opened = [await one.__aenter__() for one in idle]
    with pytest.raises(PairingFailed, match="another worker is being paired at this moment"):
        await worker.pair(gateway, code)
    await asyncio.gather(*(ws.wait_closed() for ws in opened))
    await worker.pair(gateway, code)


async def test_a_relay_that_ends_tls_cannot_pair_although_it_forwards_everything(
    gateway: Gateway, worker: Worker, tmp_path: Path
) -> None:
    mallory = KeyStore(tmp_path / "mallory").tls_identity()

    async def relay(inner: Any) -> None:
        async with by_hand(gateway) as outer:

            async def pump(source: Any, sink: Any) -> None:
                async for data in source:
                    await sink.send(data)
                await sink.close()

            await asyncio.gather(pump(inner, outer), pump(outer, inner))

    operator = Operator(gateway.desk)
    code = await operator.code()
    async with serve(relay, "127.0.0.1", 0, ssl=mallory.context()) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        with pytest.raises(PairingFailed, match="something between the two sides interferes"):
            await pair([Address("127.0.0.1", port)], code, worker.key, "lab-7", worker.gateways)
    assert (worker.gateways.all(), gateway.workers.all()) == ([], [])
    await operator.code(1)
    operator.done.cancel()


async def test_a_gateway_that_cannot_store_pairs_nobody(gateway: Gateway, worker: Worker) -> None:
    gateway.workers.add(b"x" * 32, "other")
    path = KeyStore(Path(gateway.workers._file).parents[1]).folder / "workers.json"
    path.chmod(0o644)  # so that the list refuses to be read or changed
    operator = Operator(gateway.desk)
    with pytest.raises(PairingFailed, match="the gateway could not store the worker's key"):
        await worker.pair(gateway, await operator.code())
    assert worker.gateways.all() == []
    path.chmod(0o600)
    await worker.pair(gateway, await operator.code(1))


async def test_a_worker_that_cannot_store_says_so(gateway: Gateway, worker: Worker) -> None:
    worker.gateways.add(b"x" * 32, b"y" * 32, "other", "", 1)
    worker.gateways._file.chmod(0o644)
    operator = Operator(gateway.desk)
    with pytest.raises(KeyStoreError, match="run `chmod 600"):
        await worker.pair(gateway, await operator.code())


async def test_nothing_at_the_address_and_the_wrong_thing_there_are_told_apart(
    gateway: Gateway, worker: Worker, tmp_path: Path
) -> None:
    code = Code(7, ("acorn", "album", "amber"))
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    nobody = Address("127.0.0.1", port)
    with pytest.raises(NoGatewayError, match=f"No gateway can be reached at 127.0.0.1:{port} \\(") as error:
        await pair([nobody], code, worker.key, "lab-7", worker.gateways)
    assert error.value.exit_code == 69
    with pytest.raises(NoGatewayError, match="can be reached at no.such.host.invalid:7443"):
        await pair([Address("no.such.host.invalid")], code, worker.key, "lab-7", worker.gateways)
    with pytest.raises(NoGatewayError, match="No address of a gateway was given"):
        await pair([], code, worker.key, "lab-7", worker.gateways)

    async def chat(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(chat, "127.0.0.1", 0) as other:
        address = Address("127.0.0.1", other.sockets[0].getsockname()[1])
        with pytest.raises(NoGatewayError, match="is not an edgespec gateway; check host and port"):
            await pair([address], code, worker.key, "lab-7", worker.gateways)

    operator = Operator(gateway.desk)  # the second address is tried, and the first costs no code
    await pair([nobody, gateway.address], await operator.code(), worker.key, "lab-7", worker.gateways)


async def test_of_several_gateways_the_one_that_waits_is_paired(
    gateway: Gateway, worker: Worker, tmp_path: Path
) -> None:
    async with served(tmp_path / "idle") as idle:
        operator = Operator(gateway.desk)
        both = [idle.address, gateway.address]
        stored = await pair(both, await operator.code(), worker.key, "lab-7", worker.gateways)
        assert stored.key == gateway.key.public
        with pytest.raises(PairingFailed, match="not waiting for a worker"):
            await pair(both, Code(7, ("acorn", "album", "amber")), worker.key, "lab-7", worker.gateways)


async def test_a_worker_that_turns_a_gateway_down_tells_it_why(worker: Worker, tmp_path: Path) -> None:
    tls = KeyStore(tmp_path / "false").tls_identity()
    told: list[Reason] = []

    async def false_gateway(ws: Any) -> None:
        await ws.recv()
        await ws.send(encode(Reply(1, bytes(32), "small order", bytes(33))))
        told.append(await refusal(ws))

    async with serve(false_gateway, "127.0.0.1", 0, ssl=tls.context()) as server:
        address = Address("127.0.0.1", next(iter(server.sockets)).getsockname()[1])
        with pytest.raises(PairingFailed, match="the other side's key is not valid or not its own"):
            await pair([address], Code(7, ("acorn", "album", "amber")), worker.key, "lab-7", worker.gateways)
    assert told == [Reason.KEY]
    assert worker.gateways.all() == []


async def test_a_gateway_without_pairing_is_called_too_old(worker: Worker, tmp_path: Path) -> None:
    tls = KeyStore(tmp_path / "old").tls_identity()
    async with serve(
        lambda ws: ws.close(),
        "127.0.0.1",
        0,
        ssl=tls.context(),
        process_request=lambda ws, request: ws.respond(404, "no\n"),
    ) as server:
        address = Address("127.0.0.1", next(iter(server.sockets)).getsockname()[1])
        with pytest.raises(PairingError, match="does not pair: it is older than this worker"):
            await pair([address], Code(7, ("acorn", "album", "amber")), worker.key, "lab-7", worker.gateways)


@pytest.mark.parametrize("years", [(1990, 1991), (2090, 2091)])
async def test_clocks_that_differ_by_decades_do_not_keep_machines_apart(
    worker: Worker, tmp_path: Path, years: tuple[int, int]
) -> None:
    """The certificate has expired, or is not valid yet, for the worker's clock; the time limits are elapsed time."""
    folder = KeyStore(tmp_path / "gateway").folder
    begin, end = (dt.datetime(year, 1, 1, tzinfo=dt.UTC) for year in years)
    write_private(folder / "tls.pem", new_identity(begin, end))
    async with served(tmp_path) as gateway:
        operator = Operator(gateway.desk)
        stored = await worker.pair(gateway, await operator.code())
        assert stored.spki == gateway.spki


async def test_the_pin_that_is_stored_is_that_of_the_connection(gateway: Gateway) -> None:
    async with by_hand(gateway) as ws:
        assert peer_spki_hash(ws.transport.get_extra_info("ssl_object")) == gateway.spki
