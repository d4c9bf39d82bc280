"""`cloud-gateway link`: the link port without a target, for engines that have one of their own (README.md)."""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, cast

from cloud_gateway.core.limits.conduct import Conduct
from cloud_gateway.engine.exchange import WorkerGone, WorkerReady
from cloud_gateway.links.paired import PairedWorkers
from cloud_gateway.links.port import LinkLimits, link_admission
from cloud_gateway.links.server import Links
from cloud_gateway.process.config import GatewaySettings
from cloud_gateway.process.control import Commands, Running
from cloud_gateway.process.serve import connection_shares, reachable_host
from edgespec import __version__
from edgespec.core.protocol.handshake import GatewayIdentity
from edgespec.shared import folders, logs, sdnotify
from edgespec.shared.address import Address
from edgespec.shared.advertise import Advertiser
from edgespec.shared.control import ControlServer
from edgespec.shared.fields import machine_name
from edgespec.shared.hf_vocabulary import vocabulary
from edgespec.shared.keystore import KeyStore
from edgespec.shared.pairing_listener import PairingListener
from edgespec.shared.starting import Starting, on_stop_signals
from edgespec_vllm.link.server import BoardServer
from edgespec_vllm.link.streams import Streams

log = logging.getLogger("edgespec_vllm.link.process")
BOARD = "board.sock"


class LinkCommands(Commands):
    """Of the gateway's commands those that concern workers."""

    def __init__(self, process: LinkProcess) -> None:
        super().__init__(cast(Running, process))
        self._process = process

    def handlers(self) -> dict[str, Any]:
        """Without those for API keys and the audit log."""
        absent = ("create_key", "keys", "revoke_key", "audit")
        return {name: handler for name, handler in super().handlers().items() if name not in absent}

    async def status(self) -> dict[str, object]:
        """What `cloud-gateway status` shows."""
        process = self._process
        linked = process.links.workers()
        return {
            "version": __version__, "pid": os.getpid(), "state": "link", "link": process.worker_address(),
            "board": str(process.board.path), "engines": process.board.engines, "workers_linked": len(linked),
            "workers_paused": sum(worker.paused for worker in linked), "refused": dict(process.links.rejected),
        }  # fmt: skip

    async def group_worker(self, id: str, groups: list[str]) -> dict[str, object]:  # noqa: A002
        """As the gateway does it; the requests of that worker leave it."""
        row = await super().group_worker(id, groups)
        self._process.streams.post(WorkerGone(str(row["id"]), "regrouped"))
        self._process.streams.post(WorkerReady(str(row["id"])))
        return row


class LinkProcess:
    """One process, on the event loop."""

    audit = engine = models = None

    def __init__(self, settings: GatewaySettings, model: Path, starting: Starting) -> None:
        """`model`: the folder that vLLM serves, or a GGUF file. Raises ModelError, KeyStoreError."""
        self.settings, self.starting = settings, starting
        words = vocabulary(model)
        store = KeyStore(folders.state_dir("gateway", settings.daemon.state_dir))
        self._identity, self._tls = store.identity(), store.tls_identity()
        self._name = machine_name(settings.link.name)
        self.paired = PairedWorkers(store.folder)
        self.desk = PairingListener(self._identity, self._name, self._tls.spki_hash, self.paired)
        self.links = Links(
            GatewayIdentity(self._identity, self._name, self._tls.spki_hash, words.digest),
            len(words.entries),
            self.paired,
            lambda reason: None,
            pair=self.desk.handle,
            limits=LinkLimits(link_admission(connection_shares()["link"])),
            conduct=Conduct(settings.link.quarantine_keys),
        )
        self._control = folders.socket_file("gateway", settings.daemon.state_dir)
        self.advertiser: Advertiser | None = None
        self._port = 0

    async def run(self) -> None:
        """Serves until SIGTERM, SIGINT or SIGHUP. Raises AddressError."""
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        loop.set_exception_handler(logs.loop_failed)
        on_stop_signals(lambda sig: stop.set())
        self.streams = self.links.inbox = Streams(self.links, loop.time)
        self.board = BoardServer(self._control.with_name(BOARD), self.streams, self.links.vocab_size)
        link = self.settings.link
        async with AsyncExitStack() as closing:
            control = ControlServer(self._control, LinkCommands(self).handlers())
            await control.start()
            closing.push_async_callback(control.close)
            self._port = await self.links.start(link.host, link.port, self._tls.context())
            closing.push_async_callback(self.links.stop)
            if link.mdns:
                where = link.host, self._port
                self.advertiser = Advertiser(self._name, self._identity.public, self._tls.spki_hash, *where)
                self.advertiser.start()
                closing.push_async_callback(self.advertiser.close)
            await self.board.start()
            closing.push_async_callback(self.board.close)
            self.links.start_s = self.starting.seconds
            logs.serving()
            print(f"workers  {self.worker_address()}\nboard    {self.board.path}", flush=True)
            sdnotify.notify("READY=1", "STATUS=linking workers")
            await stop.wait()

    def worker_address(self) -> str:
        """The address for workers."""
        return f"wss://{Address(reachable_host(self.settings.link.host), self._port)}"


def run(settings: GatewaySettings, model: Path, starting: Starting) -> None:
    """Serves until it is stopped by a signal."""

    async def serve() -> None:
        await LinkProcess(settings, model, starting).run()

    asyncio.run(serve())
