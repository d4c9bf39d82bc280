"""Forwards the events of links to the engine and the metrics, on the event loop."""

from __future__ import annotations

import asyncio
import logging

from cloud_gateway.engine.loop import Engine
from cloud_gateway.links.registry import WorkerInfo
from cloud_gateway.metrics import Metrics
from edgespec.core.errors import KeyStoreError
from edgespec.core.protocol.messages import Decline, Tree
from edgespec.shared.paired import PairedWorkers

log = logging.getLogger("cloud_gateway.process.bridge")


class Bridge:
    """Implements `LinkEvents`. The links are made before the engine, which sends through them: `engine` is set then."""

    engine: Engine

    def __init__(self, metrics: Metrics, paired: PairedWorkers) -> None:
        self._metrics, self._paired = metrics, paired

    def on_up(self, worker: WorkerInfo) -> None:
        """A worker is linked: requests may use it, and its `last_seen` is stored."""
        worker.groups = self._paired.groups_of(worker.hello.worker_key)
        self.engine.worker_up(worker.id)
        asyncio.get_running_loop().run_in_executor(None, self._note_seen, worker.hello.worker_key)

    def on_down(self, worker: WorkerInfo, why: str) -> None:
        """Its requests move to other workers."""
        self.engine.worker_down(worker.id, why)

    def on_tree(self, worker: WorkerInfo, tree: Tree) -> None:
        """Candidates for one request."""
        self.engine.frame(worker.id, tree)

    def on_pause(self, worker: WorkerInfo, reason: str) -> None:
        """Treated as down; the link stays open."""
        self.engine.worker_down(worker.id, reason)

    def on_resume(self, worker: WorkerInfo) -> None:
        """Treated as up."""
        self.engine.worker_up(worker.id)

    def on_decline(self, worker: WorkerInfo, decline: Decline) -> None:
        """This one request moves to another worker."""
        self.engine.declined(worker.id, decline.request)

    def on_rejected(self, reason: str) -> None:
        """A frame or a connection was refused."""
        self._metrics.rejected(reason)

    def _note_seen(self, key: bytes) -> None:
        try:
            self._paired.seen(key)
        except KeyStoreError as error:  # only the last-seen date is lost
            log.warning("%s", error)
