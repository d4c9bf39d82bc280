"""The audit log: who was given which request, in a bounded file of its owner's; a full disk costs entries only."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from cloud_gateway.__main__ import main
from cloud_gateway.core.requests.request import GenerationRequest
from cloud_gateway.engine.exchange import Declined
from cloud_gateway.engine.loop import Engine
from cloud_gateway.parts.audit import Auditing
from cloud_gateway.parts.audit.book import FILE_NAME, MAX_PENDING, AuditLog, Entry, append, entries, file_name
from cloud_gateway.parts.audit.listener import Audited
from tests.support.engines import complete, engines
from tests.support.until import until
from tools.doubles.engines import TableDraft
from tools.doubles.workers import LoopWorker

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
Make = Callable[[LoopWorker], Engine]


def named() -> LoopWorker:
    return LoopWorker(name="lab-7")


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    audits: list[AuditLog] = []

    def build(worker: LoopWorker) -> Engine:
        audits.append(AuditLog(tmp_path / "audit", 100_000, 2))
        return start(worker, TableDraft(), recorders=[Audited(audits[-1])], policy="wanspec")

    with engines() as start:
        yield build
    for audit in audits:
        audit.close()


async def end_of(engine: Engine) -> None:
    await complete(engine, GenerationRequest(PROMPT, 40, ignore_eos=True, id="req_1", key="3kTq9XwZ", key_name="alice"))


def read(folder: Path) -> list[Entry]:
    return list(entries(folder / "audit"))


@pytest.mark.claim("each-assignment-and-its-end-are-recorded")
@pytest.mark.driven
async def test_each_assignment_and_its_end_are_recorded(make: Make, tmp_path: Path) -> None:
    before = time.time()
    worker = named()
    await end_of(make(worker))
    await until(lambda: len(read(tmp_path)) == 2 and worker.audits)
    ((key, claimed, accepted),) = worker.audits  # what the worker is judged by
    assert key == "3kTq9XwZ" and claimed > 0 and accepted > 0
    given, over = read(tmp_path)
    who = ("req_1", "3kTq9XwZ", "alice", "w", "lab-7")
    assert given == Entry(given.time, "assigned", *who)
    assert over == Entry(over.time, "released", *who, "length", over.frames) and over.frames
    assert before <= given.time <= over.time <= time.time()
    text = (tmp_path / "audit" / file_name("3kTq9XwZ")).read_text()
    fields = {name for line in text.splitlines() for name in json.loads(line)}
    assert fields == {"time", "event", "request", "key", "key_name", "worker", "worker_name", "reason", "frames"}


@pytest.mark.driven
@pytest.mark.parametrize("end", ["moved", "declined"])
async def test_a_request_that_moves_on_or_is_declined_is_recorded_so(make: Make, tmp_path: Path, end: str) -> None:
    worker = named()
    engine = make(worker)
    stream = engine.submit(GenerationRequest(PROMPT, 400, ignore_eos=True, id="req_1"))
    await until(lambda: worker.seen)
    if end == "moved":
        worker.die()
    else:
        engine.post(Declined("w", 1))
    await until(lambda: [one.event for one in read(tmp_path)] == ["assigned", end])
    assert read(tmp_path)[-1].worker_name == "lab-7", "also when the worker is gone"
    stream.cancel()


def entry(number: int) -> Entry:
    return Entry(float(number), "assigned", f"req_{number:024}", "3kTq9XwZ", "alice", "7ba1073c5e2f9d40", "lab-7")


@pytest.mark.claim("each-assignment-and-its-end-are-recorded")
def test_files_are_the_owners_alone_and_bounded(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    limit = 2000
    for number in range(200):
        append(path, [entry(number)], limit, keep=2)
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == [FILE_NAME, f"{FILE_NAME}.1", f"{FILE_NAME}.2"]
    assert all(file.stat().st_size <= limit for file in files)
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    numbers = [one.time for one in entries(tmp_path)]
    assert numbers == sorted(numbers)
    assert numbers[-1] == 199
    assert len(numbers) >= 2 * (limit // 250)


@pytest.mark.claim("one-keys-many-requests-leave-the-record-of-others")
def test_one_keys_many_requests_leave_the_record_of_others(tmp_path: Path) -> None:
    audit = AuditLog(tmp_path, 150_000, 2)
    alice, flood = (GenerationRequest([1], 1, id=f"req_{key}", key=key, key_name=key) for key in ("alice", "flood"))
    audit.assigned(alice, "7ba1073c5e2f9d40", "lab-7")
    for _ in range(2500):
        audit.assigned(flood, "7ba1073c5e2f9d40", "lab-7")
        audit.released(flood, "7ba1073c5e2f9d40", "lab-7", "stop", 1)
        audit.worker("quarantined", "7ba1073c5e2f9d40", "lab-7", "why")
    audit.released(alice, "7ba1073c5e2f9d40", "lab-7", "stop", 2)
    audit.close()
    found = list(entries(tmp_path))
    assert [one.event for one in found if one.key == "alice"] == ["assigned", "released"]
    assert [one.time for one in found] == sorted(one.time for one in found)
    assert {one.key for one in found} == {"", "alice", "flood"}
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert len(sizes) == 1 + 2 * 3
    assert max(sizes.values()) <= 150_000


def test_a_symbolic_link_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        append(tmp_path / FILE_NAME, [entry(1)], 2000, keep=1)
    assert not (tmp_path / "elsewhere").exists()


def test_lines_that_are_none_are_left_out(tmp_path: Path) -> None:
    append(tmp_path / FILE_NAME, [entry(1)], 10**6, keep=1)
    with (tmp_path / FILE_NAME).open("ab") as file:
        file.write(b'\xff\xfe\nnot JSON\n{"time": 5}\n[]\n' + b"x" * 100_000 + b'\n{"time": 1.0, "event": "assig')
    append(tmp_path / FILE_NAME, [entry(2)], 10**6, keep=1)
    assert [one.time for one in entries(tmp_path)] == [1, 2]
    assert [one.time for one in entries(tmp_path, since=2)] == [2]


FULL = """
import resource, sys, time
from pathlib import Path
from cloud_gateway.parts.audit.book import AuditLog, entries
from cloud_gateway.core.requests.request import GenerationRequest
from edgespec.shared import logs
folder, request = Path(sys.argv[1]), GenerationRequest([1], 1, id="req_1", key="3kTq9XwZ", key_name="alice")
with logs.policy("info"):
    audit = AuditLog(folder, 10**6, 1)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
    for number in range(50):
        audit.assigned(request, "7ba1073c5e2f9d40", "lab-7")
        time.sleep(0.002)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    audit.released(request, "7ba1073c5e2f9d40", "lab-7", "stop", 3)
    audit.close()
