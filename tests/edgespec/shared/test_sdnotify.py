"""Notifications to systemd, over a real datagram socket."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest

from edgespec.shared.sdnotify import keep_alive, notify


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
