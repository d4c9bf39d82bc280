"""mDNS for real: on loopback, and in network namespaces with bridges, tunnels and cables that are plugged in late.

The namespaces need root; the tests on loopback run for anybody.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from zeroconf import ServiceInfo
from zeroconf.asyncio import AsyncZeroconf

from edgespec.core.errors import NoGatewayError, PairingError
from edgespec.core.pairing.exchange import Party
from edgespec.core.protocol.names import key_id
from edgespec.shared import mdns
from edgespec.shared.address import Address
from edgespec.shared.advertise import Advertiser
from edgespec.shared.paired import PairedGateways
from edgespec.worker.addresses import GatewayAddresses
from edgespec.worker.discovery import Browser, find
from edgespec.worker.nearby import pair_nearby
from edgespec.worker.pair import Pairing
from tests.edgespec.worker.test_link import running
from tests.edgespec.worker.test_rogue import rogue
from tests.support.links import Daemon, serving
from tests.support.pairing import Operator, make_worker, served, some_code
from tests.support.until import until

pytestmark = pytest.mark.live
LO = ["lo"]
SPKI = b"t" * 32
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")


@asynccontextmanager
async def announced(key: bytes, port: int, name: str = "live test") -> AsyncIterator[Advertiser]:
    advertiser = Advertiser(name, key, SPKI, "127.0.0.1", port, only=LO)
    advertiser.start()
    try:
        yield advertiser
    finally:
        await advertiser.close()


async def test_a_gateway_is_found_by_its_key_and_gone_when_it_stops() -> None:
    key = os.urandom(32)
    async with announced(key, 4001):
        started = time.monotonic()
        (found,) = await find(15, key_id(key), only=LO)
        assert time.monotonic() - started < 10
        assert (found.addresses, found.key_hash) == ((Address("127.0.0.1", 4001),), key_id(key))
        assert found.name == f"live test {key_id(key)[:6]}"
        assert found in await find(2, only=LO)
    assert await find(1.5, key_id(key), only=LO) == []


async def test_the_browser_follows_gateways_that_come_and_go() -> None:
    one, two = os.urandom(32), os.urandom(32)
    browser = Browser(only=LO)
    await browser.start()
    try:
        assert await browser.wait(key_id(one), 0.2) == []
        async with announced(one, 4001):
            assert len(await browser.wait(key_id(one), 15)) == 1
            async with announced(two, 4002):  # the same name: distinguished by the key
                assert len(await browser.wait(key_id(two), 15)) == 1
                assert len(browser.found(key_id(one))) == 1
            await until(lambda: not browser.found(key_id(two)))
            assert len(browser.found(key_id(one))) == 1
        assert browser.problem is None
    finally:
        await browser.close()


async def test_a_gateway_that_moves_to_another_port_is_found_there() -> None:
    key = os.urandom(32)
    browser = Browser(only=LO)
    await browser.start()
    try:
        for port in (4001, 4002):
            async with announced(key, port):
                await until(lambda: [found.port for found in browser.found(key_id(key))] == [port])  # noqa: B023
    finally:
        await browser.close()


async def test_announcements_of_others_are_left_out() -> None:
    key = key_id(os.urandom(32))
    foreign = ServiceInfo(
        mdns.GATEWAY.service,
        f"foreign {key}.{mdns.GATEWAY.service}",
        parsed_addresses=["127.0.0.1"],
        port=1,
        properties={"v": "9", "kh": key, "path": "/link"},
        server=f"{key}.local.",
    )
    zeroconf = AsyncZeroconf(interfaces=["127.0.0.1"])
    try:
        await zeroconf.async_register_service(foreign)
        assert await find(3, key, only=LO) == []
    finally:
        await zeroconf.async_close()


@asynccontextmanager
async def copied(kh: str, th: bytes, port: int, names: Iterable[str]) -> AsyncIterator[None]:
    """Announcements by somebody else, with any hashes."""
    zeroconf = AsyncZeroconf(interfaces=["127.0.0.1"])
    infos = [
        ServiceInfo(
            mdns.GATEWAY.service,
            f"{name}.{mdns.GATEWAY.service}",
            parsed_addresses=["127.0.0.1"],
            port=port,
            properties={"v": "1", "kh": kh, "th": th.hex(), "path": "/link"},
            server=f"{name.replace(' ', '-')}.local.",
        )
        for name in names
    ]
    try:
        await asyncio.gather(*[zeroconf.async_register_service(info) for info in infos])
        yield
    finally:
        await zeroconf.async_close()


@pytest.mark.parametrize("copies", [True, False])
async def test_a_rogue_advertiser_is_skipped_when_pairing(tmp_path: Path, copies: bool) -> None:
    """One that shows the gateway's own hashes is dialled and left; one that shows its own key is not even dialled."""
    async with served(tmp_path) as gateway, rogue(tmp_path / "rogue") as (machine, address):
        operator, worker = Operator(gateway.desk), make_worker(tmp_path)
        code = await operator.code()
        theirs = os.urandom(32)
        while code.fits(theirs):
            theirs = os.urandom(32)
        shown = (key_id(gateway.key.public), gateway.spki) if copies else (key_id(theirs), theirs)
        real = Advertiser("dept", gateway.key.public, gateway.spki, "127.0.0.1", gateway.address.port, only=LO)
        async with copied(*shown, address.port, ["rogue"]):
            pairing = Pairing(code, Party(worker.key, "lab-7"), worker.gateways)
            task = asyncio.create_task(pair_nearby(pairing, code, Browser(LO), 20))
            await until(lambda: not copies or machine.connections)  # the rogue is first
            real.start()
            stored = await task
            await real.close()
        assert stored.key == gateway.key.public and operator.codes == [str(code)]
        assert machine.connections == int(copies) and not machine.received


