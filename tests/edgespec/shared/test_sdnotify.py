"""Notifications to systemd, over a real datagram socket."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from edgespec.shared.sdnotify import notify


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
