"""Sends a service's state to systemd (sd_notify(3)), without libsystemd; does nothing without NOTIFY_SOCKET."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket


def notify(*states: str) -> bool:
    """Sends assignments such as `READY=1` or `STATUS=drafting`; returns whether there is a socket.

    Raises OSError if the socket cannot be reached: systemd would wait for the notification.
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return False
    if address[0] not in "/@":
        raise OSError(f"NOTIFY_SOCKET is `{address}`; only paths and abstract addresses (@) are supported")

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        sender.connect("\0" + address[1:] if address[0] == "@" else address)
        sender.sendall("\n".join(state.replace("\n", " ") for state in states).encode())

    return True


async def keep_alive() -> None:
    """Notifies the watchdog twice in each of its periods, until cancelled: an event loop that hangs ends the service.

    Returns at once if the unit sets no `WatchdogSec` for this process (sd_watchdog_enabled(3)).
    """
    period_us = os.environ.get("WATCHDOG_USEC", "")
    if not period_us.isdecimal() or os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return

    while True:
        with contextlib.suppress(OSError):  # systemd itself is being restarted
            notify("WATCHDOG=1")
        await asyncio.sleep(int(period_us) / 2e6)
