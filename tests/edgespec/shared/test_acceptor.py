"""The accept loop and callers over real sockets: bounds before TLS, places for new connections, lack of descriptors."""

from __future__ import annotations

import asyncio
import logging
import socket
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from edgespec.core.admission import AdmissionLimits
from edgespec.shared.acceptor import Acceptor, AdmittedConnection, connected
from edgespec.shared.address import Address
from edgespec.shared.tls import client_context
from tests.support.links import make_certificate
from tests.support.sockets import dial
from tests.support.until import until
from tools.doubles.limits import link_limits

LOG = logging.getLogger("tests.acceptor")
FEW = link_limits(total=16, unproven=8, unproven_per_source=3, rate_per_s=1000.0, burst=1000)


class Echo(asyncio.Protocol):
    """Sends back what comes, and `ok` for `key` once the connection is proven."""

    def __init__(self, admitted: AdmittedConnection) -> None:
        self._admitted = admitted

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if data == b"key":
            data = b"ok" if self._admitted.proven() else b"no"
        self._transport.write(data)


@asynccontextmanager
async def accepting(limits: AdmissionLimits, **options: Any) -> AsyncIterator[tuple[Acceptor, int, list[str]]]:
    refused: list[str] = []
    acceptor = Acceptor("test port", limits, LOG, refused.append)
    port = await acceptor.start("127.0.0.1", 0, Echo, **options)
    try:
        yield acceptor, port, refused
    finally:
        acceptor.close()
        for admitted in list(acceptor._connections.values()):
            admitted.drop()
        await until(lambda: not acceptor._connections)
        await acceptor.wait_closed()


async def says(sock: socket.socket, data: bytes) -> bytes:
    """The reply to `data`; nothing if the other side has hung up."""
    loop = asyncio.get_running_loop()
    sock.setblocking(False)
    try:
        async with asyncio.timeout(5):
            await loop.sock_sendall(sock, data)
            return await loop.sock_recv(sock, 100)
    except (ConnectionError, BrokenPipeError):
        return b""


async def ended(sock: socket.socket) -> None:
    """Reads until the other side has hung up."""
    sock.setblocking(False)
    with suppress(ConnectionError):
        async with asyncio.timeout(10):
            while await asyncio.get_running_loop().sock_recv(sock, 100):
                pass


@pytest.mark.claim("a-newcomer-gets-in-though-one-source-holds-its-share")
async def test_a_newcomer_gets_in_though_one_source_holds_its_share() -> None:
    async with accepting(FEW) as (acceptor, port, refused):
        with ExitStack() as stack:
            flood = [stack.enter_context(dial(port)) for _ in range(20)]
            other = stack.enter_context(dial(port, "127.0.0.2"))
            assert await says(other, b"key") == b"ok"
            assert acceptor.admission.unproven == 3 and refused == ["busy"] * 17
            assert [await says(sock, b"hello") for sock in flood[-3:]] == [b"hello"] * 3
            assert await says(flood[0], b"hello") == b""


@pytest.mark.claim("a-stalled-handshake")
async def test_connections_count_from_accept_on_not_from_the_end_of_tls(tmp_path: Path) -> None:
    context, _ = make_certificate(tmp_path)
    async with accepting(FEW, ssl=context) as (acceptor, port, refused):
        with ExitStack() as stack:
            for n in range(12):  # TCP only: no byte of a TLS handshake
                stack.enter_context(dial(port, f"127.0.0.{n + 1}"))
            await until(lambda: len(refused) == 4)
            assert acceptor.admission.unproven == FEW.unproven
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, ssl=client_context(), local_addr=("127.0.0.99", 0)
            )
            writer.write(b"key")
            assert await asyncio.wait_for(reader.read(100), 20) == b"ok"
            writer.close()


