"""Other jobs on the worker's core, as its owner has them: busy loops, a compile job, or a worker that is stopped.

`python -m tools.places.load loops|compile` works until its standard input ends, at most MAX_S.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, get_args

from edgespec.core.errors import ConfigError
from edgespec.lab.rig.processes import Processes, module

Kind = Literal["none", "loops", "compile", "stops"]
KINDS: tuple[Kind, ...] = get_args(Kind)
MAX_S = 4 * 3600.0
"""Longer than any table; ends a job whose parent was killed with its pipe open elsewhere."""
LOOPS = 2
STOP_S = 1.0
"""For how long a worker is stopped each time, as a suspended terminal or a debugger would."""
STOP_EVERY_S = (2.0, 6.0)
FUNCTIONS = 4000
"""In the file that is compiled; about two seconds of gcc -O2."""


@contextmanager
def working(kind: Kind, folder: Path, core: int | None, worker_pid: Callable[[], int]) -> Iterator[list[int]]:
    """The load until the block is left; gives its process ids. Raises ConfigError where there is no compiler."""
    if kind == "compile" and compiler() is None:
        raise ConfigError("--worker-load compile needs a C compiler (cc or gcc); install one or choose `loops`.")
    if kind == "stops":
        with _stops(worker_pid):
            yield []
        return
    names = {"none": [], "loops": [f"loop{i}" for i in range(LOOPS)], "compile": ["compile"]}[kind]
    with Processes(folder) as processes:
        for name in names:
            processes.start(name, [*module("tools.places.load"), kind], core, piped=True)
        for name in names:
            processes.line(name)
        try:
            yield processes.pids()
        finally:
            for name in names:
                processes.stop(name, sig=None)  # each ends with its input, after what it compiles


def compiler() -> str | None:
    """The C compiler's path."""
    return shutil.which("cc") or shutil.which("gcc")


@contextmanager
def _stops(worker_pid: Callable[[], int]) -> Iterator[None]:
    """Stops the worker's process for STOP_S now and then; it runs when the block is left."""
    ended, rng = threading.Event(), random.Random(1)

    def stop_and_go() -> None:
        while not ended.wait(rng.uniform(*STOP_EVERY_S)):
            with suppress(OSError, KeyError):  # it may have ended
                pid = worker_pid()
                os.kill(pid, signal.SIGSTOP)
                try:
                    ended.wait(STOP_S)
                finally:
                    os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=stop_and_go)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def main(kind: str) -> None:
    """Works in the main thread; a second one waits for the end of the standard input."""
    ended = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    print("working", flush=True)
    until = time.monotonic() + MAX_S
    with tempfile.TemporaryDirectory(prefix="edgespec-load-") as folder:
        source = Path(folder) / "job.c"
        source.write_text("\n".join(f"int f{i}(int a){{return a*{i}+(a>>{i % 31});}}" for i in range(FUNCTIONS)))
        while not ended.is_set() and time.monotonic() < until:
            if kind == "compile":
                _compile(source, ended)
            else:
                sum(range(20_000))


def _compile(source: Path, ended: threading.Event) -> None:
    """One run of the compiler, broken off with all its processes when `ended`; its files are beside `source`."""
    command = [compiler() or "cc", "-O2", "-c", str(source), "-o", f"{source}.o"]
    there = os.environ | {"TMPDIR": str(source.parent)}
    with subprocess.Popen(command, env=there, start_new_session=True) as job:
        while job.poll() is None:
            if ended.wait(0.02):
                os.killpg(job.pid, signal.SIGKILL)
                job.wait()


if __name__ == "__main__":
    main(sys.argv[1])
