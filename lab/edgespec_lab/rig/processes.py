"""Child processes by name: started on a core, with a log each, read line by line, and ended by their process ids."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

from edgespec.core.errors import EdgespecError
from edgespec.shared import procstat

END_S = 15.0
"""Longest wait for a process to end by itself before it is killed."""
TAIL_LINES = 8
"""Last lines of a log in an error."""


class RigError(EdgespecError):
    """A process of the rig failed; the text ends with its last lines of output."""

    exit_code = 70


class Processes:
    """Use as a context manager: leaving it ends every process, those named in `last` after the others."""

    def __init__(self, folder: Path, last: Sequence[str] = (), environment: Mapping[str, str] | None = None) -> None:
        """`folder` takes the logs; `environment` is added to this process's own."""
        self.folder = folder
        self.last = [*last]
        self.environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"} | dict(environment or {})
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.ended: dict[str, int] = {}
        """Exit statuses of those that were stopped."""

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        with ExitStack() as ends:  # a signal that interrupts one end does not prevent the others
            for name in sorted(self._running, key=self.last.__contains__, reverse=True):
                ends.callback(self.stop, name)

    def start(self, name: str, command: Sequence[str], core: int | None = None, *, piped: bool = False) -> None:
        """Starts a command that `say` writes to; `piped`: `line` reads its output, otherwise a log takes that too."""
        pin = [] if core is None else ["taskset", "-c", str(core)]
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / f"{name}.log").open("ab") as log:
            pipe = subprocess.PIPE
            out = subprocess.PIPE if piped else log
            with _signals_later():
                self._running[name] = subprocess.Popen(
                    [*pin, *command], stdin=pipe, stdout=out, stderr=log, env=self.environment
                )

    def say(self, name: str, line: bytes) -> None:
        """One line to a process. Raises RigError if it has ended."""
        stdin = self._running[name].stdin
        assert stdin is not None
        try:
            stdin.write(line + b"\n")
            stdin.flush()
        except BrokenPipeError:
            raise self.failed(name) from None

    def line(self, name: str) -> bytes:
        """The next line of a piped process. Raises RigError if it has ended."""
        stdout = self._running[name].stdout
        assert stdout is not None
        if line := stdout.readline():
            return line
        raise self.failed(name)

    def wait_for(self, name: str, done: Callable[[], bool], timeout_s: float) -> None:
        """Until `done`. Raises RigError if the process ends before, or time runs out."""
        deadline = time.monotonic() + timeout_s
        while not done():
            if not self.runs(name) or time.monotonic() > deadline:
                raise self.failed(name)
            time.sleep(0.05)

    def failed(self, name: str) -> RigError:
        """The error for a process that is of no use any more; one that waits for another is not to blame for it."""
        ended = [other for other, process in self._running.items() if other != name and process.poll() is not None]
        name = name if not self.runs(name) or not ended else ended[0]
        lines = self.log(name).splitlines()
        crash = next((at for at, line in enumerate(lines) if line.startswith("Fatal Python error")), None)
        tail = "\n".join(lines[-TAIL_LINES:] if crash is None else lines[crash : crash + TAIL_LINES])
        return RigError(f"The {name} {_end(self._running[name].poll())}. It wrote:\n{tail or 'nothing'}")

    def stop(self, name: str, sig: signal.Signals | None = signal.SIGTERM) -> str:
        """Ends one process and waits until it has gone; returns what is left of its piped output.

        `sig` None: only its standard input is closed.
        """
        process = self._running.pop(name, None)
        if process is None:
            return ""

        if sig is not None and process.poll() is None:
            process.send_signal(sig)
        try:
            output, _ = process.communicate(timeout=END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
        except BaseException:  # interrupted while it waits: the process would outlive its rig
            process.kill()
            raise
        self.ended[name] = process.returncode
        return (output or b"").decode(errors="replace")

    def runs(self, name: str) -> bool:
        """Whether this process was started and has not ended."""
        process = self._running.get(name)
        return process is not None and process.poll() is None

    def pid(self, name: str) -> int:
        return self._running[name].pid

    def pids(self) -> list[int]:
        """Process ids of all that was started and not stopped."""
        return [process.pid for process in self._running.values()]

    def log(self, name: str) -> str:
        """The output of a process so far, without what is piped."""
        path = self.folder / f"{name}.log"
        if path.exists():
            return path.read_text(errors="replace")
        return ""


@contextmanager
def _signals_later() -> Iterator[None]:
    """A signal to end that comes within the block is raised after it, so that no process is begun and forgotten."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Python runs handlers in the main thread only
        return

    came: list[int] = []
    before = {sig: signal.signal(sig, lambda got, _: came.append(got)) for sig in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for sig, handler in before.items():
            signal.signal(sig, handler)
        for number in came:
            signal.raise_signal(number)


def _end(code: int | None) -> str:
    """How a process ended, from its exit status; None: it runs."""
    if code is None:
        return "did not get ready"
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended early, with exit code {code}"


def module(name: str) -> list[str]:
    return [sys.executable, "-m", name]


def cpu_time_s(pids: Iterable[int]) -> float:
    """Seconds that these processes' threads have run so far (Linux schedstat, first figure)."""
    return sum(procstat.schedstat_s(pid, 0) for pid in pids)


def waited_s(pids: Iterable[int]) -> float:
    """Seconds that these processes' threads could run and waited for a core (schedstat, second figure)."""
    return sum(map(procstat.waited_s, pids))


def machine_time_s() -> float:
    """Seconds that all cores together have been busy so far (proc_stat(5): user, nice, system)."""
    with Path("/proc/stat").open() as file:
        ticks = [int(figure) for figure in file.readline().split()[1:4]]
    return sum(ticks) / os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    """A port of the loopback interface that is free now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
