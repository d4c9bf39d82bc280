"""The priority of a worker that is started by hand, read back from the kernel while a real service drafts."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

import pytest

from edgespec.worker import models
from tests.support.services import serving_worker, until


def nice(thread: int) -> int:
    return os.getpriority(os.PRIO_PROCESS, thread)


def nices() -> dict[int, int]:
    """Each thread of this process that has not ended meanwhile."""
    found = {}
    for one in Path("/proc/self/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            found[int(one.name)] = nice(int(one.name))
    return found


def test_work_that_is_lowered_leaves_the_calling_thread_alone() -> None:
    before = nice(threading.get_native_id())
    assert models.run_lowered(lambda: nice(threading.get_native_id())) == models.LOWEST_NICE
    assert nice(threading.get_native_id()) == before < models.LOWEST_NICE
    with pytest.raises(ZeroDivisionError):
        models.run_lowered(lambda: 1 // 0)


async def test_what_computes_is_lowered_and_the_event_loop_is_not(tmp_path: Path) -> None:
    before = nice(threading.get_native_id())
    async with serving_worker(tmp_path, priority="idle") as running:
        await running.drafts(1)
        (drafting,) = (one.native_id for one in threading.enumerate() if one.name == "drafting")
        assert drafting is not None and nice(drafting) == models.LOWEST_NICE
        assert nice(threading.get_native_id()) == before
        assert running.loaded_at_nice == [models.LOWEST_NICE]
        threads = set(nices())
        await running.drafts(2)
        await until(lambda: running.service.daemon.stats.steps > 2)
        new = {thread: value for thread, value in nices().items() if thread not in threads}
        assert set(new.values()) <= {models.LOWEST_NICE}
