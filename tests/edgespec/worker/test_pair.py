"""Pairing at the worker, over real TLS WebSockets: which gateway it accepts among others, errors, what it stores."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve

from edgespec.core.errors import KeyStoreError, NoGatewayError, PairingError
from edgespec.core.pairing.exchange import Party
from edgespec.core.pairing.messages import PairingFailed, Reason, Refused, Reply
from edgespec.core.protocol.messages import VERSION, encode
from edgespec.shared.address import Address
from edgespec.shared.server_keys import ServerKeyStore
from edgespec.worker.dial import Race
from edgespec.worker.pair import MAX_ADDRESSES, pair
from tests.support.pairing import Gateway, Operator, Worker, make_worker, refusal, served, some_code
from tests.support.sockets import reserved
from tests.support.until import until


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
            await pair(code, Party(worker.key, "lab-7"), worker.gateways.add, [nobody])
    assert error.value.exit_code == 69
    with pytest.raises(NoGatewayError, match="can be reached at no.such.host.invalid:7443"):
        await pair(code, Party(worker.key, "lab-7"), worker.gateways.add, [Address("no.such.host.invalid")])
    with pytest.raises(NoGatewayError, match="No address of a gateway was given"):
        await pair(code, Party(worker.key, "lab-7"), worker.gateways.add, [])

    async def chat(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(chat, "127.0.0.1", 0) as other:
        address = Address("127.0.0.1", other.sockets[0].getsockname()[1])
        with pytest.raises(NoGatewayError, match="is not an edgespec gateway; check host and port"):
            await pair(code, Party(worker.key, "lab-7"), worker.gateways.add, [address])

    operator = Operator(gateway.desk)  # the second address is tried, and the first costs no code
    await pair(await operator.code(), Party(worker.key, "lab-7"), worker.gateways.add, [nobody, gateway.address])


async def test_of_several_gateways_the_one_that_waits_is_paired(
    gateway: Gateway, worker: Worker, tmp_path: Path
) -> None:
    async with served(tmp_path / "idle") as idle:
        operator = Operator(gateway.desk)
        both = [idle.address, gateway.address]
        stored = await pair(await operator.code(), Party(worker.key, "lab-7"), worker.gateways.add, both)
        assert stored.key == gateway.key.public
        with pytest.raises(PairingFailed, match="not waiting for a worker"):
            await pair(some_code(gateway.spki), Party(worker.key, "lab-7"), worker.gateways.add, both)


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
            await pair(some_code(tls.spki_hash), Party(worker.key, "lab-7"), worker.gateways.add, [address])
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
            await pair(some_code(tls.spki_hash), Party(worker.key, "lab-7"), worker.gateways.add, [address])


class Rogue:
    """A machine with a TLS key of its own, which keeps every byte that it gets after the TLS handshake."""

    def __init__(self, spki: bytes) -> None:
        self.spki = spki
        self.received = bytearray()
        self.connections = 0

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        while data := await reader.read(4096):
            self.received += data
        writer.close()


@asynccontextmanager
async def rogue(folder: Path) -> AsyncIterator[tuple[Rogue, Address]]:
    tls = ServerKeyStore(folder).tls_identity()
    machine = Rogue(tls.spki_hash)
    async with await asyncio.start_server(machine.talk, "127.0.0.1", 0, ssl=tls.context()) as server:
        yield machine, Address("127.0.0.1", server.sockets[0].getsockname()[1])


@pytest.mark.claim("a-rogue-gateway-first-in-line-is-skipped-and-gets-nothing")
async def test_a_rogue_gateway_first_in_line_is_skipped_and_gets_nothing(
    gateway: Gateway, worker: Worker, tmp_path: Path
) -> None:
    operator = Operator(gateway.desk)
    code = await operator.code()
    async with rogue(tmp_path / "rogue") as (machine, address):
        stored = await pair(code, Party(worker.key, "lab-7"), worker.gateways.add, [address, gateway.address])
        await operator.done
        await until(lambda: machine.connections)
    assert stored.key == gateway.key.public
    assert machine.connections == 1 and not machine.received  # no name, no key, no nameplate; not even HTTP
    assert operator.codes == [str(code)]


async def test_a_rogue_alone_is_named_and_the_code_stays_good(gateway: Gateway, worker: Worker, tmp_path: Path) -> None:
    operator = Operator(gateway.desk)
    code = await operator.code()
    async with rogue(tmp_path / "rogue") as (machine, address):
        with pytest.raises(
            PairingError, match=f"at {address} is not the one that shows this code, so nothing was sent"
        ):
            await pair(code, Party(worker.key, "lab-7"), worker.gateways.add, [address])
        assert not machine.received
        nobody = Address("127.0.0.1", 9)
        with pytest.raises(PairingError, match=f"at {address} is not the one .* can be reached at {nobody} "):
            await pair(code, Party(worker.key, "lab-7"), worker.gateways.add, [address, nobody])
    await worker.pair(gateway, code)


async def test_only_so_many_machines_are_dialled_for_one_code(worker: Worker, tmp_path: Path) -> None:
    async with AsyncExitStack() as opened:
        machines = [await opened.enter_async_context(rogue(tmp_path / str(n))) for n in range(MAX_ADDRESSES + 3)]
        addresses = [address for _, address in machines]
        codes = (some_code(bytes(32), nameplate) for nameplate in range(4821, 4900))
        code = next(code for code in codes if not any(code.fits(machine.spki) for machine, _ in machines))
        with pytest.raises(PairingError):
            await pair(code, Party(worker.key, "lab-7"), worker.gateways.add, addresses)
        await until(lambda: sum(machine.connections for machine, _ in machines) >= MAX_ADDRESSES)
    assert sum(machine.connections for machine, _ in machines) == MAX_ADDRESSES
    assert not any(machine.received for machine, _ in machines)


@pytest.mark.parametrize(
    ("reason", "times"), [(Reason.CODE, 1), (Reason.KEY, 1), (Reason.BUSY, 4), (Reason.DELAYED, 4)]
)
async def test_a_gateway_is_asked_again_only_when_it_had_no_time(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: Reason, times: int
) -> None:
    """Two addresses of one gateway count as one, so that one code is not tried twice."""
    monkeypatch.setattr("edgespec.worker.pair.RETRIES_S", (0.01, 0.01, 0.01))
    tls = ServerKeyStore(tmp_path / "gateway").tls_identity()
    asked = []
    arrived = list[int]()
    made = ServerConnection.connection_made
    monkeypatch.setattr(ServerConnection, "connection_made", lambda *of: arrived.append(1) or made(*of))

    async def refuse(ws: Any) -> None:
        asked.append(await ws.recv())
        await until(lambda: len(arrived) >= 2)  # at both addresses, of which the second waits for its turn
        await ws.send(encode(Refused(reason)))

    async with (
        serve(refuse, "127.0.0.1", 0, ssl=tls.context()) as one,
        serve(refuse, "127.0.0.1", 0, ssl=tls.context()) as two,
    ):
        addresses = [Address("127.0.0.1", next(iter(server.sockets)).getsockname()[1]) for server in (one, two)]
        with pytest.raises(PairingFailed, match=f"Pairing failed at {addresses[0]}: ") as failure:
            await pair(some_code(tls.spki_hash), Party(worker.key, "lab-7"), worker.gateways.add, addresses)
    assert (failure.value.reason, len(asked)) == (reason, times)


@pytest.mark.claim("a-rogue-gateway-first-in-line-is-skipped-and-gets-nothing")
async def test_a_gateway_that_falls_silent_is_left_for_the_next_address(
    gateway: Gateway, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relay can delay what it forwards; another address of the same gateway is then tried."""
    monkeypatch.setattr("edgespec.worker.pair.Race", lambda: Race(stagger_s=3600))
    monkeypatch.setattr("edgespec.worker.pair.STEP_S", 2.5)
    monkeypatch.setattr("edgespec.core.pairing.window.PARKED_S", 0.1)
    operator = Operator(gateway.desk)
    code = await operator.code()
    passed = 0

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(gateway.address.host, gateway.address.port)

        async def up() -> None:
            while data := await reader.read(4096):
                far_writer.write(data)
            far_writer.close()

        async def down() -> None:
            nonlocal passed
            while data := await far_reader.read(4096):
                passed += 1
                if passed <= 2:  # TLS and the upgrade; no answer to pair-start
                    writer.write(data)
                else:  # the wait for this answer has begun; a busy machine may need longer at the next address
                    monkeypatch.setattr("edgespec.worker.pair.STEP_S", 20.0)

        await asyncio.gather(up(), down())
        writer.close()

    async with await asyncio.start_server(relay, "127.0.0.1", 0) as server:
        address = Address("127.0.0.1", server.sockets[0].getsockname()[1])
        stored = await pair(code, Party(worker.key, "lab-7"), worker.gateways.add, [address, gateway.address])
    assert passed > 2 and stored.address == str(gateway.address)
    assert operator.codes == [str(code)]


