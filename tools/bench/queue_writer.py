"""A worker for `tools.bench queue`: the worker's own loop and model in a thread of this process, without sockets."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from cloud_gateway.core.requests.router import LinkedWorker
from cloud_gateway.core.requests.steps import Declined, FrameArrived, WorkerGone
from cloud_gateway.engine.events import WorkerReady
from cloud_gateway.engine.loop import Engine
from cloud_gateway.engine.offloading import NoWorkers
from edgespec.core.drafting.best_first import BestFirstRule
from edgespec.core.errors import RemoteProtocolError
from edgespec.core.protocol.messages import Decline, StepTimes, ToWorker, Tree
from edgespec.llamacpp.drafter import Drafter
from edgespec.shared.models import resolve_model
from edgespec.worker.daemon import Daemon, Outlet

VIEW = LinkedWorker("writer", 0.0, 0.0, 0.006, paused=False, answers=True)
LEAVES = 4


class Writer(NoWorkers):
    """Implements `Workers`: linked to one engine at a time, and outside of `linked_to` to none."""

    def __init__(self, draft: str, context: int, threads: int) -> None:
        """`draft`: GGUF file, or auto:NAME. Raises ModelError."""
        drafter = Drafter(resolve_model(draft), context=context, sequences=LEAVES, threads=threads)
        self._daemon = Daemon(drafter, BestFirstRule(sequences=LEAVES), Outlet(self._sent, self._broken))
        self._engine: Engine | None = None
        self._thread = threading.Thread(target=self._daemon.run, daemon=True)
        self._thread.start()

    @contextmanager
    def linked_to(self, engine: Engine) -> Iterator[None]:
        """It is this engine's worker meanwhile, and no other's."""
        self._engine = engine
        engine.post(WorkerReady(VIEW.id))
        try:
            yield
        finally:
            self._engine = None
            engine.post(WorkerGone(VIEW.id))

    def stop(self) -> None:
        """Ends the thread and frees the model."""
        self._daemon.stop()
        self._thread.join()
        self._daemon.drafter.shutdown()

    def linked(self) -> Mapping[str, LinkedWorker]:
        return {VIEW.id: VIEW} if self._engine is not None else {}

    def view(self, worker: str) -> LinkedWorker | None:
        return self.linked().get(worker)

    def send(self, worker: str, body: ToWorker) -> None:
        self._daemon.take(body)

    def _sent(self, message: Tree | StepTimes | Decline) -> None:
        engine = self._engine
        if isinstance(message, Tree):
            self._daemon.writable()
        if engine is not None and isinstance(message, Tree):
            engine.post(FrameArrived(VIEW.id, message))
        elif engine is not None and isinstance(message, Decline):
            engine.post(Declined(VIEW.id, message.request, message.reason))

    def _broken(self, error: RemoteProtocolError) -> None:
        raise error
