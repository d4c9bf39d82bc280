"""A process that attacks a link port without a key.

`python -m tests.parts.flood_guard.flooder KIND PORT SECONDS CONNECTIONS`
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Mapping

from edgespec.shared.tls import client_context
from tests.support.floods import frame
from tests.support.sockets import dial

_UPGRADE = (
    b"GET /link HTTP/1.1\r\nHost: gateway\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


def _tls(port: int) -> ssl.SSLSocket:
    return client_context().wrap_socket(dial(port))


def _upgraded(port: int) -> ssl.SSLSocket:
    sock = _tls(port)
    sock.sendall(_UPGRADE)
    sock.recv(4096)
    return sock


def _pings(port: int, until: float) -> None:
    with _upgraded(port) as sock:
        while time.monotonic() < until:
            sock.sendall(frame(9) * 10_000)


def _records(port: int, until: float) -> None:
    with _upgraded(port) as sock:
        sock.sendall(bytes([0x82, 0xFE, 0xEA, 0x60]) + bytes(4))
        for _ in range(60_000):
            sock.send(b"x")


def _hold(port: int, until: float) -> None:
    _held.append(dial(port))


_held: list[socket.socket] = []
KINDS: Mapping[str, Callable[[int, float], None]] = {
    "pings": _pings,
    "records": _records,
    "handshakes": lambda port, until: _tls(port).close(),
    "connections": _hold,
}


def _attack(kind: str, port: int, until: float) -> None:
    while time.monotonic() < until:
        with contextlib.suppress(OSError):
            KINDS[kind](port, until)


if __name__ == "__main__":
    until = time.monotonic() + float(sys.argv[3])
    for _ in range(int(sys.argv[4])):
        threading.Thread(target=_attack, args=(sys.argv[1], int(sys.argv[2]), until)).start()