async def test_a_network_of_rogues_alone_is_an_error_and_nothing_is_sent(tmp_path: Path) -> None:
    async with rogue(tmp_path / "rogue") as (machine, address):
        worker, code, theirs = make_worker(tmp_path), some_code(b"g" * 32), os.urandom(32)
        while code.fits(theirs):
            theirs = os.urandom(32)
        async with copied(key_id(theirs), theirs, address.port, ["one", "two"]):
            pairing = Pairing(code, Party(worker.key, "lab-7"), worker.gateways)
            with pytest.raises(PairingError, match="mDNS shows 2 gateways on this network, and not the one that shows"):
                await pair_nearby(pairing, code, Browser(LO), 4)
        assert machine.connections == 0
    pairing = Pairing(code, Party(worker.key, "lab-7"), worker.gateways)
    with pytest.raises(NoGatewayError, match="No gateway announced itself by mDNS within 0.5 s"):
        await pair_nearby(pairing, code, Browser(["no-such-interface"]), 0.5)


async def test_a_worker_finds_its_gateway_among_fakes_on_the_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gateway has moved; fakes with its hashes name a machine of another key, and were there before it."""
    monkeypatch.setattr(mdns, "POLL_S", 0.2)
    async with serving(tmp_path) as gateway, rogue(tmp_path / "rogue") as (machine, address):
        kh = key_id(gateway.pin.gateway_key)
        browser = Browser(LO, wanted=kh)
        await browser.start()
        gateways = PairedGateways(tmp_path / "keys")
        gateways.add(gateway.pin.gateway_key, gateway.pin.spki_hash, "gw", "127.0.0.1:9", 1)
        where = GatewayAddresses(gateways, gateway.pin.gateway_key, "", browser)
        real = Advertiser("gw", gateway.pin.gateway_key, gateway.pin.spki_hash, "127.0.0.1", gateway.port, only=LO)
        daemon = Daemon()
        async with copied(kh, gateway.pin.spki_hash, address.port, [f"fake {n}" for n in range(8)]):
            await until(lambda: browser.found(kh))
            async with running(gateway, daemon, where=where.now, failed=where.failed):
                real.start()
                await until(lambda: daemon.link, 30)
                assert daemon.link is not None and daemon.link.address == gateway.address
        await real.close()
        await browser.close()
        assert not machine.received


# --- in namespaces -------------------------------------------------------------------------------------------------


@pytest.fixture
def namespaces() -> Iterator[tuple[str, str]]:
    names = (f"es-d1-{os.getpid()}", f"es-d2-{os.getpid()}")
    for name in names:
        ip("netns", "add", name)
        ip("-n", name, "link", "set", "lo", "up")
    try:
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False)


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


def inside(namespace: str, script: str) -> list[str]:
    return ["ip", "netns", "exec", namespace, sys.executable, "-c", script]


@needs_root
def test_bridges_tunnels_and_loopback_are_left_out_on_a_network(namespaces: tuple[str, str]) -> None:
    here, there = namespaces
    script = "from edgespec.shared import mdns; print(' '.join(sorted(one.name for one in mdns.interfaces())))"

    def chosen() -> str:
        return subprocess.run(inside(here, script), check=True, capture_output=True, text=True).stdout.strip()

    def up(device: str, address: str) -> None:
        ip("-n", here, "address", "add", address, "dev", device)
        ip("-n", here, "link", "set", device, "up")

    assert chosen() == "lo"
    ip("-n", here, "link", "add", "br0", "type", "bridge")
    up("br0", "10.1.0.1/24")
    ip("-n", here, "link", "add", "docker0", "type", "bridge")
    up("docker0", "172.17.0.1/16")
    ip("-n", here, "tuntap", "add", "corp", "mode", "tun")
    up("corp", "10.2.0.1/24")
    assert chosen() == "lo"
    ip("link", "add", "lan", "netns", here, "type", "veth", "peer", "name", "lan", "netns", there)
    ip("-n", there, "link", "set", "lan", "up")
    up("lan", "10.3.0.1/24")
    assert chosen() == "lan"
    ip("-n", here, "link", "add", "wg-like", "type", "veth", "peer", "name", "other")
    up("wg-like", "10.4.0.1/24")
    assert chosen() == "lan"
    ip("-n", here, "link", "set", "lan", "down")
    assert chosen() == "lo"


SERVE = """
import asyncio, logging
from edgespec.shared.advertise import Advertiser
from edgespec.shared import mdns
mdns.POLL_S = 0.2
async def main():
    Advertiser("gw", b"k" * 32, b"t" * 32, "0.0.0.0", 4001).start()
    print("started", flush=True)
    await asyncio.sleep(60)
