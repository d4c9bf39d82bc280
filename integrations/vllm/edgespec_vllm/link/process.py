"""`cloud-gateway link`: the link port without a target, for engines that have one of their own (README.md)."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import cast

from cloud_gateway.auth import KeyRing
from cloud_gateway.core.requests.router import Merit
from cloud_gateway.engine.loop import Engine
from cloud_gateway.part import GatewayPart
from cloud_gateway.process.config import GatewaySettings
from cloud_gateway.process.control import Commands
from cloud_gateway.process.link_port import LinkPort
from cloud_gateway.process.serve import connection_shares
from edgespec import __version__
from edgespec.shared import folders, logs, sdnotify
from edgespec.shared.control import ControlServer
from edgespec.shared.files import held
from edgespec.shared.hf_vocabulary import vocabulary
from edgespec.shared.part import guards_of, nearby_of
from edgespec.shared.server_keys import ServerKeyStore
from edgespec.shared.starting import Starting, on_stop_signals
from edgespec_vllm.link.server import BoardServer
from edgespec_vllm.link.streams import Streams

log = logging.getLogger("edgespec_vllm.link.process")
BOARD = "board.sock"


class LinkProcess:
    """One process, on the event loop."""

    def __init__(
        self, settings: GatewaySettings, model: Path, starting: Starting, board: Path | None = None, group: str = "",
        parts: Sequence[GatewayPart] = (),
    ) -> None:  # fmt: skip
        """`model`: the folder that vLLM serves, or a GGUF file. `board`: the socket, if not in the runtime folder;
        `group`: one whose members may connect to it; `parts`: their judges judge the workers,
        their guards guard the link port, and they announce it.

        Raises ModelError, KeyStoreError.
        """
        self.settings = settings
        self.starting = starting
        self._board = board
        self._group = group
        words = vocabulary(model)
        store = ServerKeyStore(folders.state_dir("gateway", settings.daemon.state_dir))
        self.port = LinkPort(settings.link, store, nearby_of(parts, settings))
        judges = [part.judge(settings) for part in parts if part.judge is not None]
        shares = connection_shares()
        self.links = self.port.make_links(
            words.digest, len(words.entries), shares["link"], judges=judges, guards=guards_of(parts)
        )
        self.commands = Commands(self.port.paired, KeyRing(store.folder), self.port)
        self._control = folders.socket_file("gateway", settings.daemon.state_dir)

    async def run(self) -> None:
        """Serves until SIGTERM, SIGINT or SIGHUP. Raises AddressError."""
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        loop.set_exception_handler(logs.loop_failed)
        on_stop_signals(lambda sig: stop.set())
        self.streams = self.links.inbox = Streams(self.links, loop.time)
        self.commands.engine = cast(Engine, self)
        path = self._board or self._control.with_name(BOARD)
        self.board = BoardServer(path, self.streams, self.links.vocab_size, self._group)
        async with AsyncExitStack() as closing:
            closing.enter_context(held(folders.state_dir("gateway", self.settings.daemon.state_dir), "gateway"))
            control = ControlServer(self._control, self.commands.handlers() | {"status": self.status})
            await control.start()
            closing.push_async_callback(control.close)
            await self.port.open(self.links, closing)
            await self.board.start()
            closing.push_async_callback(self.board.close)
            self.links.start_s = self.starting.seconds
            logs.serving()
            if not self._group:
                log.info("only user %d and root may connect to the board; --board-group opens it", os.geteuid())
            print(f"workers  {self.port.url}\nboard    {self.board.path}", flush=True)
            sdnotify.notify("READY=1", "STATUS=linking workers")
            await stop.wait()

    @property
    def merit(self) -> Merit:
        """The measured worth of each worker, for `cloud-gateway workers`."""
        return self.streams.merit

    async def status(self) -> dict[str, object]:
        """What `cloud-gateway status` shows."""
        linked = self.links.workers()
        return {
            "version": __version__, "pid": os.getpid(), "uptime_s": round(self.starting.seconds), "state": "link",
            "link": self.port.url, "board": str(self.board.path), "engines": self.board.engines,
            "streams": self.streams.open, "streams_helped": self.streams.helped,
            "drafted": self.streams.drafted, "accepted": self.streams.accepted,
            "workers_linked": len(linked), "workers_paused": sum(worker.paused for worker in linked),
            "refused": dict(self.links.rejected),
            "problems": self.links.problems(),
        }  # fmt: skip


def run(
    settings: GatewaySettings, model: Path, starting: Starting, board: Path | None = None, group: str = "",
    parts: Sequence[GatewayPart] = (),
) -> None:  # fmt: skip
    """Serves until it is stopped by a signal."""

    async def serve() -> None:
        await LinkProcess(settings, model, starting, board, group, parts).run()

    asyncio.run(serve())
