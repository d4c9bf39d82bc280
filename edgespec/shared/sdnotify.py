"""Sends a service's state to systemd (sd_notify(3)), without libsystemd; does nothing without NOTIFY_SOCKET."""

from __future__ import annotations

import os
import socket


def notify(*states: str) -> bool:
    """Sends assignments such as `READY=1` or `STATUS=drafting`; returns whether there is a socket.

    Raises OSError where the socket cannot be reached: systemd would wait for the notification.
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
