"""What clients without a key can cost: bodies, heads that never end, connections, file descriptors."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from cloud_gateway.api import listener
from cloud_gateway.api.listener import DROPPED_BYTES_PER_S, MAX_DROPPED_BYTES, MAX_IDLE_PER_KEY, DropAllowance
from edgespec.shared.acceptor import raise_descriptor_limit
from edgespec.shared.guards import PortBounds
from tests.support.echo import CHAT, Echo, echo_gateway, post, request_head
from tests.support.sockets import dial
from tests.support.until import until
from tools.doubles.limits import TIMES, api_bounds, request_limits

PATH = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"


async def answer_to(echo: Echo, sent: bytes) -> bytes:
    """All that comes back for these bytes until the gateway closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", echo.listener.port)
    try:
        writer.write(sent)
        async with asyncio.timeout(5):
            return await reader.read()
    finally:
        writer.close()


@pytest.mark.claim("the-connection-ends-with-the-refusal-of-its-key")
async def test_the_connection_ends_with_the_refusal_of_its_key(echo: Echo) -> None:
    for encoding in ("", "Content-Encoding: gzip\r\n"):
        answer = await answer_to(echo, f"{PATH}{encoding}Content-Length: 1000000\r\n\r\n".encode())
        assert answer.startswith(b"HTTP/1.1 401 ") and b"\r\nConnection: close\r\n" in answer


@pytest.mark.claim("the-connection-ends-with-the-refusal-of-its-key")
async def test_a_refused_client_that_goes_on_sending_is_cut_off(echo: Echo) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", echo.listener.port)
    writer.write(f"{PATH}Content-Length: 1000000000\r\n\r\n".encode())
    await reader.readuntil(b"\r\n\r\n")
    sent = 0
    with pytest.raises(ConnectionError):
        for _ in range(1000):
            writer.write(bytes(MAX_DROPPED_BYTES))
            await writer.drain()
            sent += MAX_DROPPED_BYTES
    assert sent < 32 * 2**20, "no more than what the kernel's buffers held at that moment"


@pytest.mark.claim("the-connection-ends-with-the-refusal-of-its-key")
async def test_a_body_of_4_mib_is_discarded_so_that_its_refusal_arrives(echo: Echo) -> None:
    """As a proxy does: all of the body first, then the response, which a reset in between would take away."""
    for _ in range(4):
        reader, writer = await asyncio.open_connection("127.0.0.1", echo.listener.port)
        writer.write(f"{PATH}Content-Length: {4 * 2**20}\r\n\r\n".encode())
        for _ in range(64):
            writer.write(bytes(MAX_DROPPED_BYTES))
            await writer.drain()
            await asyncio.sleep(0.002)
        assert (await reader.read()).startswith(b"HTTP/1.1 401 ")
        writer.close()


@pytest.mark.claim("the-connection-ends-with-the-refusal-of-its-key")
@pytest.mark.parametrize(("silence_s", "whole_s", "trickles"), [(0.1, 60.0, False), (60.0, 0.3, True)])
async def test_a_body_that_stops_or_trickles_is_given_up(
    echo: Echo, silence_s: float, whole_s: float, trickles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "DROP_S", silence_s)
    monkeypatch.setattr(listener, "MAX_DROP_S", whole_s)
    reader, writer = await asyncio.open_connection("127.0.0.1", echo.listener.port)
    writer.write(f"{PATH}Content-Length: 1000000\r\n\r\n".encode())
    assert (await reader.read()).startswith(b"HTTP/1.1 401 ")
    async with asyncio.timeout(5):
        while echo.listener.acceptor.unproven:
            if trickles:
                writer.write(b"x")
            await asyncio.sleep(0.02)
    writer.close()