logging.basicConfig(level=logging.INFO)
asyncio.run(main())
"""
BROWSE = """
import asyncio
from edgespec.worker.discovery import Browser
from edgespec.shared import mdns
from edgespec.core.protocol.names import key_id
mdns.POLL_S = 0.2
async def main():
    browser = Browser()
    await browser.start()
    print("started", flush=True)
    (found,) = await browser.wait(key_id(b"k" * 32), 40)
    print(found.addresses[0], flush=True)
asyncio.run(main())
"""


@needs_root
def test_a_cable_plugged_in_late_is_noticed_by_both_sides(namespaces: tuple[str, str]) -> None:
    gateway, worker = namespaces
    with (
        subprocess.Popen(inside(gateway, SERVE), stdout=subprocess.PIPE, text=True) as serving,
        subprocess.Popen(inside(worker, BROWSE), stdout=subprocess.PIPE, text=True) as browsing,
    ):
        try:
            assert serving.stdout is not None and browsing.stdout is not None
            assert serving.stdout.readline() == browsing.stdout.readline() == "started\n"
            time.sleep(1)
            ip("link", "add", "lan", "netns", gateway, "type", "veth", "peer", "name", "lan", "netns", worker)
            for name, address in ((gateway, "10.3.0.1/24"), (worker, "10.3.0.2/24")):
                ip("-n", name, "address", "add", address, "dev", "lan")
                ip("-n", name, "link", "set", "lan", "up")
            assert browsing.stdout.readline() == "10.3.0.1:4001\n"
        finally:
            serving.terminate()
            browsing.terminate()


TAKEN = """
import asyncio, logging, socket, sys
from edgespec.shared.advertise import Advertiser
from edgespec.worker.discovery import Browser
from edgespec.shared import mdns
from edgespec.core.protocol.names import key_id
mdns.POLL_S = 0.2
logging.basicConfig(level=logging.WARNING, stream=sys.stdout, format="%(message)s")
async def main():
    squatter = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    squatter.bind(("", 5353))
    browser, advertiser = Browser(), Advertiser("gw", b"k" * 32, b"t" * 32, "127.0.0.1", 4001)
    await browser.start()
    advertiser.start()
    print(await browser.wait(key_id(b"k" * 32), 1), browser.problem)
    squatter.close()
    print(len(await browser.wait(key_id(b"k" * 32), 20)), browser.problem)
    await advertiser.close()
    await browser.close()
asyncio.run(main())
"""


@needs_root
def test_a_taken_port_is_a_warning_and_everything_works_once_it_is_free(namespaces: tuple[str, str]) -> None:
    done = subprocess.run(inside(namespaces[0], TAKEN), check=True, capture_output=True, text=True, timeout=60)
    lines = done.stdout.splitlines()
    assert "[] Address already in use" in lines
    assert lines[-1] == "1 None"
    warnings = [line for line in lines if line.startswith("mDNS does not work (Address already in use)")]
    assert any("set `gateway.address` in worker.toml" in line for line in warnings)
    assert any("edgespec pair wss://HOST:4001 CODE" in line for line in warnings)
    assert len(warnings) == 2
    assert "Traceback" not in done.stdout + done.stderr
