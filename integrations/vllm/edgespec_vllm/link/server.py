"""The link process's end of the board: a Unix socket of this user, to which each vLLM engine connects."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from pathlib import Path

import msgspec

from edgespec.core.errors import AddressError
from edgespec_vllm import messages
from edgespec_vllm.link.streams import Streams
from edgespec_vllm.messages import BoardError, Chain, Closed, FromLink, Hello, Opened

log = logging.getLogger("edgespec_vllm.link.server")
MAX_UNSENT_BYTES = 256 * 1024
"""To an engine that does not read, since it is idle: further chains are dropped."""


class _Connection:
    """One engine."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.drafts = 0
        self._writer = writer

    def send(self, message: FromLink) -> None:
        """Drops a `Chain` while the engine does not read."""
        if not isinstance(message, Chain) or self._writer.transport.get_write_buffer_size() < MAX_UNSENT_BYTES:
            self._writer.write(messages.frame(message))


class BoardServer:
    """Serves engines until it is closed."""

    def __init__(self, path: Path, streams: Streams, vocab_size: int) -> None:
        self.path, self._streams, self._vocab_size = path, streams, vocab_size
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
            self.path.unlink(missing_ok=True)
            self._server = await asyncio.start_unix_server(self._serve, self.path)
            self.path.chmod(0o600)
        except OSError as error:
            raise AddressError(f"The board {self.path} cannot be made: {error.strerror or error}.") from None

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
        engine, frames = _Connection(writer), messages.Frames()
        self._open[writer] = asyncio.current_task()
        try:
            while data := await reader.read(1 << 16):
                for payload in frames.feed(data):
                    self._take(engine, messages.decode_from_engine(payload))
        except (BoardError, msgspec.MsgspecError, OSError) as error:
            log.warning("an engine's connection to the board ends: %s", error)
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
                log.info("engine %d is connected, with up to %d drafts", rank, drafts)
            case _ if not engine.drafts:
                raise BoardError("the first message is no hello")
            case Opened():
                self._streams.opened(engine, message)
            case Closed():
                self._streams.closed(engine, message)
            case _:
                self._streams.tokens(engine, message)
