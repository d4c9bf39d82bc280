"""Work on requests that is too long for the event loop, in fair turns between API keys."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from cloud_gateway.api.errors import unavailable
from cloud_gateway.core.limits.turns import Turns

T = TypeVar("T")


class _Job:
    def __init__(self, key: str, work: Callable[[], Any]) -> None:
        self.key, self.work = key, work
        self.result: asyncio.Future[Any] = asyncio.get_running_loop().create_future()


class TurnedThreads:
    """A few threads; each key has one piece of work running at a time, and keys take turns. For one event loop."""

    def __init__(self, name: str, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._free, self._closed = threads, False
        self._turns: Turns[_Job] = Turns()

    async def run(self, key: str, work: Callable[[], T]) -> T:
        """The result of `work`. If the caller is cancelled, work that has not begun is dropped."""
        job = _Job(key, work)
        self._turns.add(key, job, most=1)
        self._begin()
        try:
            result: T = await job.result
        finally:
            self._turns.remove(key, job)
        return result

    def close(self) -> None:
        """Begins no more work; callers that wait get a 503."""
        self._closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)
        for job in self._turns:
            if not job.result.done():
                job.result.set_exception(_shutting_down())

    def _begin(self) -> None:
        while self._free and not self._closed and (job := self._turns.take()) is not None:
            self._free -= 1
            running = asyncio.get_running_loop().run_in_executor(self._pool, job.work)
            running.add_done_callback(partial(self._ended, job))

    def _ended(self, job: _Job, done: asyncio.Future[Any]) -> None:
        self._free += 1
        self._turns.ended(job.key)
        error = _shutting_down() if done.cancelled() else done.exception()
        if not job.result.done():
            if error is not None:
                job.result.set_exception(error)
            else:
                job.result.set_result(done.result())
        self._begin()


def _shutting_down() -> Exception:
    return unavailable("The gateway is shutting down; send the request again shortly.", code="shutting_down")