def test_the_port_discards_no_more_than_its_allowance() -> None:
    allowance = DropAllowance(100.0)
    assert all(allowance.take(2**20, 100.0) for _ in range(DROPPED_BYTES_PER_S // 2**20))
    assert not allowance.take(1, 100.0)
    assert allowance.take(DROPPED_BYTES_PER_S // 2, 100.5) and not allowance.take(1, 100.5)
    assert allowance.take(DROPPED_BYTES_PER_S, 1000.0) and not allowance.take(1, 1000.0), "a second's is kept"


async def test_without_allowance_a_refusal_discards_64_kib(echo: Echo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DropAllowance, "take", lambda self, size, now: False)
    reader, writer = await asyncio.open_connection("127.0.0.1", echo.listener.port)
    writer.write(f"{PATH}Content-Length: 1000000000\r\n\r\n".encode())
    await reader.readuntil(b"\r\n\r\n")
    sent = 0
    with pytest.raises(ConnectionError):
        while sent < 8 * 2**20:
            writer.write(bytes(MAX_DROPPED_BYTES))
            await writer.drain()
            await asyncio.sleep(0.002)
            sent += MAX_DROPPED_BYTES
    assert sent < 6 * 2**20


@pytest.mark.claim("an-encoded-body-is-refused-before-it-is-read")
@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "identity, gzip", "GZIP"])
async def test_an_encoded_body_is_refused_before_it_is_read(echo: Echo, encoding: str) -> None:
    head = request_head(echo, length=1_000_000).replace(b"Host: x", f"Host: x\r\nContent-Encoding: {encoding}".encode())
    assert (await answer_to(echo, head)).startswith(b"HTTP/1.1 415 ")
    assert echo.engine.requests == []


async def test_an_encoded_body_is_a_415_that_says_what_to_do(echo: Echo) -> None:
    status, body, _ = await post(echo, gzip.compress(json.dumps(CHAT).encode()), **{"Content-Encoding": "gzip"})
    assert (status, body["error"]["code"]) == (415, "unsupported_encoding")
    assert (await post(echo, CHAT, **{"Content-Encoding": "identity"}))[0] == 200


async def test_a_body_that_says_it_is_too_long_is_refused_before_it_is_read(tmp_path: Path) -> None:
    async with echo_gateway(tmp_path, request_limits(max_body_bytes=1000)) as echo:
        assert (await answer_to(echo, request_head(echo, length=1001))).startswith(b"HTTP/1.1 413 ")
        chunked = request_head(echo, length=0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
        answer = await answer_to(echo, chunked + b"400\r\n" + b" " * 1024 + b"\r\n")
        assert answer.startswith(b"HTTP/1.1 413 "), "a body of unknown length is counted while it is read"


async def test_only_a_client_with_a_key_gets_a_100_continue(echo: Echo) -> None:
    body = json.dumps(CHAT).encode()
    head = request_head(echo, len(body)).replace(b"Host: x", b"Host: x\r\nConnection: close\r\nExpect: 100-continue")
    assert (await answer_to(echo, head.replace(echo.key.encode(), b"es-x"))).startswith(b"HTTP/1.1 401 ")
    reader, writer = await asyncio.open_connection("127.0.0.1", echo.listener.port)
    writer.write(head)
    assert b"100 Continue" in await reader.readuntil(b"\r\n\r\n")
    writer.write(body)
    assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
    writer.close()


@pytest.mark.claim("what-is-not-http-is-answered-in-openais-shape-without-an-echo")
@pytest.mark.parametrize(
    "sent",
    [
        b"GET /canary HTTP/1.1\r\nAuthorization: Bearer canary\x00\r\n\r\n",
        b"canary canary canary\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: canary" + b"y" * 20_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X-%d: canary\r\n" * 2000 + b"\r\n",
    ],
)
async def test_what_is_not_http_is_answered_in_openais_shape_without_an_echo(
    echo: Echo, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    head, _, body = (await answer_to(echo, sent)).partition(b"\r\n\r\n")
    assert head.split()[1] == b"400" and json.loads(body)["error"]["code"] == "malformed_http"
    assert b"canary" not in head + body and "canary" not in caplog.text


@pytest.mark.parametrize("version", [b"HTTP/2.0", b"HTTP/0.9"])
async def test_another_version_of_http_is_refused_in_http_1(echo: Echo, version: bytes) -> None:
    head, _, body = (await answer_to(echo, b"GET /healthz " + version + b"\r\nHost: x\r\n\r\n")).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.") and head.split()[1] == b"400"
    assert json.loads(body)["error"]["code"] == "malformed_http"


@pytest.mark.claim("no-response-names-versions-of-its-software")
@pytest.mark.parametrize("target", [b"GET /healthz HTTP/1.1", b"GET /v1/models HTTP/1.1", b"GET / HTTP/1.1", b"canary"])
async def test_no_response_names_versions_of_its_software(echo: Echo, target: bytes) -> None:
    head = (await answer_to(echo, target + b"\r\nHost: x\r\nConnection: close\r\n\r\n")).partition(b"\r\n\r\n")[0]
    assert b"\r\nServer: edgespec\r\n" in head + b"\r\n" and b"aiohttp" not in head


@pytest.mark.claim("what-is-not-http-is-answered-in-openais-shape-without-an-echo")
async def test_a_body_with_bad_chunks_is_a_400_without_an_echo(echo: Echo, caplog: pytest.LogCaptureFixture) -> None:
    chunked = request_head(echo, length=0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    head, _, body = (await answer_to(echo, chunked + b"canary\r\ncanary\r\n")).partition(b"\r\n\r\n")
    assert head.split()[1] == b"400" and json.loads(body)["error"]["code"] == "malformed_http"
    assert b"canary" not in head + body and "canary" not in caplog.text


# --- heads that never end, and connections that do nothing ----------------------------------------------------------


async def closed_after(writer: asyncio.StreamWriter, reader: asyncio.StreamReader, trickle: bytes) -> bool:
    """Whether the gateway closes the connection while a byte goes out every 50 ms."""
    for _ in range(200):
        with suppress(ConnectionError):
            writer.write(trickle)
        with suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(0.05):
                if not await reader.read(1000):
                    return True
        if writer.is_closing():
            return True
    return False


@pytest.mark.claim("a-head-that-does-not-end-is-given-up")
async def test_a_head_that_does_not_end_is_given_up(tmp_path: Path) -> None:
    async with echo_gateway(tmp_path, times=replace(TIMES, head_s=0.3)) as echo:
        first = b"GET /healthz HTTP/1.1\r\nX-"
        whole = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
        for begin, trickle in ((b"", b""), (first, b"x"), (whole + first, b"x")):
            reader, writer = await asyncio.open_connection("127.0.0.1", echo.listener.port)
            writer.write(begin)
            assert await closed_after(writer, reader, trickle), "the second request's head counts as well"
            writer.close()


async def test_a_request_in_time_may_take_longer_than_its_head(tmp_path: Path) -> None:
    async with echo_gateway(tmp_path, times=replace(TIMES, head_s=0.1)) as echo:
        echo.engine.step_s = 0.05
        body = json.dumps(CHAT).encode()
        with dial(echo.listener.port) as sock:
            sock.sendall(request_head(echo, len(body)) + body)  # all of it before the gateway accepts
            sock.setblocking(False)
            assert (await asyncio.get_running_loop().sock_recv(sock, 1000)).startswith(b"HTTP/1.1 200 ")


@pytest.mark.claim("a-head-that-does-not-end-is-given-up")
async def test_a_connection_without_requests_is_closed(tmp_path: Path) -> None:
    async with echo_gateway(tmp_path, times=replace(TIMES, idle_s=0.2)) as echo:
        answer = await answer_to(echo, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200 ")
    assert TIMES.idle_s == 75 and TIMES.head_s == 10


@pytest.mark.claim("a-client-that-reads-no-response-is-given-up")
@pytest.mark.live
async def test_a_client_that_reads_no_response_is_given_up(tmp_path: Path) -> None:
    async with echo_gateway(tmp_path, times=replace(TIMES, unread_s=0.2)) as echo:
        request = f"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {echo.key}\r\n\r\n".encode()
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", echo.listener.port))
        sock.setblocking(False)
        deadline = time.monotonic() + 60
        with sock, pytest.raises(ConnectionError):
            while time.monotonic() < deadline:
                with suppress(BlockingIOError):
                    sock.send(request * 100)
                await asyncio.sleep(0.001)
        await until(lambda: not echo.listener.acceptor.proven)


async def test_a_connection_that_ends_with_unread_bytes_is_given_up(tmp_path: Path) -> None:
    """The gateway closes it after what is not HTTP, while less than its high-water mark is still unsent."""
    async with echo_gateway(tmp_path, times=replace(TIMES, unread_s=0.2)) as echo:
        for listening in echo.listener.acceptor.sockets:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        request = f"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {echo.key}\r\n\r\n".encode()
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(("127.0.0.1", echo.listener.port))
            sock.sendall(request * 180 + b"no HTTP\r\n\r\n")
            acceptor = echo.listener.acceptor
            await until(lambda: acceptor.proven)
            await until(lambda: not acceptor.proven)


@pytest.mark.claim("2000-half-open-connections-deny-nothing-to-a-key")
async def test_2000_half_open_connections_deny_nothing_to_a_key(echo: Echo) -> None:
    if raise_descriptor_limit() < 3500:
        pytest.skip("needs 3500 file descriptors")
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {echo.key}"}) as early:
        async with early.post(echo.base_url + "/chat/completions", json=CHAT) as response:
            assert response.status == 200
        acceptor = echo.listener.acceptor
        opened = []
        for _ in range(40):
            opened += await asyncio.gather(
                *(asyncio.open_connection("127.0.0.1", echo.listener.port) for _ in range(50))
            )
            for _, writer in opened[-50:]:
                with suppress(ConnectionError):
                    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nX-Slow: ")
        await until(lambda: len(acceptor.unproven) <= api_bounds().unproven)
        assert (await post(echo, CHAT))[0] == 200, "a new connection with a key"
        async with early.post(echo.base_url + "/chat/completions", json=CHAT) as response:
            assert response.status == 200
        assert acceptor.proven, "the connection that has presented a key is kept"
        for _, writer in opened:
            writer.transport.abort()


@pytest.mark.claim("idle-connections-of-one-key-are-bounded")
async def test_idle_connections_of_one_key_are_bounded(tmp_path: Path) -> None:
    async with echo_gateway(tmp_path, bounds=PortBounds(total=MAX_IDLE_PER_KEY + 20, unproven=10)) as echo:
        request = f"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {echo.key}\r\n\r\n".encode()
        opened = []
        for _ in range(MAX_IDLE_PER_KEY + 30):
            reader, writer = await asyncio.open_connection("127.0.0.1", echo.listener.port)
            writer.write(request)
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
            opened.append((reader, writer))
        await until(lambda: len(echo.listener.acceptor.proven) <= MAX_IDLE_PER_KEY)
        assert (await opened[0][0].read())[-1:].strip(b"}") == b"", "the oldest one is closed"
        opened[-1][1].write(request)
        assert b" 200 " in await opened[-1][0].readuntil(b"\r\n\r\n"), "the newest one is not"
        for _, writer in opened:
            writer.close()
