"""What a daemon does from its first line until it is ready: it names each step, and can be asked and stopped meanwhile.

starting = Starting("edgespec 0.1")       # the first line, before any library is imported
starting("loading the draft model")       # from any thread: log, systemd's STATUS=, `status`
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import signal
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from edgespec.shared import sdnotify
from edgespec.shared.procstat import busy_because

log = logging.getLogger("edgespec.starting")

REMIND_S = 10.0
"""Between lines of the log while one step takes long."""
T = TypeVar("T")


class Stopped(Exception):
    """A signal came before the daemon was ready."""


class Starting:
    """The steps of one start, each with the seconds since the first line."""

    def __init__(self, program: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._step = "", self._began
        log.info("%s starts", program)

    def __call__(self, doing: str) -> None:
        self._step = doing, self._clock()
        self._tell("", doing)

    @property
    def seconds(self) -> float:
        """Since the first line."""
        return self._clock() - self._began

    def status(self) -> dict[str, object]:
        """The answer to `status` until the daemon is ready."""
        doing, since = self._step
        return {
            "state": "starting",
            "doing": doing,
            "doing_s": round(self._clock() - since, 1),
            "busy": busy_because(),
        }

    async def finished(self, work: Callable[[], T], stop: asyncio.Event) -> T:
        """`done` for `work` in a thread; if it is stopped, the work goes on unobserved and ends with the process."""
        return await self.done(in_thread(work), stop)

    async def done(self, running: asyncio.Future[T], stop: asyncio.Event) -> T:
        """The result of `running`; the log repeats a step that takes long. Raises Stopped, and cancels it, if `stop` is
        set first.
        """
        stopping = asyncio.ensure_future(stop.wait())
        try:
            while not (running.done() or stopping.done()):
                await asyncio.wait(
                    (running, stopping),
                    timeout=REMIND_S,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if not (running.done() or stopping.done()):
                    busy = busy_because()
                    self._tell("still ", f"{self._step[0]}{'; ' if busy else ''}{busy}")
        finally:
            stopping.cancel()
        if not running.done():
            running.cancel()
            raise Stopped

        return running.result()

    def _tell(self, still: str, doing: str) -> None:
        log.info("starting, %.1f s: %s%s", self.seconds, still, doing)
        sdnotify.notify(f"STATUS=starting: {doing}")


def on_stop_signals(stop: Callable[[signal.Signals], None]) -> None:
    """Calls `stop` on the event loop at SIGTERM, SIGINT and SIGHUP (a closed terminal; not under `nohup`)."""
    loop = asyncio.get_running_loop()
    for sig in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if sig is not signal.SIGHUP or signal.getsignal(sig) is not signal.SIG_IGN:
            loop.add_signal_handler(sig, stop, sig)


def in_thread(work: Callable[[], T]) -> asyncio.Future[T]:
    """Runs `work` in a daemon thread, which ends with the process; the event loop's own threads would delay it."""
    found: concurrent.futures.Future[T] = concurrent.futures.Future()
    found.set_running_or_notify_cancel()

    def body() -> None:
        try:
            found.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised when the result is awaited
            found.set_exception(error)

    threading.Thread(target=body, name="loading", daemon=True).start()
    return asyncio.wrap_future(found)