# --- the race itself -------------------------------------------------------------------------------------------------


async def run(race: Race, *attempts: Callable[[], Any]) -> float:
    began = asyncio.get_running_loop().time()
    await race.run(attempts)
    return asyncio.get_running_loop().time() - began


async def test_the_next_attempt_starts_when_one_ends_or_the_stagger_is_over() -> None:
    race = Race(stagger_s=30.0)
    started = list[int]()

    async def ends(number: int) -> None:
        started.append(number)

    assert await run(race, *[lambda n=n: ends(n) for n in range(5)]) < 5
    assert started == [0, 1, 2, 3, 4]


async def test_a_settled_race_ends_its_losers_and_starts_no_more() -> None:
    race = Race(stagger_s=0.01)
    ended = list[str]()
    started = list[str]()

    async def hangs() -> None:
        started.append("loser")
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append("loser")

    async def wins() -> None:
        race.settle(asyncio.current_task())
        await asyncio.sleep(0.05)
        ended.append("winner")

    await run(race, hangs, hangs, wins, hangs)
    assert started == ["loser", "loser"] and ended == ["loser", "loser", "winner"]


async def test_what_an_attempt_raises_ends_the_race() -> None:
    race = Race(stagger_s=0.01)

    async def raises() -> None:
        raise PairingError("no")

    with pytest.raises(PairingError):
        await run(race, lambda: asyncio.sleep(3600), raises, lambda: asyncio.sleep(3600))
