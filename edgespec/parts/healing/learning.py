"""A worker that learns: it keeps the texts of keys that consented, and learns from them while its owner is away."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from edgespec.core.errors import KeyStoreError, RemoteProtocolError
from edgespec.core.protocol.inflow import Bucket
from edgespec.parts.healing.collector import Collected, Collector
from edgespec.parts.healing.consent import KIND, Consents, Learn, read_consent
from edgespec.parts.healing.store import FOLDER, KeptLimits, LearningStore
from edgespec.parts.healing.trainer import Trainer
from edgespec.shared.log_text import LimitedLog
from edgespec.shared.models import resolve_model
from edgespec.worker.part import RunningPart, WorkerProcess

if TYPE_CHECKING:
    from edgespec.core.protocol.messages import ToWorker
    from edgespec.parts.healing import LearnSection
    from edgespec.shared.control import Handler

log = logging.getLogger("edgespec.parts.healing")

TEXTS_PER_S = 2.0
TEXTS_BURST = 64
"""Texts that are kept; further ones are dropped. A gateway that opens and closes requests must not keep a disk busy."""
PENDING = 64
"""Texts and changes of consent that may wait for the disk."""
SWEEP_S = 600.0
"""After which texts are looked at for their age, if no further one comes."""


class Learning(RunningPart):
    """Collects on the event loop; a thread writes."""

    def __init__(self, section: LearnSection, worker: WorkerProcess) -> None:
        """Raises KeyStoreError for the folder."""
        limits = KeptLimits(section.megabytes * 2**20, section.days)
        folder = worker.state_dir / FOLDER
        self._gateway_key = worker.gateway_key
        self._store = LearningStore(folder, worker.gateway_key(), limits)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="learning")
        self._places = threading.Semaphore(PENDING)
        self._collector = Collector(self._keep)
        self._tokenizer = b""
        self._rate = Bucket(TEXTS_PER_S, TEXTS_BURST)
        self._lines = LimitedLog(log)
        draft = partial(resolve_model, worker.settings.draft.model)
        self._trainer = Trainer(folder, draft, worker.may_draft, self._thread)
        self._scopes: Mapping[str, str] = {}
        self._tasks: list[asyncio.Future[None]] = []

    async def start(self) -> None:
        self._tasks = [asyncio.ensure_future(self._sweep()), asyncio.ensure_future(self._trainer.run())]

    def extras(self) -> Mapping[str, Callable[[bytes], None]]:
        return {KIND: self._take}

    def on_request(self, message: ToWorker | None) -> None:
        self._collector.take(message)

    def handlers(self) -> Mapping[str, Handler]:
        return {"learn_forget": self._forget}

    async def close(self) -> None:
        """Writes what waits."""
        for task in self._tasks:
            task.cancel()
        self._collector.take(None)
        await asyncio.to_thread(self._thread.shutdown)

    def _take(self, data: bytes) -> None:
        """A message about consent. Raises RemoteProtocolError, which ends the link."""
        match read_consent(data):
            case Consents(tokenizer, keys):
                scopes = {consent.key: consent.scope for consent in keys}
                self._tokenizer = tokenizer
                self._collector.allow(scopes)
                if scopes != self._scopes:
                    self._trainer.kill()
                self._scopes = scopes
                if not self._write(partial(self._withdraw, scopes, tokenizer, self._gateway_key())):
                    raise RemoteProtocolError("flood", "consents to learning change faster than texts are deleted")
            case Learn(request, key):
                self._collector.announce(request, key)

    def _withdraw(self, scopes: Mapping[str, str], tokenizer: bytes, gateway: bytes) -> None:
        self._trainer.wait_until_gone()
        self._store.name_gateway(gateway)
        withdrawn = self._store.keep_only(scopes, tokenizer)
        if withdrawn:
            log.info("consent to learning has ended for %d API keys: their texts are deleted", withdrawn)

    def _keep(self, text: Collected) -> None:
        now = time.monotonic()
        if self._rate.free_at > now or not self._write(partial(self._store.add, text, self._tokenizer)):
            self._lines.warning("rate", "texts to learn from come faster than they are kept")
            return
        self._rate.take(1, now)

    def _write(self, work: Callable[[], None]) -> bool:
        """Has the thread do it, after all that it was given before; False if too much waits there already."""
        if not self._places.acquire(blocking=False):
            return False
        self._thread.submit(self._guarded, work)
        return True

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except KeyStoreError as error:
            self._lines.warning("disk", f"texts to learn from: {error}")
        finally:
            self._places.release()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            self._write(self._store.trim)

    async def _forget(self, who: str) -> dict[str, object]:
        """Deletes the texts of a key, of a group, or all; also those that are not written yet."""
        self._trainer.kill()
        self._collector.forget(who)
        forgotten = asyncio.get_running_loop().run_in_executor(self._thread, self._delete, who)
        return {"texts": await forgotten}

    def _delete(self, who: str) -> int:
        self._trainer.wait_until_gone()
        return self._store.forget(who)
