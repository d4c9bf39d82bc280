"""The accept loop over real sockets: bounds before TLS, places for new connections, lack of descriptors."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import textwrap
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from edgespec.shared.acceptor import (
    RESERVED_DESCRIPTORS,
    share_descriptors,
)
from edgespec.shared.address import source_of
from edgespec.shared.guards import PortBounds
from edgespec.shared.tls import client_context
from tests.support.links import make_certificate
from tests.support.ports import accepting, says
from tests.support.sockets import dial
from tests.support.until import until

FEW = PortBounds(total=16, unproven=8)


async def ended(sock: socket.socket) -> None:
    """Reads until the other side has hung up."""
    sock.setblocking(False)
    with suppress(ConnectionError):
        async with asyncio.timeout(10):
            while await asyncio.get_running_loop().sock_recv(sock, 100):
                pass


@pytest.mark.claim("strangers-never-take-the-places-of-proven-connections")
async def test_a_newcomer_takes_the_place_of_the_oldest_that_has_proven_nothing() -> None:
    async with accepting(FEW) as (acceptor, port, refused):
        with ExitStack() as stack:
            honest = stack.enter_context(dial(port))
            assert await says(honest, b"key") == b"ok"
            flood = [stack.enter_context(dial(port)) for _ in range(20)]
            other = stack.enter_context(dial(port, "127.0.0.2"))
            assert await says(other, b"key") == b"ok"
            assert len(acceptor.unproven) == FEW.unproven - 1 and refused == ["busy"] * 13
            assert await says(flood[0], b"hello") == b""
            assert await says(flood[-1], b"hello") == await says(honest, b"hello") == b"hello"


async def test_places_of_proven_connections_are_bounded() -> None:
    async with accepting(PortBounds(total=5, unproven=3)) as (acceptor, port, _):
        with ExitStack() as stack:
            replies = [await says(stack.enter_context(dial(port)), b"key") for _ in range(3)]
            assert replies == [b"ok", b"ok", b"no"]
        await until(lambda: not acceptor.proven and not acceptor.unproven)
        with dial(port) as later:
            assert await says(later, b"key") == b"ok"


@pytest.mark.claim("a-stalled-handshake")
async def test_connections_count_from_accept_on_not_from_the_end_of_tls(tmp_path: Path) -> None:
    context, _ = make_certificate(tmp_path)
    async with accepting(FEW, ssl=context) as (acceptor, port, refused):
        with ExitStack() as stack:
            for n in range(12):  # TCP only: no byte of a TLS handshake
                stack.enter_context(dial(port, f"127.0.0.{n + 1}"))
            await until(lambda: len(refused) == 4)
            assert len(acceptor.unproven) == FEW.unproven
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
            await until(lambda: not acceptor.unproven)
    assert caplog.text == ""


SCARCE = """
import asyncio, logging, os, resource, sys, time
from edgespec.shared.acceptor import Acceptor
from edgespec.shared.guards import PortBounds

class Echo(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.transport.write(data)

async def main():
    logging.basicConfig(level=logging.DEBUG)
    acceptor = Acceptor("test port", PortBounds(1024, 900), logging.getLogger("a"))
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


@pytest.mark.parametrize(
    ("host", "source"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("no address", "no address"),
    ],
)
def test_one_ipv6_network_is_one_source(host: str, source: str) -> None:
    assert source_of(host) == source


def test_ports_share_the_descriptors_and_leave_a_reserve() -> None:
    wanted = {"api": 1024, "link": 1024, "metrics": 16}
    assert share_descriptors(wanted, 65536) == wanted
    scarce = share_descriptors(wanted, 1024)
    assert sum(scarce.values()) <= 1024 - RESERVED_DESCRIPTORS and scarce["api"] == scarce["link"] > 300
    assert all(number >= 2 for number in share_descriptors(wanted, 100).values())
