"""The command's end of the control socket (control.py): one request to a running daemon, and its reply."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from edgespec.core import errors
from edgespec.core.errors import AddressError, EdgespecError, RemoteProtocolError
from edgespec.shared.control import check_length, encoded

_STARTS = {"gateway": "cloud-gateway serve", "worker": "edgespec run"}


def call(path: Path, method: str, /, *, timeout_s: float = 10.0, **params: object) -> Any:
    """Calls the daemon at `path` and returns its result, as JSON types.

    Raises AddressError if none runs or responds, and the EdgespecError that the daemon's handler raised.
    """
    events = _converse(path, method, params, timeout_s)
    while True:
        try:
            next(events)
        except StopIteration as end:
            return end.value


def stream(path: Path, method: str, /, **params: object) -> Iterator[Any]:
    """Calls the daemon and yields its events as they arrive, without a time limit. Raises as `call` does."""
    yield from _converse(path, method, params, None)


def _converse(path: Path, method: str, params: dict[str, object], timeout_s: float | None) -> Iterator[Any]:
    with _connect(path, timeout_s) as connection, connection.makefile("rb") as lines:
        try:
            connection.sendall(encoded({"method": method, "params": params}))
            for line in lines:
                reply = msgspec.json.decode(line)
                if "error" in reply:
                    raise _error(reply["error"]["type"], reply["error"]["message"])
                if "result" in reply:
                    return reply["result"]
                yield reply["event"]
        except TimeoutError:
            raise AddressError(f"The {path.stem} did not answer within {timeout_s:g} s.") from None
        except ConnectionError:
            pass  # reported below
    raise AddressError(f"The {path.stem} stopped before it had answered.")


def _connect(path: Path, timeout_s: float | None) -> socket.socket:
    check_length(path)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    connection.settimeout(timeout_s)
    try:
        connection.connect(str(path))
        return connection
    except OSError as error:
        connection.close()
        if isinstance(error, FileNotFoundError | ConnectionRefusedError):
            start = _STARTS.get(path.stem, path.stem)
            raise AddressError(f"The {path.stem} is not running (socket {path}); start it with `{start}`.") from None
        if isinstance(error, PermissionError):
            raise AddressError(f"The {path.stem} runs as another user; run this command as that user.") from None
        raise AddressError(f"The {path.stem} cannot be reached at {path} ({error.strerror or error}).") from None


def _error(kind: str, message: str) -> EdgespecError:
    if kind == RemoteProtocolError.__name__:
        return RemoteProtocolError("control", message)
    known = getattr(errors, kind, EdgespecError)
    if isinstance(known, type) and issubclass(known, EdgespecError):
        return known(message)
    return EdgespecError(message)
