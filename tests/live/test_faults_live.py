"""Rows of the table of faults that need no new process: equal texts, no stall over the bound, full recovery."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgespec_lab.rig import Rig, RigError
from tests.faults.run import run
from tests.faults.scene import Scene
from tests.faults.table import TABLE, Scenario

QUICK = (
    "a worker is frozen for 1 s",
    "the gateway is frozen for 1 s",
    "the links are cut",
    "a partition of 1 s",
    "half open: frames to the gateway are lost for 2 s",
    "5 % loss",
    "300 ms jitter",
    "a worker is paused and resumed",
    "the gateway's disk is full",
    "the gateway has no descriptor left",
    "six clients hang up",
    "garbage on the link port",
)

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with Scene(tmp_path_factory.mktemp("faults")) as made:
        yield made


@pytest.mark.parametrize("scenario", [row for row in TABLE if row.name in QUICK], ids=lambda row: row.name)
def test_a_fault_changes_no_text_and_heals(scene: Scene, scenario: Scenario) -> None:
    assert run(scene, scenario).faults == []


def test_faults_beside_a_tight_cache_change_no_text(tmp_path: Path) -> None:
    """Passes over one row fill the cells of the target, which has a second row in each of them under `exact`."""
    with Scene(tmp_path, tight=True) as scene:
        for name in ("a worker is frozen for 1 s", "the links are cut", "six clients hang up"):
            scenario = next(row for row in TABLE if row.name == name)
            assert run(scene, scenario).faults == []


def test_the_table_has_all_quick_rows_and_each_name_once() -> None:
    names = [row.name for row in TABLE]
    assert set(QUICK) <= set(names) and len(set(names)) == len(names) >= 40


def in_session(session: int) -> list[str]:
    """The command lines of all processes of a session that run: one that init has yet to reap has ended."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, _, _, its_session, *_ = (process / "stat").read_text().rpartition(")")[2].split()
            if int(its_session) == session and state != "Z":
                found.append((process / "cmdline").read_text().replace("\0", " "))
    return found


@pytest.mark.parametrize("begun", ["cloud_gateway pair", "edgespec run"])
def test_a_runner_that_is_ended_leaves_no_process(begun: str) -> None:
    command = [sys.executable, "-m", "tests.faults", "--only", "1"]
    with subprocess.Popen(command, cwd=ROOT, start_new_session=True) as runner:
        deadline = time.monotonic() + 180
        while not any(begun in line for line in in_session(runner.pid)):
            assert time.monotonic() < deadline and runner.poll() is None
            time.sleep(0.02)
        runner.terminate()
        assert runner.wait(60) == 128 + signal.SIGTERM
    assert in_session(runner.pid) == []


def test_a_scene_that_cannot_be_started_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []

    def pair(rig: Rig, *_: str) -> None:
        begun.extend(rig.pids())
        raise RigError("no code was shown")

    monkeypatch.setattr(Rig, "pair", pair)
    with pytest.raises(RigError, match="no code was shown"), Scene(tmp_path):
        pass
    assert begun and not any(Path("/proc", str(pid)).exists() for pid in begun)
