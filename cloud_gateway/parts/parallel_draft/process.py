"""The process of the gateway's own worker: its configuration, its start, its start again if it ends, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from cloud_gateway.links.paired import PairedWorkers
from edgespec.core.pairing.groups import OWN_GROUP
from edgespec.core.protocol.messages import VERSION
from edgespec.core.protocol.signing import SigningKey
from edgespec.shared.address import Address
from edgespec.shared.files import write_private
from edgespec.shared.keystore import KeyStore
from edgespec.shared.paired import PairedGateways

log = logging.getLogger("cloud_gateway.parts.parallel_draft.process")

NAME = "own worker"
RETRY_S = (1.0, 30.0)
"""Shortest and longest wait before it is started again; a run longer than the longest wait starts over."""
END_S = 10.0
"""Time for it to end by itself."""
TAIL = 3
"""Last lines of its output in the log entry of its end."""
_NOT_ITS_OWN = ("CREDENTIALS_DIRECTORY", "STATE_DIRECTORY", "RUNTIME_DIRECTORY", "NOTIFY_SOCKET", "WATCHDOG_USEC")
"""Variables that systemd gave to the gateway's process."""


@dataclass(frozen=True, slots=True)
class LikeLocal:
    """How it drafts: as the gateway's local draft is configured."""

    model: str
    threads: int = 0
    n_gpu_layers: int = 0
    cpu: tuple[int, ...] = ()


class OwnWorker:
    """Starts the process, starts it again if it ends, and ends it. Lives on the event loop."""

    def __init__(self, draft: LikeLocal, folder: Path, gateway: SigningKey, name: str, spki: bytes) -> None:
        """`folder`: of its keys and configuration, made if it is missing; the rest is the gateway's identity.

        Raises KeyStoreError.
        """
        self._draft = draft
        self._folder = folder
        self._gateway = gateway
        self._name = name
        self._spki = spki
        self._store = KeyStore(folder)
        self._task: asyncio.Task[None] | None = None

    def pair(self, workers: PairedWorkers) -> None:
        """Adds its key to the gateway's list, which the operator sees. Raises KeyStoreError."""
        workers.add(self._store.identity().public, NAME, VERSION, (OWN_GROUP,))

    def start(self, address: Address) -> None:
        """Runs it from now on; `address`: of the gateway's link port. Raises KeyStoreError."""
        PairedGateways(self._store.folder).add(
            self._gateway.public, self._spki, self._name, str(address), min_version=VERSION
        )
        write_private(self._folder / "worker.toml", _configuration(self._draft, self._folder).encode())
        self._task = asyncio.ensure_future(self._keep_running())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _keep_running(self) -> None:
        loop = asyncio.get_running_loop()
        wait_s = RETRY_S[0]
        while True:
            began = loop.time()
            try:
                ended = await self._run()
            except OSError as error:
                ended = f"it cannot be started ({error.strerror or error})"
            wait_s = RETRY_S[0] if loop.time() - began > RETRY_S[1] else wait_s
            log.warning("the gateway's own worker ended, and is started again in %.0f s: %s", wait_s, ended)
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, RETRY_S[1])

    async def _run(self) -> str:
        """One run; returns how it ended, in words."""
        environment = {name: value for name, value in os.environ.items() if name not in _NOT_ITS_OWN}
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "edgespec", "run", "--always", "--no-search", "--end-with-input"),
            *("--config", str(self._folder / "worker.toml")),
            stdin=PIPE,  # its end shows the process that the gateway is gone, however it ended
            stdout=DEVNULL,
            stderr=PIPE,
            env=environment,
        )
        log.info("the gateway's own worker runs as process %d", process.pid)
        try:
            tail = await _last_lines(process)
            return f"exit status {await process.wait()}; {' '.join(tail) or 'it printed nothing'}"
        finally:
            await _end(process)


def _configuration(draft: LikeLocal, folder: Path) -> str:
    """Its worker.toml: on this machine."""
    tables: dict[str, dict[str, object]] = {
        "draft": {"model": draft.model, "threads": draft.threads, "n_gpu_layers": draft.n_gpu_layers},
        "daemon": {"name": NAME, "state_dir": str(folder), "cpu": draft.cpu, "priority": "normal"},
    }
    lines = ["# Written by the gateway at each start (`local_draft.mode`); changes are lost."]
    for table, values in tables.items():
        lines += [f"[{table}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]

    return "\n".join(lines) + "\n"


async def _last_lines(process: Process) -> list[str]:
    """The last lines of its standard error, once that has ended."""
    assert process.stderr is not None
    lines: deque[str] = deque(maxlen=TAIL)
    async for line in process.stderr:
        lines.append(line.decode(errors="replace").strip())
    return list(lines)


async def _end(process: Process) -> None:
    """Ends it by closing its input, and by force if that takes too long."""
    if process.returncode is not None:
        return

    assert process.stdin is not None
    process.stdin.close()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), END_S)
    if process.returncode is None:
        process.kill()
        await process.wait()
