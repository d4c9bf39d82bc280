"""The control socket between commands such as `cloud-gateway pair` and the daemon of the same user.

A Unix socket that only its owner and root may use. One request per connection, in lines of JSON:

    command   {"method": "pair", "params": {}}
    daemon    {"event": ...}           any number of times
              {"result": ...}          or  {"error": {"type": "PairingError", "message": "..."}}

Closing the connection cancels the handler, so that Ctrl-C closes a pairing window.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import inspect
import logging
import os
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from edgespec.core import errors
from edgespec.core.errors import (
    UNDECODABLE,
    AddressError,
    ConfigError,
    EdgespecError,
    LocalProtocolError,
)

log = logging.getLogger("edgespec.control")

MAX_LINE_BYTES = 64 * 1024
MAX_PATH_BYTES = 103
"""107 fit into a socket address (unix(7)), and the socket is first made under a name four bytes longer."""
_REQUEST_S = 10.0

Handler = Callable[..., Awaitable[object] | AsyncIterator[object]]
"""Takes the request's parameters as keywords; returns one result, or yields events."""


class _Request(msgspec.Struct, forbid_unknown_fields=True):
    method: str
    params: dict[str, Any] = {}


class ControlServer:
    """The daemon's end. While it is started no second daemon can take the same socket."""

    def __init__(self, path: Path, handlers: Mapping[str, Handler]) -> None:
        """`path` ends in ROLE.sock (folders.socket_file)."""
        self._path = path
        self.handlers = handlers
        self._lock = -1
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listens. Raises AddressError if another daemon does, or the socket cannot be made.

        Raises ConfigError for a path that is too long.
        """
        check_length(self._path)
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(
                f"{self._path}.lock",
                os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC,
                0o600,
            )
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            listening = _bind(self._path)
        except OSError as error:
            self._unlock()
            if isinstance(error, BlockingIOError):
                raise AddressError(
                    f"A {self._path.stem} is running already at {self._path}: stop it, or change `daemon.state_dir`."
                ) from None
            raise AddressError(f"The control socket {self._path} cannot be made ({error.strerror or error}).") from None
        self._server = await asyncio.start_unix_server(self._serve, sock=listening, limit=MAX_LINE_BYTES)

    async def close(self) -> None:
        """Stops listening, cancels the handlers that run, and removes the socket."""
        if self._server is None:
            return

        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        with contextlib.suppress(OSError):  # the next start replaces a socket that is left
            self._path.unlink()
        self._server = None
        self._unlock()

    def _unlock(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._answer(reader, writer)
        except (ConnectionError, TimeoutError):
            pass  # the command disconnected, perhaps before its request
        finally:
            writer.close()
            self._connections.discard(task)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not _is_owner(writer.get_extra_info("socket")):
            return

        try:
            async with asyncio.timeout(_REQUEST_S):
                line = await reader.readline()
            if not line:
                return
            reply = await self._run(_decode_request(line), reader, writer)
        except EdgespecError as error:
            reply = encoded({"error": {"type": _public_name(error), "message": str(error)}})
        except ValueError:  # a line longer than the limit
            reply = encoded(
                {
                    "error": {
                        "type": "LocalProtocolError",
                        "message": "The request is too long.",
                    }
                }
            )
        writer.write(reply)
        await writer.drain()

    async def _run(
        self,
        request: _Request,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bytes:
        """Runs the handler until it ends or the command disconnects; returns the last line of the reply."""
        running = asyncio.ensure_future(self._handle(request, writer))
        hung_up = asyncio.ensure_future(reader.read())
        try:
            await asyncio.wait({running, hung_up}, return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                raise ConnectionResetError
            return running.result()
        finally:
            running.cancel()
            hung_up.cancel()
            await asyncio.gather(running, hung_up, return_exceptions=True)

    async def _handle(self, request: _Request, writer: asyncio.StreamWriter) -> bytes:
        handler = self.handlers.get(request.method)
        try:
            if handler is None:
                raise TypeError
            inspect.signature(handler).bind(**request.params)
        except TypeError:
            raise LocalProtocolError(
                f"The running {self._path.stem} does not know the request `{request.method}` in this form; "
                "it is of another version than this command, so restart it."
            ) from None
        try:
            outcome = handler(**request.params)
            if not isinstance(outcome, AsyncIterator):
                return encoded({"result": await outcome})
            async with contextlib.aclosing(outcome) as events:  # type: ignore[type-var]
                async for event in events:
                    writer.write(encoded({"event": event}))
                    await writer.drain()
            return encoded({"result": None})
        except (EdgespecError, ConnectionError):
            raise
        except Exception:  # a bug in one handler must not end the control socket
            log.exception("the control request %s failed", request.method)
            raise LocalProtocolError(
                f"The running {self._path.stem} failed at `{request.method}`; see its log."
            ) from None


def _bind(path: Path) -> socket.socket:
    """A listening socket that gets its name after its permissions are set."""
    temporary = Path(f"{path}.new")
    temporary.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listening.bind(str(temporary))
        temporary.chmod(0o600)
        listening.listen()
        temporary.replace(path)  # replaces what a killed daemon left; the lock proves that none runs
    except OSError:
        listening.close()
        raise

    return listening


def check_length(path: Path) -> None:
    if len(os.fsencode(path)) > MAX_PATH_BYTES:
        raise ConfigError(
            f"The control socket's path {path} has more than {MAX_PATH_BYTES} bytes; set a shorter `daemon.state_dir`."
        )


def _is_owner(connection: socket.socket) -> bool:
    """Whether the other end runs as this user or as root (SO_PEERCRED, unix(7))."""
    _, uid, _ = struct.unpack(
        "3i",
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")),
    )
    return uid in (os.geteuid(), 0)


def _decode_request(line: bytes) -> _Request:
    try:
        return msgspec.json.decode(line, type=_Request)
    except UNDECODABLE:
        raise LocalProtocolError("The request is not one line of JSON with a method and its params.") from None


def encoded(value: object) -> bytes:
    return msgspec.json.encode(value) + b"\n"


def _public_name(error: EdgespecError) -> str:
    """The class of core/errors.py that the error is, or derives from."""
    return next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
