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
RETRY_S = 0.5
MAX_RETRY_S = 30.0
USER = "EDGESPEC_BOARD_USER"
"""The environment variable with the user that runs the link process, by number or name, if it is another one."""


class Line:
    """The connection of one engine. `now`: seconds of a monotonic clock."""

    def __init__(self, path: str, user: int | None = None) -> None:
        """`user`: id of the user that may run the link process beside this one and root."""
        self.path = path
        self._trusted = {os.geteuid(), 0} if user is None else {os.geteuid(), 0, user}
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
        if self.up:
            return MAX_UNSENT_BYTES - len(self.unsent)
        return 0

    def connect(self, now: float) -> bool:
        """Tries to connect if it is time to; returns whether a connection was made."""
        if self.up or now < self._retry_at:
            return False

        self._retry_at = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, MAX_RETRY_S)
        try:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            self._socket.connect(self.path)
            owner = peer_user(self._socket)
        except (OSError, ValueError) as error:
            self._refuse(_reason(error))
            return False
        if owner not in self._trusted:
            # Prompts go to this process: it must be one of this user, of root, or of the user that was named.
            self._refuse(f"it belongs to user {owner}, and prompts go to processes of user {os.geteuid()} and of root "
                         f"only; set {USER}={owner} for vLLM if the link process runs as that user")  # fmt: skip
            return False

        self.up = True
        self.connected += 1
        self.unsent.clear()
        self._frames = Frames()
        return True

    def _refuse(self, why: str) -> None:
        self.why = f"{self.path}: {why}"
        self._socket.close()

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
        if self._arrived:
            return self._arrived.popleft()
        return None

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


def peer_user(connection: socket.socket) -> int:
    """Id of the user that runs the other end of a Unix socket (SO_PEERCRED, unix(7))."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, user, _ = struct.unpack("3i", credentials)
    return int(user)


def _reason(error: OSError | ValueError) -> str:
    """Why no connection was made, and what to do."""
    if isinstance(error, FileNotFoundError | ConnectionRefusedError):
        return "no link process listens there; start `cloud-gateway link`, or name its board in $EDGESPEC_BOARD"
    if isinstance(error, PermissionError):
        return (
            f"user {os.geteuid()} may not open it; start `cloud-gateway link` with `--board-group` and a group that "
            "vLLM's user is in"
        )

    return getattr(error, "strerror", None) or str(error)


def _none() -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.close()
    return made
