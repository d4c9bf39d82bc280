"""The audit log: which worker was given which request, when, and how that ended. No text, no tokens.

Lines of JSON in the folder `audit` of the state folder, readable by its owner only. Each API key has files of its own,
so that no key's requests push out what was recorded of another's: `audit-KEY.jsonl`, which is renamed to
`audit-KEY.jsonl.1` when it is full, and so on; `audit.jsonl` has what belongs to no key. The engine's thread appends to
a queue; a separate thread writes.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import os
import queue
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from edgespec.core.errors import UNDECODABLE
from edgespec.shared.files import private_folder
from edgespec.shared.log_text import Throttle, cause

if TYPE_CHECKING:
    from cloud_gateway.core.requests.request import GenerationRequest

log = logging.getLogger("cloud_gateway.parts.audit")

FILE_NAME = "audit.jsonl"
"""The file of the entries without a key."""
MAX_PENDING = 10_000
"""Entries that may wait for the disk, about 3 MB; further ones are dropped and counted."""
MAX_BATCH = 500
"""Entries of one write."""

BATCH = 200
"""Entries of one message: about 70 KB, so that other commands do not wait long."""

Kind = Literal["assigned", "released", "declined", "moved", "quarantined", "lifted"]


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line. `assigned`: the prompt was sent to the worker. `released`, `declined`, `moved`: nothing was sent to it
    from then on. `quarantined` and `lifted`: of the worker, without request and key."""

    time: float
    """Unix seconds."""
    event: Kind
    request: str
    """The API's `x-request-id`; its completions (`n`) are assigned one by one."""
    key: str
    """Id of the API key."""
    key_name: str
    worker: str
    """Key id, as `cloud-gateway workers list` shows it."""
    worker_name: str
    reason: str = ""
    """Of `released`: how the completion ended; of `quarantined`: why."""
    frames: int | None = None
    """Frames of this worker that brought candidates."""
    learn: bool = False
    """Of `assigned`: the key consented that the worker keeps the text to learn from it."""


class AuditLog:
    """Writes entries in a thread, from construction until `close`. If the disk is full, entries are dropped."""

    def __init__(self, folder: Path, max_bytes: int, keep: int) -> None:
        """`max_bytes`: of one file; `keep`: number of full files kept. Raises KeyStoreError for the folder."""
        private_folder(folder)
        self._folder = folder
        self._max_bytes = max_bytes
        self._keep = keep
        self._pending: queue.Queue[Entry | None] = queue.Queue(MAX_PENDING)
        self._throttle = Throttle()
        self._lost = 0
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
        self._thread.start()

    def assigned(self, request: GenerationRequest, worker: str, name: str) -> None:
        """The prompt is sent to a worker."""
        self._put(
            Entry(
                time.time(),
                "assigned",
                request.id,
                request.key,
                request.key_name,
                worker,
                name,
                learn=request.learn,
            )
        )

    def released(self, request: GenerationRequest, worker: str, name: str, reason: str, frames: int) -> None:
        """Nothing more of the request is sent to the worker. `reason`: as in `events.Released`."""
        event: Kind = "released"
        if reason == "declined":
            event = "declined"
            reason = ""
        elif reason == "moved":
            event = "moved"
            reason = ""
        self._put(Entry(time.time(), event, request.id, request.key, request.key_name, worker, name, reason, frames))

    def worker(self, event: Literal["quarantined", "lifted"], worker: str, name: str, why: str) -> None:
        self._put(Entry(time.time(), event, "", "", "", worker, name, why))

    def close(self, timeout_s: float = 10.0) -> None:
        """Writes the queued entries and ends the thread."""
        try:
            self._pending.put(None, timeout=timeout_s)
        except queue.Full:
            return  # the disk accepts no data: the thread ends with the process
        self._thread.join(timeout_s)

    def _put(self, entry: Entry) -> None:
        try:
            self._pending.put_nowait(entry)
        except queue.Full:
            self._lose(1, "the disk is too slow")

    def _run(self) -> None:
        ended = False
        while not ended:
            batch: list[Entry] = []
            entry = self._pending.get()
            while entry is not None:
                batch.append(entry)
                if len(batch) >= MAX_BATCH or self._pending.empty():
                    break
                entry = self._pending.get()
            ended = entry is None
            if batch:
                self._write(batch)

    def _write(self, batch: Sequence[Entry]) -> None:
        for key, found in itertools.groupby(sorted(batch, key=_key), _key):
            entries = list(found)
            try:
                append(self._folder / file_name(key), entries, self._max_bytes, self._keep)
            except OSError as error:
                self._lose(len(entries), cause(error))

    def _lose(self, count: int, why: str) -> None:
        self._lost += count
        if self._throttle.admit("lost", time.monotonic()) is not None:
            log.error("the audit log cannot be written (%s): %d entries are lost so far", why, self._lost)


def append(path: Path, entries: Sequence[Entry], max_bytes: int, keep: int) -> None:
    """Adds lines, after renaming a file that has no room for them. Raises OSError."""
    data = b"".join(msgspec.json.encode(entry) + b"\n" for entry in entries)
    descriptor = _open(path)
    try:
        size = os.fstat(descriptor).st_size
        if size and size + len(data) > max_bytes:
            os.close(descriptor)
            descriptor = -1
            _rotate(path, keep)
            descriptor = _open(path)
            size = 0
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            data = b"\n" + data  # the last write was cut off by a full disk: the rest of its line is missing
        while data:
            data = data[os.write(descriptor, data) :]
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def _open(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    os.fchmod(descriptor, 0o600)
    return descriptor


def _rotate(path: Path, keep: int) -> None:
    names = [path, *(path.with_name(f"{path.name}.{n}") for n in range(1, keep + 1))]
    for source, target in reversed(list(itertools.pairwise(names))):
        if source.exists():
            source.replace(target)


def entries(folder: Path, since: float = 0.0) -> Iterator[Entry]:
    """The entries from `since` (Unix seconds) on, oldest first; damaged lines are skipped. Raises OSError."""
    names = {path.name.partition(".jsonl")[0] for path in folder.glob("audit*.jsonl*")}
    return heapq.merge(*(_of_one(folder, f"{name}.jsonl", since) for name in names), key=lambda entry: entry.time)


async def batches(folder: Path, since: float) -> AsyncIterator[dict[str, object]]:
    """The entries from `since` on for the control socket, oldest first. Raises OSError."""
    found = entries(folder, since)
    while batch := await asyncio.to_thread(lambda: list(itertools.islice(found, BATCH))):
        yield {"entries": msgspec.to_builtins(batch)}


def file_name(key: str) -> str:
    if key:
        return f"audit-{key}.jsonl"
    return FILE_NAME


def _key(entry: Entry) -> str:
    return entry.key


def _of_one(folder: Path, name: str, since: float) -> Iterator[Entry]:
    decode = msgspec.json.Decoder(Entry).decode
    for path in sorted(folder.glob(f"{name}*"), key=_age, reverse=True):
        for line in path.read_bytes().split(b"\n"):
            try:
                entry = decode(line)
            except UNDECODABLE:
                continue
            if entry.time >= since:
                yield entry


def _age(path: Path) -> int:
    number = path.name.rpartition(".")[2]
    if number.isdigit():
        return int(number)
    return 0
