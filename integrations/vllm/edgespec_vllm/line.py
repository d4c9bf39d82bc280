"""A stream socket to the link process that never waits and never raises.

Bytes that the socket does not take yet are kept, up to `MAX_UNSENT_BYTES`; the caller asks for room first. When the
link process is absent or has gone, the line tries again after a pause that grows from `RETRY_S`.

What arrives is handed out message by message, and nothing is read while a message is left. So the caller decides how
much work one step of vLLM does (`board.MIN_STEP_NODES`); what is left stays in the socket, and a link process that
sends more than is taken is held up by it.
"""

from __future__ import annotations

import os
import socket
import struct
from collections import deque

from edgespec_vllm.messages import BoardError, Frames

MAX_UNSENT_BYTES = 256 * 1024
MAX_READ_BYTES = 16 * 1024
"""In one call of `recv`: with the messages that are not taken yet, all that is kept."""
RETRY_S, MAX_RETRY_S = 0.5, 30.0


class Line:
    """The connection of one engine. `now`: seconds of a monotonic clock."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._socket = _none()
        self.unsent = bytearray()
        """Bytes that the socket has not taken yet."""
        self._frames = Frames()
        self._arrived: deque[bytes] = deque()
        self._retry_at = 0.0
        self._pause_s = RETRY_S
        self.up = False
        self.connected = 0
        """How often a connection was made."""
        self.why = ""
        """Why the last connection failed or ended."""

    @property
    def room(self) -> int:
        """Bytes that `send` takes now."""
        return MAX_UNSENT_BYTES - len(self.unsent) if self.up else 0

    def connect(self, now: float) -> bool:
        """Tries to connect if it is time to; returns whether a connection was made."""
        if self.up or now < self._retry_at:
            return False
        self._retry_at = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, MAX_RETRY_S)
        try:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            self._socket.connect(self._path)
            # Prompts go to this process: it must be one of this user, or of root.
            owner = struct.unpack("3i", self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
            if owner not in (os.geteuid(), 0):
                raise PermissionError(f"it belongs to user {owner}")
        except (OSError, ValueError) as error:
            self.why = f"{self._path}: {getattr(error, 'strerror', None) or error}"
            self._socket.close()
            return False
        self.up = True
        self.connected += 1
        self.unsent.clear()
        self._frames = Frames()
        return True

    def send(self, data: bytes) -> None:
        """Takes bytes for `flush`; they are dropped when there is no room for all of them."""
        if len(data) <= self.room:
            self.unsent += data

    def flush(self) -> None:
        """Writes what the socket takes."""
        while self.up and self.unsent:
            try:
                count = self._socket.send(self.unsent)
            except BlockingIOError:
                return
            except OSError as error:
                self.fail(error.strerror or str(error))
                return
            del self.unsent[:count]

    def receive(self) -> bytes | None:
        """The next message; None if there is none now. Reads the socket only when all messages are taken."""
        if self.up and not self._arrived:
            self._arrived.extend(self._read())
        return self._arrived.popleft() if self._arrived else None

    def _read(self) -> list[bytes]:
        try:
            data = self._socket.recv(MAX_READ_BYTES)
            if data:
                self._pause_s = RETRY_S
                return self._frames.feed(data)
            self.fail("the link process ended the connection")
        except BlockingIOError:
            pass
        except (OSError, BoardError) as error:
            self.fail(str(error))
        return []

    def fail(self, why: str) -> None:
        """Ends the connection; messages that were not taken are dropped."""
        self.up = False
        self.why = why
        self._socket.close()
        self.unsent.clear()
        self._arrived.clear()


def _none() -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.close()
    return made
