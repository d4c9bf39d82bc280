"""Other jobs on the worker's core: they work until the block is left, and leave nothing."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from edgespec.lab.rig import Processes, cpu_time_s, module
from tests.edgespec.lab.test_rig import gone, until
from tools.places.load import compiler, working


def test_busy_loops_work_until_the_block_is_left(tmp_path: Path) -> None:
    with working("loops", tmp_path, None, os.getpid) as pids:
        assert len(pids) == 2
        until(lambda: all(cpu_time_s([pid]) > 0.1 for pid in pids))
    assert all(map(gone, pids))


@pytest.mark.skipif(compiler() is None, reason="no C compiler")
def test_a_compile_job_ends_with_its_compiler_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    with working("compile", tmp_path, None, os.getpid) as (pid,):
        children = Path(f"/proc/{pid}/task/{pid}/children")
        seen = [""]
        until(
            lambda: seen.append(children.read_text()) or seen[-1] != ""
        )  # the next compiler begins when one has ended
        (job,) = map(int, seen[-1].split())
    assert gone(pid) and gone(job) and list((tmp_path / "tmp").iterdir()) == []


def test_a_stopped_worker_goes_on_when_the_block_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.places.load.STOP_EVERY_S", (0.0, 0.01))
    monkeypatch.setattr("tools.places.load.STOP_S", 60.0)
    with Processes(tmp_path) as processes:
        processes.start("worker", [*module("http.server"), "0"])
        status = Path(f"/proc/{processes.pid('worker')}/stat")

        def state() -> str:
            return status.read_text().rpartition(")")[2].split()[0]

        with working("stops", tmp_path, None, lambda: processes.pid("worker")):
            until(lambda: state() == "T")
        assert state() != "T"
        processes.stop("worker", signal.SIGKILL)
