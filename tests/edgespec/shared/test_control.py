"""The control socket, over real Unix sockets: private, one daemon at a time, and a clear error without one."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from edgespec.core import errors
from edgespec.core.errors import AddressError, ConfigError, EdgespecError, LocalProtocolError, PairingError
from edgespec.core.pairing.messages import PairingFailed, Reason
from edgespec.shared.control import MAX_PATH_BYTES, ControlServer
from edgespec.shared.control_client import call, stream


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder with a short path that other users can get at."""
    with tempfile.TemporaryDirectory(prefix="es-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "gateway.sock"


class Desk:
    """Handlers of a daemon."""

    def __init__(self) -> None:
        self.closed = asyncio.Event()
        self.waiting = asyncio.Event()

    async def double(self, number: int, plus: int = 0) -> object:
        return {"twice": 2 * number + plus}

    async def crash(self) -> object:
        raise ZeroDivisionError("secret detail")

    async def unencodable(self) -> object:
        return object()

    async def count(self, to: int) -> AsyncIterator[object]:
        for i in range(to):
            yield {"i": i}
        if to > 5:
            raise PairingFailed(Reason.EXPIRED)

    async def wait(self) -> AsyncIterator[object]:
        try:
            yield "waiting"
            self.waiting.set()
            await asyncio.sleep(60)
        finally:
            self.closed.set()


@asynccontextmanager
async def serving(path: Path) -> AsyncIterator[Desk]:
    desk = Desk()
    names = ("double", "crash", "unencodable", "count", "wait")
    server = ControlServer(path, {name: getattr(desk, name) for name in names})
    await server.start()
    try:
        yield desk
    finally:
        await server.close()


async def ask(path: Path, method: str, **params: Any) -> Any:
    return await asyncio.to_thread(lambda: call(path, method, **params))


async def test_a_call_gets_its_result(tmp_path: Path) -> None:
    path = tmp_path / "run" / "gateway.sock"
    async with serving(path):
        assert await ask(path, "double", number=4) == {"twice": 8}
        assert await ask(path, "double", number=4, plus=1) == {"twice": 9}
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.parent.stat().st_mode & 0o777 == 0o700
    assert not path.exists()


async def test_events_stream_as_they_come_and_end(path: Path) -> None:
    async with serving(path):
        assert await asyncio.to_thread(lambda: list(stream(path, "count", to=3))) == [{"i": 0}, {"i": 1}, {"i": 2}]
        seen: list[object] = []
        with pytest.raises(PairingError, match="the code has expired"):
            await asyncio.to_thread(lambda: seen.extend(stream(path, "count", to=6)))
        events = await asyncio.to_thread(lambda: stream(path, "count", to=6))
        assert [await asyncio.to_thread(lambda: next(events)) for _ in range(6)] == [{"i": i} for i in range(6)]


async def test_a_failing_handler_is_reported_without_detail_and_ends_nothing(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(path):
        for method in ("crash", "unencodable"):
            with pytest.raises(LocalProtocolError) as error:
                await ask(path, method)
            assert "see its log" in str(error.value)
            assert "secret" not in str(error.value)
        assert "ZeroDivisionError" in caplog.text
        assert await ask(path, "double", number=1) == {"twice": 2}


async def test_a_request_that_the_daemon_does_not_know_means_another_version(path: Path) -> None:
    async with serving(path):
        for method, params in [("dance", {}), ("double", {}), ("double", {"number": 1, "more": 2})]:
            with pytest.raises(LocalProtocolError, match="of another version than this command, so restart it"):
                await ask(path, method, **params)


@pytest.mark.parametrize("line", [b"\n", b"{}\n", b"[1]\n", b"\xff\xfe\n", b'{"method": 1}\n', b"x" * 100_000 + b"\n"])
async def test_a_malformed_request_gets_an_error_and_harms_nothing(path: Path, line: bytes) -> None:
    async with serving(path):
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(line)
        assert b'"LocalProtocolError"' in await reader.readline()
        writer.close()
        assert await ask(path, "double", number=1) == {"twice": 2}


async def test_a_command_that_hangs_up_cancels_its_handler(path: Path) -> None:
    async with serving(path) as desk:
        events = await asyncio.to_thread(lambda: stream(path, "wait"))
        assert await asyncio.to_thread(lambda: next(events)) == "waiting"
        await desk.waiting.wait()
        events.close()  # type: ignore[attr-defined]
        await asyncio.wait_for(desk.closed.wait(), 10)


async def test_a_daemon_that_stops_ends_its_handlers_and_the_command(path: Path) -> None:
    async with serving(path) as desk:
        events = await asyncio.to_thread(lambda: stream(path, "wait"))
        assert await asyncio.to_thread(lambda: next(events)) == "waiting"
    assert desk.closed.is_set()
    with pytest.raises(AddressError, match="The gateway stopped before it had answered"):
        await asyncio.to_thread(lambda: next(events))


async def test_a_daemon_that_does_not_answer_is_reported(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
        silent.bind(str(path))
        silent.listen()
        with pytest.raises(AddressError, match=r"did not answer within 0.2 s"):
            await asyncio.to_thread(lambda: call(path, "double", timeout_s=0.2))


def test_without_a_daemon_the_error_names_the_command_to_start_it(tmp_path: Path) -> None:
    with pytest.raises(AddressError, match="gateway.sock\\); start it with `cloud-gateway serve`."):
        call(tmp_path / "gateway.sock", "double")
    with pytest.raises(AddressError, match="The worker is not running \\(socket .*worker.sock\\); start it with"):
        next(stream(tmp_path / "worker.sock", "double"))


async def test_a_socket_left_by_a_killed_daemon_is_taken_over(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(str(path))
    with pytest.raises(AddressError, match="is not running"):
        await ask(path, "double")
    async with serving(path):
        assert await ask(path, "double", number=1) == {"twice": 2}


async def test_a_second_daemon_is_refused_while_the_first_lives(path: Path) -> None:
    async with serving(path):
        with pytest.raises(AddressError, match="A gateway is running already .* change `daemon.state_dir`"):
            async with serving(path):
                pass
        assert await ask(path, "double", number=1) == {"twice": 2}
    async with serving(path):
        pass


async def test_a_socket_that_cannot_be_made_is_reported(tmp_path: Path, short: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(AddressError, match="cannot be made"):
        await ControlServer(tmp_path / "file" / "gateway.sock", {}).start()
    long = tmp_path / ("x" * MAX_PATH_BYTES) / "gateway.sock"
    with pytest.raises(ConfigError, match="set a shorter `daemon.state_dir`"):
        await ControlServer(long, {}).start()
    with pytest.raises(ConfigError, match="set a shorter `daemon.state_dir`"):
        call(long, "x")
    fits = short / ("y" * (MAX_PATH_BYTES - len(str(short)) - len("/.sock")) + ".sock")
    async with serving(fits):
        assert await ask(fits, "double", number=1) == {"twice": 2}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
async def test_another_user_is_not_served_even_with_the_socket_opened_up(short: Path) -> None:
    """The socket's mode already excludes others; the check of their user id is a second barrier."""
    script = "import socket, sys, os; os.setuid(65534); s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])\n"
    script += 's.sendall(b\'{"method": "double", "params": {"number": 1}}\\n\'); print(s.recv(1000))'
    path = short / "gateway.sock"
    async with serving(path):
        command = [sys.executable, "-S", "-c", script, str(path)]
        shut = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
        assert "PermissionError" in shut.stderr
        path.chmod(0o666)
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
        assert (done.stdout.strip(), done.returncode) in {("b''", 0), ("", 1)}
        assert "PermissionError" not in done.stderr


def test_every_public_error_survives_the_way() -> None:
    from edgespec.shared.control import _public_name
    from edgespec.shared.control_client import _error

    for name in dir(errors):
        kind = getattr(errors, name)
        if isinstance(kind, type) and issubclass(kind, EdgespecError):
            there = _error(name, "text")
            assert type(there) is kind
            assert _public_name(there) == name
            assert str(there) == "text"
    assert type(_error("Nonsense", "text")) is EdgespecError
