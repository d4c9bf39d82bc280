"""Pairing at the gateway, over real TLS WebSockets: what the operator sees, what costs a code, what is stored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.server import serve

from edgespec.core.pairing import window
from edgespec.core.pairing.exchange import Party
from edgespec.core.pairing.messages import Code, PairingFailed, Reason
from edgespec.core.protocol.messages import VERSION
from edgespec.core.protocol.names import key_id
from edgespec.shared import pairing_listener as gateway_pair
from edgespec.shared.address import Address
from edgespec.shared.server_keys import ServerKeyStore
from edgespec.worker.pair import pair
from tests.support.pairing import Gateway, Operator, Worker, by_hand, make_worker, refusal, served, some_code, wrong


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    async with served(tmp_path) as gateway:
        yield gateway


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    return make_worker(tmp_path)


@pytest.fixture
def no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failures of the one source that a test has cost no time."""
    monkeypatch.setattr(window, "FIRST_DELAY_S", 0.0)


async def test_the_code_shown_pairs_and_both_sides_store_what_they_need(gateway: Gateway, worker: Worker) -> None:
    operator = Operator(gateway.desk)
    stored = await worker.pair(gateway, await operator.code())
    await operator.done
    assert worker.gateways.all() == [stored]
    assert (stored.key, stored.spki, stored.name) == (gateway.key.public, gateway.spki, "dept gateway")
    assert (stored.address, stored.min_version) == (str(gateway.address), VERSION)
    assert gateway.workers.lookup(worker.key.public) == "paired"
    assert gateway.workers.find("lab-7").min_version == VERSION
    assert 100 < operator.shown[0]["expires_in_s"] <= 120
    assert operator.shown[-1] == {"paired": {"name": "lab-7", "id": key_id(worker.key.public)}}


async def test_a_wrong_code_fails_on_both_sides_and_a_new_one_is_shown(
    gateway: Gateway, worker: Worker, no_delay: None
) -> None:
    operator = Operator(gateway.desk)
    code = await operator.code()
    with pytest.raises(PairingFailed, match="the code is wrong") as failure:
        await worker.pair(gateway, wrong(gateway, code))
    assert failure.value.exit_code == 77
    with pytest.raises(PairingFailed, match="not the one that the gateway shows, or no longer"):
        await worker.pair(gateway, code)
    assert worker.gateways.all() == []
    await worker.pair(gateway, await operator.code(1))
    await operator.done
    failed = [(event["failed"], event["left"]) for event in operator.shown if "failed" in event]
    assert failed == [("code", 4)]


async def test_without_a_window_nothing_is_paired(gateway: Gateway, worker: Worker) -> None:
    with pytest.raises(PairingFailed, match="not waiting for a worker; ask for a new code with `cloud-gateway pair`"):
        await worker.pair(gateway, some_code(gateway.spki))


async def test_a_command_that_leaves_closes_the_window(gateway: Gateway, worker: Worker) -> None:
    operator = Operator(gateway.desk)
    code = await operator.code()
    operator.done.cancel()
    await asyncio.wait([operator.done])
    with pytest.raises(PairingFailed, match="not waiting for a worker"):
        await worker.pair(gateway, code)


@pytest.mark.claim("wrong-nameplates-neither-burn-the-code-nor-count")
async def test_silent_connections_do_not_lock_pairing(
    gateway: Gateway, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From one source or from many; how many stay is the port's to bound (test_link_floods)."""
    monkeypatch.setattr(gateway_pair, "FIRST_MESSAGE_S", 60.0)
    operator = Operator(gateway.desk)
    code = await operator.code()
    async with AsyncExitStack() as opened:
        for _ in range(3):
            await opened.enter_async_context(by_hand(gateway))
        for n in range(1, 13):
            await opened.enter_async_context(by_hand(gateway, f"127.0.1.{n}"))
        async with asyncio.timeout(30):
            await worker.pair(gateway, code)
            await operator.done


async def test_a_connection_that_says_nothing_ends_by_itself(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_pair, "FIRST_MESSAGE_S", 0.2)
    async with by_hand(gateway) as ws:
        assert await refusal(ws) is Reason.BUSY


@pytest.mark.claim("a-key-that-fits-one-code-fits-no-other")
async def test_a_relay_that_ends_tls_cannot_pair_although_it_forwards_everything(
    gateway: Gateway, worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even with a key that fits the code by chance, as one in 10,000 does; the others are skipped (test_pair)."""
    monkeypatch.setattr(Code, "fits", lambda code, spki: True)
    mallory = ServerKeyStore(tmp_path / "mallory").tls_identity()

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
            await pair(code, Party(worker.key, "lab-7"), worker.gateways.add, [Address("127.0.0.1", port)])
    assert (worker.gateways.all(), gateway.workers.all()) == ([], [])
    await operator.code(1)
    operator.done.cancel()


async def test_a_gateway_that_cannot_store_pairs_nobody(gateway: Gateway, worker: Worker) -> None:
    gateway.workers.add(b"x" * 32, "other")
    path = ServerKeyStore(gateway.workers._file.path.parents[1]).folder / "workers.json"
    path.chmod(0o644)  # so that the list refuses to be read or changed
    operator = Operator(gateway.desk)
    with pytest.raises(PairingFailed, match="the gateway could not store the worker's key"):
        await worker.pair(gateway, await operator.code())
    assert worker.gateways.all() == []
    path.chmod(0o600)
    await worker.pair(gateway, await operator.code(1))
