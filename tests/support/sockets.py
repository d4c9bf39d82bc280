"""Connections by hand."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


def dial(port: int, source: str = "127.0.0.1") -> socket.socket:
    """A connection from one of loopback's addresses, which differ like those of machines."""
    return socket.create_connection(("127.0.0.1", port), 5.0, (source, 0))


@contextmanager
def reserved() -> Iterator[int]:
    """A port of loopback that this test listens on again and again, and that nobody gets in between."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]
