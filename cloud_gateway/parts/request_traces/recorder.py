"""The recorder: writes each request's log as a signed trace (docs/traces.md), in a thread of its own.

The engine's thread appends to a log and hands it over at the end; numbering, packing, signing and the disk happen
here. A trace that cannot be written is lost with a line in the log, and no answer waits for it.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from cloud_gateway.core.requests.generation import Generation
from cloud_gateway.engine.exchange import PolicyStart
from cloud_gateway.parts.request_traces import format as trace
from cloud_gateway.parts.request_traces.input_log import InputLog
from edgespec import __version__
from edgespec.core.errors import ConfigError, KeyStoreError
from edgespec.core.protocol.signing import SigningKey
from edgespec.shared.files import locked, private_folder, write_private

log = logging.getLogger("cloud_gateway.parts.request_traces.recorder")

PENDING = 64
"""Traces that may wait for the disk; further ones are lost."""
SUFFIX = ".trace"


@dataclass(frozen=True, slots=True)
class EndedLog:
    """The log of a request that is over."""

    log: InputLog
    finish: str


class Recorder:
    """`listener` is called on the event loop, `end` on the engine's thread; neither waits."""

    def __init__(self, folder: Path, key: SigningKey, *, salt: bool, limit_bytes: int, keep: int) -> None:
        """Makes the folder (0700). Raises ConfigError if that is impossible or others can read it."""
        self._folder = folder
        self._key = key
        self._salt = salt
        self._limit_bytes = limit_bytes
        self._keep = keep

        try:
            private_folder(folder)
            self._files = deque(sorted(folder.glob(f"*{SUFFIX}")))
        except (KeyStoreError, OSError) as error:
            raise ConfigError(f"`traces.folder`: {error}") from None

        self._said = ""
        self._queue: queue.Queue[EndedLog | None] = queue.Queue(PENDING)
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._thread.start()

    def listener(self, generation: Generation, start: PolicyStart) -> InputLog:
        """The log of a request that has just come."""
        made_at = int(time.time())
        return InputLog(generation, start, made_at, self._limit_bytes, self.end, salt=self._salt)

    def end(self, log: InputLog, finish: str) -> None:
        """The request is over. One that was never decided on leaves no trace."""
        if not log.decisions:
            return
        try:
            self._queue.put_nowait(EndedLog(log, finish))
        except queue.Full:
            self._complain(f"{PENDING} traces wait for the disk; that of request {log.generation.id} is lost.")

    def close(self, timeout_s: float = 10.0) -> None:
        """Writes what waits, and ends the thread."""
        self._queue.put(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (ended := self._queue.get()) is not None:
            recorded = ended.log.as_trace(__version__, ended.finish)
            try:
                self._write(recorded.header, trace.seal(recorded, self._key))
            except (KeyStoreError, OSError) as error:
                self._complain(f"the trace of request {recorded.header.request} is lost: {error}")

    def _write(self, header: trace.Header, data: bytes) -> None:
        when = time.strftime("%Y%m%dT%H%M%S", time.gmtime(header.made_at))
        path = self._folder / f"{when}-{header.request:06}{SUFFIX}"
        with locked(path.parent):
            write_private(path, data)

        self._files.append(path)
        while len(self._files) > self._keep:
            self._files.popleft().unlink(missing_ok=True)

    def _complain(self, text: str) -> None:
        """Says what is wrong once, not for each request."""
        level = logging.WARNING
        if self._said:
            level = logging.DEBUG
        log.log(level, "%s", text)
        self._said = text
