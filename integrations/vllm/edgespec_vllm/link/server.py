"""The link process's end of the board: a Unix socket of this user, to which each vLLM engine connects.

The file's mode decides who may connect: this user alone, or a group that the operator names, for a vLLM that runs as
another user. vLLM checks the other direction, whose process it sends prompts to (`line.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import grp
import logging
import os
import socket
from pathlib import Path

import msgspec

from edgespec.core.errors import AddressError
from edgespec_vllm import messages
from edgespec_vllm.line import peer_user
from edgespec_vllm.link.streams import Streams
from edgespec_vllm.messages import BoardError, Chain, Closed, FromLink, Hello, Opened

log = logging.getLogger("edgespec_vllm.link.server")
MAX_UNSENT_BYTES = 256 * 1024
"""To an engine that does not read, since it is idle: further chains are dropped."""


class _Connection:
    """One engine."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.drafts = 0
        """0 until the engine has sent its hello."""
        self.user = peer_user(writer.get_extra_info("socket"))
        """Id of the user that vLLM runs as."""
        self._writer = writer

    def send(self, message: FromLink) -> None:
        """Drops a `Chain` while the engine does not read."""
        if not isinstance(message, Chain) or self._writer.transport.get_write_buffer_size() < MAX_UNSENT_BYTES:
            self._writer.write(messages.frame(message))


class BoardServer:
    """Serves engines until it is closed."""

    def __init__(self, path: Path, streams: Streams, vocab_size: int, group: str = "") -> None:
        """`group`: name or number of one whose members may connect too."""
        self.path = path
        self._streams = streams
        self._vocab_size = vocab_size
        self._group = group
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.StreamWriter, asyncio.Task[None] | None] = {}

    @property
    def engines(self) -> int:
        """Engines that are connected."""
        return len(self._open)

    async def start(self) -> None:
        """Listens. The control socket's lock holds off another process of the same state. Raises AddressError."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._server = await asyncio.start_unix_server(self._serve, sock=self._listening())
        except OSError as error:
            raise AddressError(f"The board {self.path} cannot be made: {error.strerror or error}.") from None

    def _listening(self) -> socket.socket:
        """A socket that gets its name after its permissions are set. Raises OSError, AddressError."""
        temporary = self.path.with_name(f"{self.path.name}.new")
        temporary.unlink(missing_ok=True)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            listening.bind(str(temporary))
            temporary.chmod(0o600)
            if self._group:
                _open_to(self._group, temporary)
            listening.listen()
            temporary.replace(self.path)
        except (OSError, AddressError):
            listening.close()
            raise

        return listening

    async def close(self) -> None:
        """Ends all connections."""
        if self._server is not None:
            self._server.close()
        tasks = [task for task in self._open.values() if task is not None]
        for writer in self._open:
            writer.transport.abort()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        engine = _Connection(writer)
        frames = messages.Frames()
        self._open[writer] = asyncio.current_task()
        try:
            while data := await reader.read(1 << 16):
                for payload in frames.feed(data):
                    self._take(engine, messages.decode_from_engine(payload))
            if not engine.drafts:
                log.warning(
                    "a process of user %d connected to the board and left without a word: a vLLM of another user takes "
                    "this link process only with EDGESPEC_BOARD_USER=%d", engine.user, os.geteuid(),
                )  # fmt: skip
        except (BoardError, msgspec.MsgspecError, OSError) as error:
            log.warning("the connection of user %d to the board ends: %s", engine.user, error)
        finally:
            del self._open[writer]
            self._streams.gone(engine)
            with contextlib.suppress(OSError):
                writer.close()

    def _take(self, engine: _Connection, message: messages.FromEngine) -> None:
        match message:
            case Hello(version, rank, vocab_size, drafts):
                if version != messages.VERSION or vocab_size != self._vocab_size:
                    raise BoardError(f"version {version}, vocabulary {vocab_size}; here {self._vocab_size}")
                engine.drafts = drafts
                log.info("engine %d of user %d is connected, with up to %d drafts", rank, engine.user, drafts)
            case _ if not engine.drafts:
                raise BoardError("the first message is no hello")
            case Opened():
                self._streams.opened(engine, message)
            case Closed():
                self._streams.closed(engine, message)
            case _:
                self._streams.tokens(engine, message)


def _open_to(group: str, path: Path) -> None:
    """Lets the members of a group connect. Raises AddressError."""
    try:
        number = int(group) if group.isdecimal() else grp.getgrnam(group).gr_gid
    except KeyError:
        raise AddressError(f"There is no group {group} for the board: give its number.") from None
    try:
        os.chown(path, -1, number)
    except PermissionError:
        raise AddressError(
            f"The board cannot be given to the group {group}: run the link process as a member of it "
            f"(in a container: `--group-add {group}`)."
        ) from None
    path.chmod(0o660)