found = [one.event for one in entries(folder)]
assert 1 < found.count("assigned") < 50, found
assert found[-1] == "released", found
"""


@pytest.mark.claim("each-assignment-and-its-end-are-recorded")
def test_a_full_disk_costs_entries_and_one_log_line_a_minute(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FULL, str(tmp_path / "audit")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=os.environ)
    assert done.returncode == 0, done.stderr
    (line,) = done.stderr.splitlines()
    assert "ERROR   cloud_gateway.parts.audit: the audit log cannot be written (File too large): " in line


def test_a_disk_that_does_not_answer_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(AuditLog, "_run", lambda self: None)
    audit = AuditLog(tmp_path / "audit", 10**6, 1)
    for _ in range(MAX_PENDING + 500):
        audit.assigned(GenerationRequest([1], 1), "w", "lab-7")
    assert caplog.text.count("the disk is too slow") == 1
    audit.close(timeout_s=0.01)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the command, with two entries: one a day old, and one that would move a terminal's cursor."""
    for variable in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(variable, str(tmp_path))
    folder = tmp_path / "edgespec" / "gateway" / "audit"
    folder.mkdir(parents=True)
    now = time.time()
    who = "3kTq9XwZ", "alice", "7ba1073c5e2f9d40", "lab-7"
    old = Entry(now - 86400 - 60, "assigned", "req_old", *who)
    append(folder / FILE_NAME, [old, Entry(now, "released", "req_new", *who, "stop", 12)], 10**6, 1)
    return folder


@pytest.mark.usefixtures("folder")
def test_the_command_shows_the_files_where_no_gateway_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit"]) == 0
    heading, old, new = capsys.readouterr().out.splitlines()
    assert heading.split()[:3] == ["TIME", "REQUEST", "KEY"]
    assert "req_old" in old
    assert "alice (3kTq9XwZ)" in new
    assert new.endswith("lab-7 (7ba1073c5e2f9d40)          12  stop")
    assert main(["audit", "--since", "24h", "--json"]) == 0
    (row,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert (row["request"], row["event"], row["frames"]) == ("req_new", "released", 12)


async def answered(running: Auditing) -> list[dict[str, Any]]:
    """The entries that the handler of the control socket sends."""
    batches: Any = running.handlers()["audit"](since=0.0)
    return [entry async for batch in batches for entry in batch["entries"]]


async def test_changes_of_workers_are_recorded_and_the_handler_reads_them(tmp_path: Path) -> None:
    running = Auditing(tmp_path, AuditLog(tmp_path, 100_000, 2))
    running.worker_changed("quarantined", "7ba1", "lab-7", "its drafts were never right")
    running.worker_changed("lifted", "7ba1", "lab-7", "")
    await running.close()

    shown = [(entry["event"], entry["worker_name"], entry.get("reason", "")) for entry in await answered(running)]
    assert shown == [("quarantined", "lab-7", "its drafts were never right"), ("lifted", "lab-7", "")]


async def test_what_was_recorded_can_be_read_while_nothing_is(tmp_path: Path) -> None:
    who = ("k", "n", "w", "lab")
    append(tmp_path / FILE_NAME, [Entry(1.5, "assigned", "r", *who)], 10**6, 1)
    running = Auditing(tmp_path, None)
    running.worker_changed("lifted", "7ba1", "lab-7", "")
    assert [entry["request"] for entry in await answered(running)] == ["r"]
