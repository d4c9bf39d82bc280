"""The store: the texts of all scopes, in memory and on disk, within one bound. A thread of its own changes it.

The engine's thread searches while this one merges and writes. `keep` never waits; what is kept is found some
milliseconds later.
"""

from __future__ import annotations

import hashlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

import numpy as np

from cloud_gateway.auth import Key, KeyRing
from cloud_gateway.core.requests.request import GenerationRequest
from cloud_gateway.core.sources.lookup import Rates
from cloud_gateway.parts.campus_store.disk import Disk
from cloud_gateway.parts.campus_store.index import StoredText, Texts, backwards
from edgespec.core.errors import KeyStoreError
from edgespec.shared.log_text import Throttle

log = logging.getLogger("cloud_gateway.parts.campus_store")

MAX_SHARE = 4
"""One scope holds at most the fourth part, so that no key displaces all that others have."""
MAX_SEGMENTS = 4
"""A segment holds at most so great a part of what its scope may hold: that much is dropped at once."""
PENDING = 256
"""Completions that may wait for the thread; further ones are not stored."""
SWEEP_S = 2.0
"""After which a key that was revoked is noticed."""
DAY_S = 86400
DEAD_BYTES = 1 << 20
"""Size of a file from which it is written again if half of it is dropped texts."""
TOGETHER = 256
"""Texts that are sorted at once while the disk is read."""
PROMPT_TAG = 0x80000000
"""Set in the number that stands for a prompt; no token id has it."""


@dataclass(frozen=True)
class StoreLimits:
    """The operator's choices."""

    memory_bytes: int
    days: int
    """After which a text is dropped from the disk; 0 keeps none there."""
    prompts: bool
    """Whether prompts are stored too."""


class Scope:
    """The texts of one API key, or of the keys of one cache group."""

    def __init__(self, max_segment: int) -> None:
        self.texts = Texts(max_segment)
        self.rates = Rates()
        """How often matches were right. Used on the engine's thread."""


@dataclass(frozen=True)
class Completed:
    """A completion that is to be stored."""

    key: str
    prompt: Sequence[int]
    completion: Sequence[int]


@dataclass(frozen=True)
class Forget:
    """The texts of a key are to be deleted; the answer is how many there were."""

    key: str
    done: Future[int]


