"""Connections by hand."""

from __future__ import annotations

import socket


def dial(port: int, source: str = "127.0.0.1") -> socket.socket:
    """A connection from one of loopback's addresses, which differ like those of machines."""
    return socket.create_connection(("127.0.0.1", port), 5.0, (source, 0))
