"""Floods against a whole gateway process: another client, the commands and the metrics are served on."""

from __future__ import annotations

import contextlib
import json
import socket
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.test_gateway_live import Running, gateway

pytestmark = pytest.mark.live
LIMITED = ("sh", "-c", 'ulimit -n 300; exec "$0" "$@"')
SHORT_S = 20.0
"""For a request of three tokens or a command, on a busy machine."""


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[Running]:
    with gateway(tmp_path, within=LIMITED) as started:
        started.wait_ready()
        yield started


@contextlib.contextmanager
def half_open(port: int, count: int, sent: bytes) -> Iterator[list[socket.socket]]:
    """So many connections that have sent the beginning of something."""
    with contextlib.ExitStack() as closing:
        opened = []
        for _ in range(count):
            sock = closing.enter_context(socket.create_connection(("127.0.0.1", port), timeout=SHORT_S))
            with contextlib.suppress(OSError):
                sock.sendall(sent)
            opened.append(sock)
        yield opened


@pytest.mark.claim("with-300-file-descriptors-half-open-connections-deny-nothing")
def test_with_300_file_descriptors_half_open_connections_deny_nothing(limited: Running) -> None:
    key = json.loads(limited.command("keys", "create", "--json"))["key"]
    ready = limited.ready
    slow = b"POST /v1/chat/completions HTTP/1.1\r\nX-Slow: "
    with (
        half_open(ready["api"]["port"], 400, slow),
        half_open(ready["link"]["port"], 400, b"\x16"),
        half_open(ready["metrics"]["port"], 100, b"GET /"),
        limited.client(key) as client,
    ):
        began = time.monotonic()
        assert client.completions.create(model="tiny", prompt="hello", max_tokens=3).choices
        assert json.loads(limited.command("status", "--json"))["state"] == "serving"
        assert "No worker is paired" in limited.command("workers", "list")
        with urllib.request.urlopen(ready["metrics"]["url"] + "/metrics", timeout=SHORT_S) as response:
            assert response.status == 200
        assert time.monotonic() - began < 3 * SHORT_S
    _, _, log = limited.end()
    assert len(log) < 10_000 and "Traceback" not in log, log[:2000]
