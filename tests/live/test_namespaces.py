"""Two machines stood in by two network namespaces: found by mDNS, paired by code, drafting for each other's network.

Needs root and iproute2 (Debian: `apt-get install iproute2`). The namespaces are the test's own and go with it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from edgespec.core.protocol.names import key_id
from edgespec.lab.rig import Rig
from edgespec.shared import models
from edgespec.shared.server_keys import ServerKeyStore
from tests.support.campus import ip, within

pytestmark = pytest.mark.live
GATEWAY, WORKER = f"es-gw-{os.getpid()}", f"es-wk-{os.getpid()}"


@pytest.fixture(scope="module")
def two_machines() -> Iterator[None]:
    """Two namespaces with a veth pair between them, multicast routed."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.fail("this test needs root and the command `ip` (apt-get install iproute2)")
    for name in (GATEWAY, WORKER):
        ip("netns", "add", name)
    try:
        ip("link", "add", "veth0", "netns", GATEWAY, "type", "veth", "peer", "name", "veth0", "netns", WORKER)
        for name, device, address in ((GATEWAY, "veth0", "10.77.0.1/24"), (WORKER, "veth0", "10.77.0.2/24")):
            ip("-n", name, "address", "add", address, "dev", device)
            ip("-n", name, "link", "set", device, "up")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "route", "add", "224.0.0.0/4", "dev", device)
        yield
    finally:
        for name in (GATEWAY, WORKER):
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


ROGUE = """
import asyncio, socket, sys
from pathlib import Path
from zeroconf import ServiceInfo
from zeroconf.asyncio import AsyncZeroconf
from edgespec.worker.discovery import find
from edgespec.shared import mdns
from edgespec.shared.server_keys import ServerKeyStore
from tests.support.campus import ip, within
async def listen(reader, writer):
    print("connected", flush=True)
    while data := await reader.read(4096):
        print("received", len(data), flush=True)
async def main():
    (real,) = await find(20, sys.argv[2])
    tls = ServerKeyStore(Path(sys.argv[1])).tls_identity()
    server = await asyncio.start_server(listen, "10.77.0.1", 0, ssl=tls.context())
    properties = {"v": "1", "kh": real.key_hash, "th": real.tls_hash.hex(), "path": "/link"}
    info = ServiceInfo(
        mdns.GATEWAY.service, "a." + mdns.GATEWAY.service, parsed_addresses=["10.77.0.1"],
        port=server.sockets[0].getsockname()[1], properties=properties, server="rogue.local.",
    )
    await AsyncZeroconf(interfaces=["10.77.0.1"]).async_register_service(info)
    print("announced", flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


@contextmanager
def rogue(folder: Path, key_hash: str) -> Iterator[list[str]]:
    """A machine with another TLS key that announces the gateway's hashes; gives the lines that it prints."""
    lines: list[str] = []
    command = ["ip", "netns", "exec", GATEWAY, sys.executable, "-c", ROGUE, str(folder), key_hash]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "announced\n"
        reading = threading.Thread(target=lambda: lines.extend(process.stdout or ()))
        reading.start()
        try:
            yield lines
        finally:
            process.terminate()
            reading.join()


def test_mdns_pairing_by_code_and_a_remotely_drafted_request(two_machines: None, tmp_path: Path) -> None:
    draft = str(models.quantised())
    run_in = {"gateway": ["ip", "netns", "exec", GATEWAY], "worker": ["ip", "netns", "exec", WORKER]}
    with Rig(tmp_path, draft, draft, None, dtype="float32", within=run_in, by_mdns=True) as stage:
        stage.start_gateway()
        stage.create_key()
        identity = ServerKeyStore(tmp_path / "gateway").identity()
        with rogue(tmp_path / "rogue", key_id(identity.public)) as lines:
            stage.pair()
            stage.start_worker()
        assert not any("received" in line for line in lines)  # it may have been dialled
        prompt = "Name three birds that cannot fly."
        plain = within(GATEWAY, lambda: stage.chat(prompt, 32, policy="plain"))
        remote = within(GATEWAY, lambda: stage.chat(prompt, 32, policy="wanspec", phi=3.0))
        usage = remote["usage"]["edgespec"]
        assert remote["choices"][0]["message"]["content"] == plain["choices"][0]["message"]["content"]
        assert usage["frames"]["used"] > 0 and usage["accepted"]["worker"] > 0
        listed = stage.gateway_command("workers", "list", "--json")["workers"]
        assert [worker["linked"] for worker in listed] == [True]