class Store:
    """Runs from construction until `close`."""

    def __init__(
        self, limits: StoreLimits, ring: KeyRing, disk: Disk | None, clock: Callable[[], float] = time.time
    ) -> None:
        """`disk`: None keeps the texts in memory alone. What the disk has is read in the thread."""
        self.limits = limits
        self._ring = ring
        self._disk = disk
        self._clock = clock
        self._scopes: dict[str, Scope] = {}
        """By the name of the cache group, or the id of the key."""
        self._names: dict[bytes, str] = {}
        """The same name by the scope of requests in this process (`GenerationRequest.cache_scope`)."""
        self._pending: queue.Queue[Completed | Forget | None] = queue.Queue(PENDING)
        self._throttle = Throttle()
        self._thread = threading.Thread(target=self._run, name="campus_store", daemon=True)
        self._thread.start()

    # --- called on other threads ---------------------------------------------------------------------------------

    def announce(self, request: GenerationRequest) -> None:
        """A request has come: its scope belongs to its key from now on. Raises KeyStoreError."""
        if request.cache_scope and request.cache_scope not in self._names:
            key = self._ring.file.by_key().get(request.key)
            if key is not None:
                self._names[request.cache_scope] = _name(key)

    def scope(self, cache_scope: bytes) -> Scope | None:
        """The texts for requests of this scope; None if there are none yet."""
        name = self._names.get(cache_scope)
        if name is None:
            return None
        return self._scopes.get(name)

    def keep(self, completed: Completed) -> None:
        """Stores a completion soon; drops it if too many wait."""
        try:
            self._pending.put_nowait(completed)
        except queue.Full:
            log.debug("%d completions wait to be stored, one is not", PENDING)

    def forget(self, key: str) -> Future[int]:
        """Deletes the texts of a key, those that wait included; the result is how many there were."""
        done: Future[int] = Future()
        self._pending.put(Forget(key, done))
        return done

    def settle(self) -> None:
        """Waits until all that was kept so far is stored."""
        self._pending.join()

    @property
    def memory_bytes(self) -> int:
        """The memory of all texts."""
        return sum(scope.texts.memory_bytes for scope in list(self._scopes.values()))

    def rows(self) -> list[dict[str, object]]:
        """For each key: its texts, their bytes of memory and of disk, and the time of the oldest."""
        kept: dict[str, list[StoredText]] = {}
        for scope in list(self._scopes.values()):
            for record in scope.texts.records():
                kept.setdefault(record.key, []).append(record)
        rows: list[dict[str, object]] = []
        for key in sorted(self._keys() | kept.keys()):
            records = kept.get(key, [])
            rows.append({
                "key": key,
                "texts": len(records),
                "memory_bytes": sum(record.memory_bytes for record in records),
                "disk_bytes": self._disk.bytes_of(key) if self._disk is not None else 0,
                "oldest": min((record.time for record in records), default=None),
            })  # fmt: skip
        return rows

    def close(self, timeout_s: float = 10.0) -> None:
        """Stores what waits, and ends the thread."""
        self._pending.put(None)
        self._thread.join(timeout_s)

    # --- its own thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        self._safely(self._load)
        sweep_at = time.monotonic()
        while True:
            if time.monotonic() >= sweep_at:
                self._safely(self._sweep)
                sweep_at = time.monotonic() + SWEEP_S

            try:
                item = self._pending.get(timeout=max(sweep_at - time.monotonic(), 0.0))
            except queue.Empty:
                continue
            if item is None:
                return
            self._take(item)
            self._pending.task_done()

    def _take(self, item: Completed | Forget) -> None:
        match item:
            case Completed():
                self._safely(partial(self._store, item))
            case Forget(key, done):
                try:
                    done.set_result(self._forget(key))
                except (KeyStoreError, OSError) as error:
                    done.set_exception(error)

    def _safely(self, step: Callable[[], None]) -> None:
        """Nothing here may end the thread: what the disk refuses stays in memory."""
        try:
            step()
        except (KeyStoreError, OSError) as error:
            if self._throttle.admit("failed", time.monotonic()) is not None:
                log.warning("the campus store: %s", error)

    def _load(self) -> None:
        """Reads the texts of valid keys that are not too old, and deletes the others."""
        if self._disk is None:
            return

        keys = self._valid()
        for key in self._disk.stored():
            if key not in keys:
                self._disk.delete(key)
                continue
            records = self._disk.read(key)
            young = [record for record in records if record.time > self._expired()]
            if len(young) < len(records):
                self._disk.replace(key, young)
            self._add(keys[key], young)

    def _store(self, completed: Completed) -> None:
        key = self._valid().get(completed.key)
        if key is None:
            return

        if self.limits.prompts:
            beginning: Sequence[int] = completed.prompt
        else:
            beginning = (tag(completed.prompt),)
        record = StoredText(key.id, int(self._clock()), backwards([*beginning, *completed.completion]))
        scope = self._scopes.get(_name(key))
        known = scope is not None and scope.texts.holds(record.data)
        if known or record.memory_bytes > self.limits.memory_bytes // MAX_SHARE // MAX_SEGMENTS:
            return

        self._add(key, [record])
        if self._disk is not None:
            self._disk.append(record)
            self._compact(key)

    def _add(self, key: Key, records: Sequence[StoredText]) -> None:
        """Stores texts in memory, and drops the oldest ones that there is no room for: first those of its own scope."""
        if not records:
            return

        share = self.limits.memory_bytes // MAX_SHARE
        texts = self._scopes.setdefault(_name(key), Scope(share // MAX_SEGMENTS)).texts
        for start in range(0, len(records), TOGETHER):
            texts.add(records[start : start + TOGETHER])
            while texts.memory_bytes > share:
                texts.drop_oldest()
            while sum(scope.texts.memory_bytes for scope in self._scopes.values()) > self.limits.memory_bytes:
                holding = [scope.texts for scope in self._scopes.values() if scope.texts.segments]
                min(holding, key=lambda texts: texts.segments[0].times[-1]).drop_oldest()

    def _compact(self, key: Key) -> None:
        """Writes a key's file again if at least half of it was dropped from memory."""
        assert self._disk is not None
        on_disk = self._disk.bytes_of(key.id)
        if on_disk < DEAD_BYTES:
            return

        records = self._of(key)
        if 2 * sum(len(record.data) for record in records) < on_disk:
            self._disk.replace(key.id, records)

    def _sweep(self) -> None:
        """Deletes the texts of keys that were revoked, and those that are too old."""
        valid = self._valid()
        for key in self._keys() - valid.keys():
            self._forget(key)

        if self._disk is None:
            return
        for scope in self._scopes.values():
            aged = [segment for segment in scope.texts.segments if min(segment.times) <= self._expired()]
            if aged:
                scope.texts.keep(lambda record: record.time > self._expired())
            for key in {key for segment in aged for key in segment.keys}:
                self._disk.replace(key, self._of(valid[key]))

    def _keys(self) -> set[str]:
        """Ids of the keys that have texts in memory or on disk."""
        keys = {
            key for scope in list(self._scopes.values()) for segment in scope.texts.segments for key in segment.keys
        }
        if self._disk is not None:
            keys.update(self._disk.stored())
        return keys

    def _of(self, key: Key) -> list[StoredText]:
        """A key's texts in memory, oldest first."""
        return [record for record in self._scopes[_name(key)].texts.records() if record.key == key.id]

    def _forget(self, key: str) -> int:
        count = 0
        for scope in self._scopes.values():
            before = len(scope.texts)
            scope.texts.keep(lambda record: record.key != key)
            count += before - len(scope.texts)
        if self._disk is not None:
            self._disk.delete(key)
        return count

    def _valid(self) -> dict[str, Key]:
        return {key.id: key for key in self._ring.all() if key.revoked is None}

    def _expired(self) -> float:
        """Texts of this time or earlier are too old for the disk."""
        return self._clock() - DAY_S * self.limits.days


def tag(prompt: Sequence[int]) -> int:
    """A number that stands for a prompt at the beginning of its completion, if prompts are not stored."""
    digest = hashlib.blake2b(np.asarray(prompt, dtype=">u4").tobytes(), digest_size=4).digest()
    return int.from_bytes(digest) | PROMPT_TAG


def _name(key: Key) -> str:
    """The name of a key's scope, as `auth.CacheScopes` has it."""
    if key.cache_group:
        return f"group {key.cache_group}"
    return f"key {key.id}"
