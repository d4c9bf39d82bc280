"""The addresses of the paired gateway: through another machine, over real sockets and TLS, and none at all."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from edgespec.core.errors import NoGatewayError, RemoteProtocolError
from edgespec.core.pairing.exchange import Party
from edgespec.shared.address import Address, Tunnelled
from edgespec.shared.keystore import KeyStore
from edgespec.shared.nearby import ALONE, GATEWAY
from edgespec.shared.paired import PairedGateways
from edgespec.worker import commands
from edgespec.worker.dial import GatewayAddresses
from tests.edgespec.worker.test_link import Sleeps, running
from tests.support.links import GATEWAY_KEY, Daemon, serving
from tests.support.pairing import some_code
from tests.support.services import service_of
from tests.support.until import until

KEY = GATEWAY_KEY.public


def paired(folder: Path, address: Address | None) -> PairedGateways:
    gateways = PairedGateways(folder / "keys")
    gateways.add(KEY, bytes(32), "gw", str(address) if address else "", 1)
    return gateways


async def test_a_worker_links_through_another_machine_that_a_part_knows(tmp_path: Path) -> None:
    """`failed` of that way is called when the link over it has ended, and its address is not stored."""
    failures = 0

    def failed() -> None:
        nonlocal failures
        failures += 1

    async with serving(tmp_path) as gateway:

        async def connect() -> socket.socket:
            sock = socket.socket()
            sock.setblocking(False)
            await asyncio.get_running_loop().sock_connect(sock, (gateway.address.host, gateway.address.port))
            return sock

        async def ways() -> Sequence[Tunnelled]:
            return [Tunnelled("127.0.0.1", 9, "desk-2", connect=connect, failed=failed)]

        gateways = paired(tmp_path, Address("127.0.0.1", 9))
        where = GatewayAddresses(gateways, KEY, "", None, ways)
        daemon = Daemon()
        async with running(gateway, daemon, where=where.now, failed=where.failed, sleep=Sleeps()):
            await until(lambda: daemon.link, 30)
            assert daemon.link is not None
            assert str(daemon.link.address) == "127.0.0.1:9 (relay desk-2)" and failures == 0
            where.reached(daemon.link.address)
            daemon.link.end(RemoteProtocolError("unexpected", "to end it"))
            await until(lambda: failures, 30)
        stored = gateways.get(KEY)
        assert stored is not None and stored.address == "127.0.0.1:9"


def test_a_code_alone_pairs_nowhere_if_nothing_searches(tmp_path: Path) -> None:
    store = KeyStore(tmp_path)
    me = Party(store.identity(), "lab-7")
    with pytest.raises(NoGatewayError, match="give the address, `edgespec pair ADDRESS CODE`") as error:
        commands.pair_at(some_code(bytes(32)), me, PairedGateways(store.folder).add, None, ALONE, GATEWAY)
    assert error.value.exit_code == 69


async def test_a_worker_without_an_address_and_a_search_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Pairing through a peer that has gone leaves such a worker."""
    PairedGateways(KeyStore(tmp_path / "state").folder).add(KEY, bytes(32), "gw", "", 1)
    async with service_of(tmp_path):
        await until(lambda: "no address of gateway gw is known and nothing searches for it" in caplog.text)
