"""Other jobs on the worker's core: they work until the block is left, and leave nothing."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from edgespec.lab.rig import Processes, module
from tests.edgespec.lab.test_rig import until
from tools.places.load import working


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
