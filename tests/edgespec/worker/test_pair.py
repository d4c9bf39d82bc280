"""Pairing at the worker, over real TLS WebSockets: which gateway it accepts, errors, what it stores."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.server import serve

from edgespec.core.errors import KeyStoreError, NoGatewayError, PairingError
from edgespec.core.pairing.messages import PairingFailed, Reason, Reply
from edgespec.core.protocol.messages import VERSION, encode
from edgespec.shared.address import Address
from edgespec.shared.server_keys import ServerKeyStore
from edgespec.worker.pair import pair
from tests.support.pairing import Gateway, Operator, Worker, make_worker, refusal, served, some_code
from tests.support.sockets import reserved


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    async with served(tmp_path) as gateway:
        yield gateway


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    return make_worker(tmp_path)


async def test_a_worker_that_cannot_store_the_gateway_reports_it(gateway: Gateway, worker: Worker) -> None:
    worker.gateways.add(b"x" * 32, b"y" * 32, "other", "", 1)
    worker.gateways._file.path.chmod(0o644)
    operator = Operator(gateway.desk)
    with pytest.raises(KeyStoreError, match="run `chmod 600"):
        await worker.pair(gateway, await operator.code())


async def test_an_unreachable_address_and_another_service_have_different_errors(
    gateway: Gateway, worker: Worker, tmp_path: Path
) -> None:
    code = some_code(gateway.spki)
    with reserved() as port:
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
            await pair(both, some_code(gateway.spki), worker.key, "lab-7", worker.gateways)


async def test_a_worker_that_refuses_a_gateway_sends_the_reason(worker: Worker, tmp_path: Path) -> None:
    tls = ServerKeyStore(tmp_path / "false").tls_identity()
    reasons: list[Reason] = []

    async def false_gateway(ws: Any) -> None:
        await ws.recv()
        await ws.send(encode(Reply(VERSION, bytes(32), "small order", bytes(33))))
        reasons.append(await refusal(ws))

    async with serve(false_gateway, "127.0.0.1", 0, ssl=tls.context()) as server:
        address = Address("127.0.0.1", next(iter(server.sockets)).getsockname()[1])
        with pytest.raises(PairingFailed, match="the other side's key is not valid or not its own"):
            await pair([address], some_code(tls.spki_hash), worker.key, "lab-7", worker.gateways)
    assert reasons == [Reason.KEY]
    assert worker.gateways.all() == []


async def test_a_gateway_without_pairing_is_called_too_old(worker: Worker, tmp_path: Path) -> None:
    tls = ServerKeyStore(tmp_path / "old").tls_identity()
    async with serve(
        lambda ws: ws.close(),
        "127.0.0.1",
        0,
        ssl=tls.context(),
        process_request=lambda ws, request: ws.respond(404, "no\n"),
    ) as server:
        address = Address("127.0.0.1", next(iter(server.sockets)).getsockname()[1])
        with pytest.raises(PairingError, match="does not pair: it is older than this worker"):
            await pair([address], some_code(tls.spki_hash), worker.key, "lab-7", worker.gateways)
