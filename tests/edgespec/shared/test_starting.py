"""The start of a daemon: its steps are logged, can be asked for and reach systemd, and a signal ends it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from itertools import count
from pathlib import Path

import pytest

from edgespec.shared import starting
from edgespec.shared.sdnotify import keep_alive, notify
from edgespec.shared.starting import Starting, Stopped, on_stop_signals
from tests.support.until import until

HEAVY = ("aiohttp", "llama_cpp", "numpy", "torch", "transformers")


@pytest.mark.parametrize(
    "modules", ["edgespec.__main__, edgespec.worker.start", "cloud_gateway.__main__, cloud_gateway.process.commands"]
)
def test_the_first_line_waits_for_no_large_library(modules: str) -> None:
    """Modules that the commands import before they create `Starting`, which logs the first line."""
    script = f"import sys, {modules}; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_status_names_the_step_and_its_seconds(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    clock = count(100.0)
    now = Starting("edgespec 1", lambda: next(clock))
    now("loading the draft model")  # began at 101, logged at 102
    assert now.status() | {"busy": ""} == {
        "state": "starting", "doing": "loading the draft model", "doing_s": 2.0, "busy": ""
    }  # fmt: skip
    assert caplog.messages == ["edgespec 1 starts", "starting, 2.0 s: loading the draft model"]


async def test_a_step_that_takes_long_is_logged_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(starting, "REMIND_S", 0.01)
    now = Starting("edgespec 1")
    go = threading.Event()
    now("loading")
    running = asyncio.ensure_future(now.finished(lambda: go.wait(60), asyncio.Event()))
    await until(lambda: any("still loading" in line for line in caplog.messages))
    go.set()
    assert await running is True


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])  # under `nohup` SIGHUP is ignored
async def test_a_signal_does_not_wait_for_the_loading_to_end(sig: signal.Signals) -> None:
    stop = asyncio.Event()
    go = threading.Event()
    on_stop_signals(lambda sig: stop.set())
    running = asyncio.ensure_future(Starting("edgespec 1").finished(lambda: go.wait(60), stop))
    os.kill(os.getpid(), sig)
    with pytest.raises(Stopped):
        await asyncio.wait_for(running, 30)
    go.set()


async def test_what_loading_raises_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        await Starting("edgespec 1").finished(lambda: 1 // 0, asyncio.Event())


@pytest.mark.parametrize(("handler", "expected"), [(signal.SIG_IGN, set()), (signal.SIG_DFL, {signal.SIGHUP})])
async def test_sighup_stops_unless_nohup_ignores_it(handler: signal.Handlers, expected: set[signal.Signals]) -> None:
    before = signal.signal(signal.SIGHUP, handler)
    try:
        seen: set[signal.Signals] = set()
        on_stop_signals(seen.add)
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGTERM)
        await until(lambda: signal.SIGTERM in seen)
        assert seen == {signal.SIGTERM} | expected
    finally:
        signal.signal(signal.SIGHUP, before)


def test_without_systemd_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    assert notify("READY=1") is False


@pytest.mark.parametrize("abstract", [False, True])
def test_states_arrive_in_one_datagram(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, abstract: bool) -> None:
    name = f"@edgespec-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind("\0" + name[1:] if abstract else name)
        systemd.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        assert notify("READY=1", "STATUS=two\nlines") is True
        assert systemd.recv(1000) == b"READY=1\nSTATUS=two lines"


def test_a_socket_that_cannot_be_reached_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for address in (str(tmp_path / "none"), "vsock:2:1"):
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        with pytest.raises(OSError):
            notify("READY=1")


async def test_the_watchdog_is_notified_twice_a_period(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "40000")
        alive = asyncio.ensure_future(keep_alive())
        for _ in range(3):
            async with asyncio.timeout(10):
                assert await asyncio.get_running_loop().sock_recv(systemd, 100) == b"WATCHDOG=1"
        alive.cancel()


@pytest.mark.parametrize("watchdog", [{}, {"WATCHDOG_USEC": "40000", "WATCHDOG_PID": "1"}], ids=["none", "another's"])
async def test_without_a_watchdog_for_this_process_nothing_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, watchdog: dict[str, str]
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.setblocking(False)
        monkeypatch.delenv("WATCHDOG_USEC", raising=False)
        for name, value in ({"NOTIFY_SOCKET": str(tmp_path / "notify")} | watchdog).items():
            monkeypatch.setenv(name, value)
        await asyncio.wait_for(keep_alive(), 5)
        with pytest.raises(BlockingIOError):
            systemd.recv(100)
