"""Starts and stops the process that learns (night.py): it runs only while the worker may draft, as at night."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor
from importlib.util import find_spec
from pathlib import Path

from edgespec.core.errors import EdgespecError
from edgespec.parts.healing.store import MIN_NEW, MIN_TEXTS, read_learnt, scope_folders, texts_of

log = logging.getLogger("edgespec.parts.healing")

LOOK_S = 0.2
"""Between two looks at whether the owner is back while the process runs."""
END_S = 0.4
"""After which a process that was asked to end is killed: with both it is gone within a second."""
DUE_S = 20.0
"""Between two looks at whether there is something to learn: each lists the files of all texts."""
GONE_S = 10.0
"""How long a deletion waits for a killed process, which the kernel ends within milliseconds."""
AFTER_FAULT_S = 3600.0
"""After which a scope whose process failed is tried again."""
PACKAGES = ("torch", "gguf", "jinja2", "safetensors")
MAX_SAID = 2000


class Trainer:
    """On the event loop."""

    def __init__(
        self,
        folder: Path,
        draft: Callable[[], Path],
        may_run: Callable[[], bool],
        thread: Executor,
    ) -> None:
        """`draft`: finds the file of the draft model; may raise EdgespecError. `thread`: the one that also deletes."""
        self._folder = folder
        self._draft = draft
        self._may_run = may_run
        self._thread = thread
        self._child: asyncio.subprocess.Process | None = None
        self._learning = False
        """Whether there is a process, or one is being started."""
        self._kills = 0
        self._gone = threading.Event()
        self._gone.set()
        self._not_before: dict[Path, float] = {}

    @property
    def pid(self) -> int | None:
        """Of the process that learns; None while there is none."""
        if self._child is None:
            return None
        return self._child.pid

    async def run(self) -> None:
        """Learns until it is cancelled."""
        missing = [name for name in PACKAGES if find_spec(name) is None]
        if missing:
            log.warning(
                "this worker keeps texts and does not learn from them, because the package %s is not installed: run "
                '`pip install "edgespec[learn]"`',
                missing[0],
            )
            return

        loop = asyncio.get_running_loop()
        while True:
            # The thread deletes what `kill` was called for before it looks, or the process is killed when it starts.
            kills = self._kills
            scope = None
            if self._may_run():
                scope = await loop.run_in_executor(self._thread, self._due)
            if scope is None:
                await asyncio.sleep(DUE_S)
            else:
                await self._learn(scope, kills)

    def kill(self) -> None:
        """Ends the process, or the one that is being started, before what it reads or writes is deleted."""
        self._kills += 1
        if self._learning:
            self._gone.clear()
        if self._child is not None:
            _kill(self._child)

    def wait_until_gone(self) -> None:
        """Returns when a killed process has ended, so that it writes nothing any more. Not on the event loop."""
        self._gone.wait(GONE_S)

    def _due(self) -> Path | None:
        """The scope with the most texts that nothing was learnt from yet, if there are enough."""
        now = time.monotonic()
        waiting: list[tuple[int, Path]] = []
        for scope in scope_folders(self._folder):
            texts = list(texts_of(scope))
            learnt = read_learnt(scope)
            new = len(texts)
            if learnt is not None:
                new = sum(_newer(path, learnt.time) for path in texts)
            if len(texts) >= MIN_TEXTS and new >= MIN_NEW and now >= self._not_before.get(scope, 0.0):
                waiting.append((new, scope))
        if not waiting:
            return None
        return max(waiting)[1]

    async def _learn(self, scope: Path, kills: int) -> None:
        """Runs the process until it ends, or until the owner is back."""
        try:
            draft = await asyncio.to_thread(self._draft)
        except EdgespecError as error:
            log.warning("nothing is learnt: %s", error)
            self._not_before[scope] = time.monotonic() + AFTER_FAULT_S
            return

        self._learning = True
        try:
            child = self._child = await _started(scope, draft)
            if self._kills != kills:
                _kill(child)
            await self._watch(scope, child, kills)
        finally:
            if self._child is not None:
                _kill(self._child)
            self._child = None
            self._learning = False
            self._gone.set()

    async def _watch(self, scope: Path, child: asyncio.subprocess.Process, kills: int) -> None:
        """Until the process has ended; says how it did."""
        assert child.stdout is not None
        said = asyncio.ensure_future(child.stdout.read(MAX_SAID))
        stopped = False
        while child.returncode is None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(child.wait(), LOOK_S)
            if child.returncode is None and not self._may_run():
                stopped = True
                await _stop(child)

        sentence = (await said).decode(errors="replace").strip()
        if stopped or self._kills != kills:
            log.info("learning was stopped")
        elif child.returncode:
            log.warning("nothing was learnt: %s", sentence or f"the process ended with {child.returncode}")
            self._not_before[scope] = time.monotonic() + AFTER_FAULT_S
        else:
            log.info("learning: %s", sentence)


async def _started(scope: Path, draft: Path) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "edgespec.parts.healing.night",
        str(scope),
        str(draft),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


async def _stop(child: asyncio.subprocess.Process) -> None:
    """Asks the process to end, which saves what it learnt, and kills it if that takes long."""
    with contextlib.suppress(ProcessLookupError):
        _lift(child.pid)
        child.send_signal(signal.SIGTERM)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(child.wait(), END_S)
        return
    _kill(child)
    await child.wait()


def _kill(child: asyncio.subprocess.Process) -> None:
    if child.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            _lift(child.pid)
            child.kill()


def _lift(pid: int) -> None:
    """Takes the threads of a process off the one core and out of SCHED_IDLE, where they would not even end while others
    use it. Only a process with CAP_SYS_NICE may do the latter; without it the kernel ends them when a core is idle.
    """
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(OSError):
            os.sched_setaffinity(int(task.name), os.sched_getaffinity(0))
            os.sched_setscheduler(int(task.name), os.SCHED_OTHER, os.sched_param(0))


def _newer(path: Path, seconds: int) -> bool:
    """Whether a text was stored after this time."""
    return path.name.partition("-")[0] > f"{seconds:010}"
