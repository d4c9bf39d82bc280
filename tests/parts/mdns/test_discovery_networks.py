"""mDNS in network namespaces, with bridges, tunnels, and networks that are joined late; a worker that is paired by it.

Needs root and iproute2 (Debian: `apt-get install iproute2`). The namespaces are the test's own and go with it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from edgespec.shared import models
from edgespec_lab.rig import Rig
from tests.support.namespaces import ip, within

pytestmark = [pytest.mark.live, pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")]


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


def lan(gateway: str, worker: str) -> None:
    """A cable between two machines, each with an address of one network."""
    ip("link", "add", "lan", "netns", gateway, "type", "veth", "peer", "name", "lan", "netns", worker)
    for name, address in ((gateway, "10.3.0.1/24"), (worker, "10.3.0.2/24")):
        ip("-n", name, "address", "add", address, "dev", "lan")
        ip("-n", name, "link", "set", "lan", "up")


def inside(namespace: str, script: str) -> list[str]:
    return ["ip", "netns", "exec", namespace, sys.executable, "-c", script]


def test_bridges_tunnels_and_loopback_are_left_out_on_a_network(namespaces: tuple[str, str]) -> None:
    here, there = namespaces
    script = (
        "from edgespec.parts.mdns.interfaces import interfaces; "
        "print(' '.join(sorted(interface.name for interface in interfaces())))"
    )

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
from edgespec.parts.mdns.advertiser import Advertiser
from edgespec.shared.nearby import Announced
from edgespec.parts.mdns import interfaces
interfaces.POLL_S = 0.2
async def main():
    Advertiser(Announced("gw", b"k" * 32, b"t" * 32, "0.0.0.0", 4001)).start()
    print("started", flush=True)
    await asyncio.sleep(60)
logging.basicConfig(level=logging.INFO)
asyncio.run(main())
"""
BROWSE = """
import asyncio
from edgespec.parts.mdns.browser import Browser
from tests.parts.mdns.browsing import found_by
from edgespec.parts.mdns import interfaces
from edgespec.core.protocol.names import key_id
interfaces.POLL_S = 0.2
async def main():
    browser = Browser()
    await browser.start()
    print("started", flush=True)
    (found,) = await found_by(browser, key_id(b"k" * 32), 40)
    print(found.addresses[0], flush=True)
asyncio.run(main())
"""


@contextmanager
def browsed(gateway: str, worker: str) -> Iterator[IO[str]]:
    """A gateway that announces itself in one namespace, and what a worker in the other one prints that it finds."""
    with (
        subprocess.Popen(inside(gateway, SERVE), stdout=subprocess.PIPE, text=True) as serving,
        subprocess.Popen(inside(worker, BROWSE), stdout=subprocess.PIPE, text=True) as browsing,
    ):
        try:
            assert serving.stdout is not None and browsing.stdout is not None
            assert serving.stdout.readline() == browsing.stdout.readline() == "started\n"
            yield browsing.stdout
        finally:
            serving.terminate()
            browsing.terminate()


def test_a_cable_plugged_in_late_is_noticed_by_both_sides(namespaces: tuple[str, str]) -> None:
    gateway, worker = namespaces
    with browsed(gateway, worker) as found:
        time.sleep(1)
        lan(gateway, worker)
        assert found.readline() == "10.3.0.1:4001\n"


def test_a_worker_that_joins_a_network_asks_who_is_there(namespaces: tuple[str, str]) -> None:
    """The gateway's interface does not change, so that it announces nothing then."""
    gateway, worker = namespaces
    without_ipv6 = "open('/proc/sys/net/ipv6/conf/all/disable_ipv6', 'w').write('1')"
    subprocess.run(inside(gateway, without_ipv6), check=True)  # the carrier would bring an address
    ip("link", "add", "lan", "netns", gateway, "type", "veth", "peer", "name", "lan", "netns", worker)
    ip("-n", gateway, "address", "add", "10.3.0.1/24", "dev", "lan")
    ip("-n", gateway, "link", "set", "lan", "up")
    with browsed(gateway, worker) as found:
        time.sleep(16)  # zeroconf asks at the start, and after 1, 5 and 14 s
        ip("-n", worker, "address", "add", "10.3.0.2/24", "dev", "lan")
        ip("-n", worker, "link", "set", "lan", "up")
        assert found.readline() == "10.3.0.1:4001\n"


TAKEN = """
import asyncio, logging, socket, sys
from edgespec.parts.mdns.advertiser import Advertiser
from edgespec.shared.nearby import Announced
from edgespec.parts.mdns.browser import Browser
from tests.parts.mdns.browsing import found_by
from edgespec.parts.mdns import interfaces
from edgespec.core.protocol.names import key_id
interfaces.POLL_S = 0.2
logging.basicConfig(level=logging.WARNING, stream=sys.stdout, format="%(message)s")
async def main():
    squatter = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    squatter.bind(("", 5353))
    browser = Browser()
    advertiser = Advertiser(Announced("gw", b"k" * 32, b"t" * 32, "127.0.0.1", 4001))
    await browser.start()
    advertiser.start()
    print(await found_by(browser, key_id(b"k" * 32), 1), browser.problem)
    squatter.close()
    print(len(await found_by(browser, key_id(b"k" * 32), 20)), browser.problem)
    await advertiser.close()
    await browser.close()
asyncio.run(main())
"""


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


def test_mdns_pairing_by_code_and_a_remotely_drafted_request(namespaces: tuple[str, str], tmp_path: Path) -> None:
    lan(*namespaces)
    gateway = namespaces[0]
    draft = str(models.quantised())
    run_in = {name: ["ip", "netns", "exec", one] for name, one in zip(("gateway", "worker"), namespaces, strict=True)}
    with Rig(tmp_path, draft, draft, None, exact=True, within=run_in, by_mdns=True) as stage:
        stage.start_gateway()
        stage.create_key()
        stage.pair()
        stage.start_worker()
        prompt = "Name three birds that cannot fly."
        plain = within(gateway, lambda: stage.chat(prompt, 32, policy="plain"))
        remote = within(gateway, lambda: stage.chat(prompt, 32, policy="wanspec", phi=3.0))
        usage = remote["usage"]["edgespec"]
        assert remote["choices"][0]["message"]["content"] == plain["choices"][0]["message"]["content"]
        assert usage["frames"]["used"] > 0 and usage["accepted"]["worker"] > 0
        listed = stage.gateway_command("workers", "list", "--json")["workers"]
        assert [worker["linked"] for worker in listed] == [True]