async def test_a_stalled_tls_handshake_ends_after_its_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    context, _ = make_certificate(tmp_path)
    async with accepting(FEW, ssl=context, handshake_s=0.1) as (acceptor, port, _):
        with dial(port) as silent, dial(port) as wrong:
            wrong.sendall(b"GET / HTTP/1.1\r\n\r\n")
            for sock in (wrong, silent):
                await ended(sock)
            await until(lambda: acceptor.admission.total == 0)
    assert caplog.text == ""


async def test_refusals_are_one_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    limits = link_limits(rate_per_s=0.001, burst=2)
    async with accepting(limits) as (_, port, refused):
        for _ in range(200):
            dial(port).close()
        await until(lambda: len(refused) == 198)
    assert set(refused) == {"rate"}
    assert [record.getMessage() for record in caplog.records] == [
        "test port: connection refused: 127.0.0.1 opens too many connections (rate)"
    ]


SCARCE = """
import asyncio, logging, os, resource, sys, time
from edgespec.shared.acceptor import Acceptor
from edgespec.core.admission import AdmissionLimits

class Echo(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.transport.write(data)

async def main():
    logging.basicConfig(level=logging.DEBUG)
    limits = AdmissionLimits(1024, 900, 900, rate_per_s=1e6, burst=10**6)
    acceptor = Acceptor("test port", limits, logging.getLogger("a"))
    port = await acceptor.start("127.0.0.1", 0, lambda admitted: Echo())
    resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
    print(port, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    began = time.process_time()
    await asyncio.sleep(0.5)
    print(time.process_time() - began, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)

asyncio.run(main())
"""


@pytest.mark.claim("want-of-descriptors-costs-one-line-and-no-busy-loop")
async def test_want_of_descriptors_costs_one_line_and_no_busy_loop() -> None:
    """The kernel's queue of connections stays full all the time: the listening socket is readable, `accept` fails."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SCARCE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert child.stdin is not None and child.stdout is not None
    with ExitStack() as stack:
        stack.callback(lambda: child.kill() if child.returncode is None else None)
        port = int(await child.stdout.readline())
        for _ in range(110):
            stack.enter_context(dial(port))
        child.stdin.write(b"\n")
        cpu_s = float(await asyncio.wait_for(child.stdout.readline(), 20))
        last = stack.enter_context(dial(port))
        assert await asyncio.to_thread(_echoed, last)  # those in front of it are dropped one after another
        child.stdin.close()
        _, log = await asyncio.wait_for(child.communicate(), 20)
    lines = sorted(line.rsplit(": ", 1)[-1] for line in log.decode().splitlines() if "selector" not in line)
    assert cpu_s < 0.25 and len(lines) == 2  # asyncio's own accept loop logs a traceback for each failed call
    assert lines[1] == "no connection can be accepted (Too many open files)"


def _echoed(sock: socket.socket) -> bool:
    sock.settimeout(10)
    sock.sendall(b"hello")
    return sock.recv(100) == b"hello"


def test_the_limit_of_open_files_is_raised_as_far_as_it_may() -> None:
    script = textwrap.dedent(
        """
        import resource
        from edgespec.shared.acceptor import raise_descriptor_limit
        hard = min(2048, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        print(raise_descriptor_limit() == resource.getrlimit(resource.RLIMIT_NOFILE)[0] == hard)
        """
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def resolved(monkeypatch: pytest.MonkeyPatch, *ports: int) -> Address:
    """A name with an address for each port: which addresses this machine's own names have is not known here."""

    async def getaddrinfo(*args: Any, **options: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)) for port in ports]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    return Address("relay.example", 1)


async def test_the_next_address_of_a_name_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        where = resolved(monkeypatch, 1, server.getsockname()[1])
        with await connected(where) as sock:
            assert sock.getpeername() == server.getsockname()


async def test_a_name_at_which_nothing_listens_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    where = resolved(monkeypatch, 1, 1)
    with pytest.raises(ConnectionRefusedError):
        await connected(where)
