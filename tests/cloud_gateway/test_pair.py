"""Pairing at the gateway, over real TLS WebSockets: what the operator sees, what costs a code, what is stored."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.server import serve
from websockets.exceptions import ConnectionClosed

from cloud_gateway import pair as gateway_pair
from cloud_gateway.pair import MAX_CONNECTIONS
from edgespec.core import pairing_window
from edgespec.core.errors import PairingError
from edgespec.core.messages import encode
from edgespec.core.names import key_id
from edgespec.core.pairing_messages import Code, PairingFailed, Reason, Refused, decode_pairing
from edgespec.pair import pair
from edgespec.shared.address import Address
from edgespec.shared.keystore import KeyStore
from tests.support.pairing import Gateway, Operator, Worker, by_hand, exchange, make_worker, refusal, served, wrong


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    async with served(tmp_path) as gateway:
        yield gateway


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    return make_worker(tmp_path)


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
