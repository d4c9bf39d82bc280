"""The gateway's own worker: its configuration, and how its process is started again and ended."""

from __future__ import annotations

import itertools
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cloud_gateway.parts.parallel_draft import process
from cloud_gateway.parts.parallel_draft.process import LikeLocal, OwnWorker, _configuration
from edgespec.core.protocol.signing import SigningKey
from edgespec.shared.address import Address
from edgespec.shared.settings import parse
from edgespec.worker.config import WorkerSettings
from tests.support.until import until

Start = Callable[..., OwnWorker]


def test_it_drafts_as_the_local_draft_is_configured(tmp_path: Path) -> None:
    draft = LikeLocal(model="/m/draft.gguf", threads=3, n_gpu_layers=9, cpu=(1, 2))
    made = parse(_configuration(draft, tmp_path), WorkerSettings, "worker.toml")
    assert (made.draft.model, made.draft.threads, made.draft.n_gpu_layers) == ("/m/draft.gguf", 3, 9)
    assert made.daemon.cpu == (1, 2)


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Starts one whose process is a shell script, in a folder with a line in `runs` for each run before."""

    def begin(script: str, retry_s: tuple[float, float] = (0.1, 0.4)) -> OwnWorker:
        program = tmp_path / "program"
        program.write_text(f"#!/bin/sh\ncd {tmp_path}\n{script}\n")
        program.chmod(0o700)
        monkeypatch.setattr(sys, "executable", str(program))
        monkeypatch.setattr(process, "RETRY_S", retry_s)
        monkeypatch.setattr(process, "END_S", 0.3)
        own = OwnWorker(LikeLocal(model="m"), tmp_path / "own", SigningKey(b"k" * 32), "gw", bytes(32))
        own.start(Address("127.0.0.1", 1))
        return own

    return begin


def runs(tmp_path: Path) -> list[str]:
    return (tmp_path / "runs").read_text().split("\n")[:-1] if (tmp_path / "runs").exists() else []


@pytest.mark.parametrize(
    ("third", "waits"),
    [("", [0.1, 0.2, 0.4, 0.8, 0.8]), ('[ "$(wc -l < runs)" = 3 ] && sleep 1', [0.1, 0.2, 0.1, 0.2])],
    ids=["each ends at once", "the third runs for longer than the longest wait"],
)
async def test_it_is_started_again_after_longer_and_longer_waits(
    start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture, third: str, waits: list[float]
) -> None:
    own = start(f"date +%s.%N >> runs; {third}\necho no model >&2; exit 3", (0.1, 0.8))
    await until(lambda: len(runs(tmp_path)) > len(waits))
    await own.close()
    ends = [record for record in caplog.records if "started again" in record.msg]
    assert [record.args[0] for record in ends][: len(waits)] == waits  # type: ignore[index]
    assert "exit status 3; no model" in ends[0].getMessage()
    gaps = [float(after) - float(before) for before, after in itertools.pairwise(runs(tmp_path))]
    assert all(gap >= wait for gap, wait in zip(gaps, waits, strict=True)), gaps


async def test_a_process_that_cannot_be_started_is_tried_again(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    own = start("echo >> runs")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    await until(lambda: "cannot be started (No such file or directory)" in caplog.text)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "program"))
    await until(lambda: runs(tmp_path))
    await own.close()


@pytest.mark.parametrize(("script", "ended"), [("cat; echo ended >> runs", True), ("exec sleep 60", False)])
async def test_it_ends_with_its_input_or_is_killed(
    start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture, script: str, ended: bool
) -> None:
    caplog.set_level(logging.INFO)
    own = start("echo $$ >> runs; " + script)
    await until(lambda: runs(tmp_path) and "runs as process" in caplog.text)
    await own.close()
    number, *rest = runs(tmp_path)
    assert rest == ["ended"] * ended
    with pytest.raises(ProcessLookupError):
        os.kill(int(number), 0)


async def test_what_systemd_gave_to_the_gateway_is_not_passed_on(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"CREDENTIALS_DIRECTORY", "STATE_DIRECTORY", "RUNTIME_DIRECTORY", "NOTIFY_SOCKET", "WATCHDOG_USEC"}
    for name in given:
        monkeypatch.setenv(name, "/secret")
    own = start("env > all; mv all env; cat")
    await until((tmp_path / "env").exists)
    await own.close()
    passed = {line.split("=")[0] for line in (tmp_path / "env").read_text().splitlines()}
    assert "PATH" in passed and not passed & given
