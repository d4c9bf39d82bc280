"""Tries of a JSON schema before it is compiled here.

check_size(schema)    its nodes and depth; without recursion, in time linear in its size
Trial().fault(text)   compiles it in a process that may be killed, since the time of a compilation has no bound

A grammar cannot be passed from one process to another. So it is compiled there first, under limits of processor time
and memory, and here again only if that succeeded, at the same cost.
"""

from __future__ import annotations

import json
import logging
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from edgespec.core.errors import ClientError, EdgespecError
from edgespec.shared.log_text import Throttle

log = logging.getLogger("cloud_gateway.models.trial")

PROGRAM = Path(__file__).with_name("trial_process.py")
MAX_WAIT_S = 30.0
"""For one schema, and so how long one may hold up others. Its processor time is limited in the process itself (0.5 s);
this is for a machine so busy that it does not get that much."""
MAX_START_S = 60.0
MAX_REPLY_BYTES = 4096
TOO_COMPLEX = "it is too complex; use fewer alternatives, or shorter patterns"


class TrialError(EdgespecError):
    """The process for schemas cannot be started; the installation is broken, or the machine has no memory."""


class Trial:
    """One such process, started at the first use, and again after it had to be killed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._noted = Throttle()

    def fault(self, grammar: str) -> str | None:
        """The fault of a grammar, as the end of a sentence; None where it can be compiled.

        Raises ClientError 503 where the machine was too busy to find out, and TrialError.
        """
        with self._lock:
            if self._process is not None and self._process.poll() is not None:
                self._kill()  # it ended between two schemas, maybe killed by the operator
            process = self._process or self._start()
            line = json.dumps({"grammar": grammar}).encode() + b"\n"
            with suppress(OSError):  # it has ended: then there is no reply
                assert process.stdin is not None
                process.stdin.write(line)
                process.stdin.flush()
            try:
                reply = _reply(process, MAX_WAIT_S)
            except TimeoutError:
                self._kill()
                sentence = "The gateway is too busy to compile a JSON schema just now; send the request again shortly."
                raise ClientError(sentence, status=503, code="overloaded", retry_after_s=MAX_WAIT_S) from None
            if reply is not None:
                return reply["fault"]
            self._kill()
            more = self._noted.admit(process.returncode, time.monotonic())  # any API key can provoke this line
            if more is not None:
                log.info("a JSON schema was refused: its compilation ended with status %d", process.returncode)
            return TOO_COMPLEX

    def close(self) -> None:
        """Ends the process at once, also during a compilation; the next schema would start another."""
        process = self._process
        if self._lock.acquire(blocking=False):
            self._kill()
            self._lock.release()
        elif process is not None:
            process.kill()

    def _start(self) -> subprocess.Popen[bytes]:
        """Isolated (-I): it uses nothing of the environment but the installed packages."""
        try:
            self._process = process = subprocess.Popen(
                [sys.executable, "-I", str(PROGRAM)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd="/",
            )
        except OSError as error:
            raise TrialError(f"The process that compiles JSON schemas does not start ({error.strerror}).") from error
        with suppress(TimeoutError):
            if _reply(process, MAX_START_S) is not None:
                return process
        self._kill()
        raise TrialError("The process that compiles JSON schemas does not start; reinstall the package llguidance.")

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()


def _reply(process: subprocess.Popen[bytes], max_s: float) -> dict[str, Any] | None:
    """The next line; None where the process ends first. Raises TimeoutError after `max_s`."""
    assert process.stdout is not None
    data, waiting, ends_at = b"", select.poll(), time.monotonic() + max_s  # not select(): 1024 descriptors at most
    waiting.register(process.stdout, select.POLLIN)
    while not data.endswith(b"\n") and len(data) < MAX_REPLY_BYTES:
        if not waiting.poll(max(0.0, ends_at - time.monotonic()) * 1e3):
            raise TimeoutError
        chunk: bytes = process.stdout.read1(MAX_REPLY_BYTES)  # type: ignore[attr-defined]
        if not chunk:
            return None
        data += chunk
    reply: dict[str, Any] = json.loads(data)
    return reply


MAX_SCHEMA_BYTES = 64 * 1024
MAX_NODES = 1024
"""Objects and lists. An object of so many properties takes 0.15 s; llguidance supports about 500 optional ones."""
MAX_DEPTH = 64
"""Objects and lists within each other. llguidance reads 127 levels."""


def check_size(schema: Any) -> str | None:
    """The bound that a schema exceeds, as the end of a sentence; None where it exceeds none."""
    nodes, level = 0, [schema]
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for node in level:
            inner += [part for part in _parts(node) if isinstance(part, Mapping | list)]
            if nodes + len(inner) > MAX_NODES:
                return f"the schema has more than {MAX_NODES} objects and lists; ask for less at once"
        if not inner:
            return None
        nodes, level = nodes + len(inner), inner
    return f"the schema is nested more than {MAX_DEPTH} levels deep; move inner parts to '$defs'"


def _parts(node: Any) -> Iterator[Any]:
    return iter(node.values() if isinstance(node, Mapping) else node)
