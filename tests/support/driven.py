"""An event loop on a driven clock: what waits for time alone goes on at once, on any machine in the same order.

Tests with `pytest.mark.driven` run in it (tests/conftest.py). The engine's thread takes turns with it: one of the two
runs at a time, the engine until it sleeps or waits. Nothing else in such a test may wait for a thread or a process.
"""

from __future__ import annotations

import asyncio
import selectors
import threading
from typing import Any

from cloud_gateway.engine.loop import Engine

LOOK_S = 1e-6
"""By which the clock moves each time that it is read, so that nothing takes no time at all."""


class _Selector(selectors.DefaultSelector):
    """If no socket has anything, it lets a thread go on or moves the clock to the next deadline."""

    loop: DrivenLoop

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        threads = [thread for thread in self.loop.threads if not thread.ended]
        first = min(threads, key=lambda thread: thread.due, default=None)
        if first is not None and (timeout is None or first.due <= self.loop.now + timeout):
            self.loop.now = max(self.loop.now, first.due)
            first.run()
            return super().select(0)
        if timeout is None:
            return super().select(None)
        self.loop.now += timeout
        return ready


class DrivenLoop(asyncio.SelectorEventLoop):
    """Its clock begins at 0 and moves as said above."""

    def __init__(self) -> None:
        self.now = 0.0
        selector = _Selector()
        self.threads: list[Turns] = []
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        """Seconds."""
        self.now += LOOK_S
        return self.now


class Turns:
    """A thread that takes turns with the loop; in place of the event on which the engine waits."""

    def __init__(self, loop: DrivenLoop) -> None:
        self._loop = loop
        self._until = 0.0
        self._asleep = False
        self._set = False
        self._go = threading.Semaphore(0)
        self._paused = threading.Semaphore(0)
        self.ended = False
        loop.threads.append(self)

    @property
    def due(self) -> float:
        """When it goes on."""
        return self._loop.now if self._set and not self._asleep else self._until

    def run(self) -> None:
        """In the loop: lets the thread run until it pauses or ends."""
        self._go.release()
        self._paused.acquire()

    def finish(self) -> None:
        """In the loop: lets it run until it ends, whatever it waits for."""
        while not self.ended:
            self._loop.now = max(self._loop.now, self._until)
            self.run()

    def begin(self) -> None:
        """In the thread: before anything else."""
        self._go.acquire()

    def end(self) -> None:
        """In the thread: after everything else."""
        self.ended = True
        self._paused.release()

    def wait(self, timeout: float) -> None:
        """In the thread: until `set`, or so many seconds."""
        self._until = self._loop.now + timeout
        self._paused.release()
        self._go.acquire()

    def sleep(self, seconds: float) -> None:
        """In the thread: so many seconds."""
        self._asleep = True
        self.wait(seconds)
        self._asleep = False

    def set(self) -> None:
        """Wakes the thread from a wait."""
        self._set = True

    def is_set(self) -> bool:
        """Whether it is to be woken."""
        return self._set

    def clear(self) -> None:
        """Undoes `set`."""
        self._set = False


class DrivenEngine(Engine):
    """An engine whose thread takes turns with the loop that it is made in."""

    def __init__(self, *parts: Any, **options: Any) -> None:
        loop: Any = asyncio.get_running_loop()
        super().__init__(*parts, clock=loop.time, **options)
        self._wake: Any = Turns(loop)
        self.target.sleep = self._wake.sleep  # type: ignore[attr-defined]

    def _run(self) -> None:
        self._wake.begin()
        super()._run()
        self._wake.end()

    def stop(self, timeout_s: float = 10.0) -> None:
        """Ends every completion as cancelled."""
        self._stopping = True
        self._wake.finish()
        super().stop(timeout_s)
