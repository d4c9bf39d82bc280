"""One streamed completion through TLS, and what an observer on the path sees of it: sizes and times of TLS records."""

from __future__ import annotations

import asyncio
import http.client
import io
import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any

from edgespec.lab.rig import RigError
from edgespec.shared import server_keys, tls

SILENCE_S = 120.0
RECORD_HEAD = 5
"""Bytes before each TLS record: type, version, length (RFC 8446 section 5.1)."""
Record = tuple[float, int]
"""Seconds since the request was sent, and bytes."""


@dataclass(slots=True)
class Observation:
    """One completion. An observer has `records`; the rest is what the client received, for costs and checks."""

    records: list[Record] = field(default_factory=list)
    text: str = ""
    tokens: int = 0
    rounds: int = 0
    """Verify passes of the target."""
    first_s: float = 0.0
    """From the request to the first text."""
    text_s: float = 0.0
    """To the last text."""
    end_s: float = 0.0
    """To the end mark, after which a client closes the connection."""


class Tap(io.RawIOBase):
    """A client's TLS connection, as a file to read; notes each TLS record that arrives."""

    def __init__(self, port: int) -> None:
        self._received, self._sent = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._session = tls.client_context().wrap_bio(self._received, self._sent)
        self._wire = socket.create_connection(("127.0.0.1", port), timeout=SILENCE_S)
        self._wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._partial = bytearray()
        self.records: list[Record] = []
        self.began = 0.0
        while True:
            try:
                self._session.do_handshake()
                break
            except ssl.SSLWantReadError:
                self._wire.sendall(self._sent.read())
                self._received.write(self._wire.recv(65536))
        self._wire.sendall(self._sent.read())

    def sendall(self, data: bytes) -> None:
        """Sends a part of the request; records are counted from the last one."""
        self._session.write(data)
        self._wire.sendall(self._sent.read())
        self.records.clear()
        self.began = time.monotonic()

    def makefile(self, mode: str) -> io.BufferedReader:
        """As a socket's, for http.client."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Some decrypted bytes; waits for them."""
        while True:
            try:
                return self._session.read(len(buffer), buffer)  # type: ignore[return-value]  # a count, with a buffer
            except ssl.SSLZeroReturnError:
                return 0
            except ssl.SSLWantReadError:
                data = self._wire.recv(65536)
                if not data:
                    return 0
                self._note(data, time.monotonic() - self.began)
                self._received.write(data)

    def _note(self, data: bytes, now: float) -> None:
        self._partial += data
        while len(self._partial) >= (size := RECORD_HEAD + int.from_bytes(self._partial[3:RECORD_HEAD])):
            self.records.append((now, size))
            del self._partial[:size]

    def close(self) -> None:
        if not self.closed:
            self._wire.close()
        super().close()


def observe(port: int, key: str, body: Mapping[str, Any]) -> Observation:
    """One streamed chat completion through the relay, to its end mark. Raises RigError with the API's sentence."""
    connection, tap, seen = http.client.HTTPConnection("gateway"), Tap(port), Observation()
    connection.sock = tap  # it has what http.client uses of a socket
    with closing(tap):
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        whole = {**body, "stream": True, "stream_options": {"include_usage": True}}
        connection.request("POST", "/v1/chat/completions", json.dumps(whole), headers)
        with connection.getresponse() as response:
            if response.status != HTTPStatus.OK:
                raise RigError(f"The chat API answered {response.status}: {response.read().decode(errors='replace')}")
            for line in response:
                _take(seen, line, time.monotonic() - tap.began)
                if seen.end_s:
                    seen.records = tap.records
                    return seen
    raise RigError("The stream ended without its end mark; the gateway's log says why.")


def _take(seen: Observation, line: bytes, now: float) -> None:
    if line.startswith(b"data: [DONE]"):
        seen.end_s = now
    elif line.startswith(b'data: {"error"'):
        raise RigError(f"The completion failed: {line.decode(errors='replace')}")
    elif line.startswith(b"data: {"):
        chunk = json.loads(line[6:])
        if chunk.get("usage"):
            usage = chunk["usage"]
            seen.tokens, seen.rounds = usage["completion_tokens"], usage["edgespec"]["rounds"]
        for choice in chunk["choices"]:
            if text := choice["delta"].get("content"):
                seen.text += text
                seen.first_s, seen.text_s = seen.first_s or now, now


@contextmanager
def relay(port: int, folder: Path) -> Iterator[int]:
    """A TLS proxy before the API's port on this machine, as an operator would put one; yields its own port."""
    pem = folder / f"relay-{port}.pem"
    pem.write_bytes(server_keys.new_identity())
    context = server_keys.ServerIdentity(pem, b"").context()
    listening: Future[tuple[int, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve() -> None:
        server, stopped = await asyncio.start_server(join, "127.0.0.1", 0, ssl=context), asyncio.Event()
        listening.set_result((server.sockets[0].getsockname()[1], asyncio.get_running_loop(), stopped))
        await stopped.wait()

    async def join(from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        from_api, to_api = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(_forward(from_client, to_api), _forward(from_api, to_client))

    thread = threading.Thread(target=asyncio.run, args=[serve()], daemon=True)
    thread.start()
    own_port, loop, stopped = listening.result(SILENCE_S)
    try:
        yield own_port
    finally:
        loop.call_soon_threadsafe(stopped.set)
        thread.join(SILENCE_S)


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()
