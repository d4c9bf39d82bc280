"""Two machines stood in by two network namespaces: found by mDNS, paired by code, drafting for each other's network.

Needs root and iproute2 (Debian: `apt-get install iproute2`). The namespaces are the test's own and go with it.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from edgespec import models
from edgespec.demo.stage import Stage

pytestmark = pytest.mark.live
T = TypeVar("T")
GATEWAY, WORKER = f"es-gw-{os.getpid()}", f"es-wk-{os.getpid()}"
CLONE_NEWNET = 0x40000000


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


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


def within(namespace: str, work: Callable[[], T]) -> T:
    """Runs `work` in a thread of its own that has moved to the namespace."""
    results: list[T] = []

    def moved() -> None:
        with Path(f"/run/netns/{namespace}").open() as file:
            if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
        results.append(work())

    thread = threading.Thread(target=moved)
    thread.start()
    thread.join()
    assert results, "see the thread's error above"
    return results[0]


def test_mdns_pairing_by_code_and_a_remotely_drafted_request(two_machines: None, tmp_path: Path) -> None:
    draft = str(models.quantised())
    run_in = {"gateway": ["ip", "netns", "exec", GATEWAY], "worker": ["ip", "netns", "exec", WORKER]}
    with Stage(tmp_path, draft, draft, None, dtype="float32", within=run_in, by_mdns=True) as stage:
        stage.start_gateway()
        stage.create_key()
        stage.pair()
        stage.start_worker()
        prompt = "Name three birds that cannot fly."
        plain = within(GATEWAY, lambda: stage.chat(prompt, 32, policy="plain"))
        remote = within(GATEWAY, lambda: stage.chat(prompt, 32, policy="wanspec", phi=3.0))
        usage = remote["usage"]["edgespec"]
        assert remote["choices"][0]["message"]["content"] == plain["choices"][0]["message"]["content"]
        assert usage["frames"]["used"] > 0 and usage["accepted"]["worker"] > 0
        listed = stage.gateway_command("workers", "list", "--json")["workers"]
        assert [worker["linked"] for worker in listed] == [True]
