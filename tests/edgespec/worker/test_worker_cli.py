"""The command `edgespec`: mistakes are one sentence with an exit code, and what is printed has words and units."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edgespec import __version__
from edgespec.__main__ import main
from edgespec.core.errors import PairingError
from edgespec.core.protocol.names import key_id
from edgespec.shared import control_client
from edgespec.shared.keystore import KeyStore
from edgespec.shared.paired import PairedGateways
from edgespec.worker import report
from edgespec.worker.part import WorkerPart
from tests.support.served import compares


@pytest.fixture(autouse=True)
def home(tmp_path: Path, short_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without configuration, pairing or a running worker."""
    for variable in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(variable, str(tmp_path / variable.lower()))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_folder))
    for variable in ("STATE_DIRECTORY", "RUNTIME_DIRECTORY", "CREDENTIALS_DIRECTORY"):
        monkeypatch.delenv(variable, raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("argv", "code", "says"),
    [
        (["run", "--config", "none.toml"], 78, "none.toml: there is no such file"),
        (["run", "--set", "daemon.name"], 78, "Command line: `--set daemon.name` must be KEY=VALUE"),
        (["run", "--set", "draft.threads="], 78, "must be a whole number from 0 to 512"),
        (["pair", "abc"], 77, "`abc` is not a pairing code"),
        (["pair", "ws://x:1", "4821-acorn-album-amber-7305"], 71, "the link to a gateway always uses TLS"),
        (["pair", "127.0.0.1:1", "4821-acorn-album-amber-7305"], 69, "No gateway can be reached at 127.0.0.1:1"),
        (["status"], 71, "worker.sock); start it with `edgespec run`."),
        (["pause"], 71, "The worker is not running"),
    ],
)
def test_a_mistake_is_one_sentence_and_its_exit_code(
    capsys: pytest.CaptureFixture[str], argv: list[str], code: int, says: str
) -> None:
    check_mistake(capsys, argv, code, says)


@compares
@pytest.mark.parametrize(
    ("argv", "code", "says"),
    [
        (["demo", "--rtt-ms", "-5"], 78, "--rtt-ms is -5, but must be a number from 0 to 10000."),
        (["demo", "--max-tokens", "0"], 78, "--max-tokens is 0, but must be a number from 1 to 1024."),
        (["demo", "--json", "none/figures.json"], 78, "there is no such folder; make it, or name another file"),
        (["demo", "--keep", "/proc/none/here"], 78, "/proc/none/here cannot be written"),
        (["demo", "--prompts", "none.jsonl"], 78, "The prompts in none.jsonl cannot be read"),
    ],
)
def test_a_mistake_at_the_demo_is_one_sentence_and_its_exit_code(
    capsys: pytest.CaptureFixture[str], argv: list[str], code: int, says: str
) -> None:
    check_mistake(capsys, argv, code, says)


def check_mistake(capsys: pytest.CaptureFixture[str], argv: list[str], code: int, says: str) -> None:
    """The command ends with this exit code, and one sentence on standard error."""
    assert main(argv) == code
    shown = capsys.readouterr()
    assert says in shown.err
    assert shown.err.startswith("edgespec: ")
    assert shown.err.count("\n") == 1
    assert shown.out == ""


def test_a_worker_that_is_not_paired_says_so_after_its_first_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run"]) == 77
    first, *_, last = capsys.readouterr().err.splitlines()
    assert first.endswith(f"edgespec {__version__} starts")
    assert "not paired with a gateway; ask its operator for a code and run `edgespec pair`" in last


@pytest.mark.parametrize("argv", [["--version"], ["version"]])
def test_the_version_is_shown_in_both_usual_ways(capsys: pytest.CaptureFixture[str], argv: list[str]) -> None:
    try:
        assert main(argv) == 0
    except SystemExit as left:
        assert left.code == 0
    assert capsys.readouterr().out.startswith(f"edgespec {__version__} (Python ")


def test_a_gateway_is_unpaired_by_its_name(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = KeyStore(home / "xdg_state_home" / "edgespec" / "worker")
    gateways = PairedGateways(store.folder)
    gateways.add(b"k" * 32, b"s" * 32, "lab", "wss://lab:1", 1)
    assert main(["unpair", "lib"]) == PairingError.exit_code
    assert "No machine called `lib` is paired; paired are: lab (" in capsys.readouterr().err
    assert main(["unpair", "lab", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"forgotten": "lab", "id": key_id(b"k" * 32)}
    assert gateways.all() == []


STATUS: dict[str, Any] = {
    "version": "0.1", "state": "drafting", "uptime_s": 3723, "model": "small.gguf", "name": "lab-7", "id": "ab12",
    "gateway": "gw", "linked": True, "address": "127.0.0.1:7443", "through": None, "rtt_ms": 3.24, "refused": None,
    "paused": None, "requests_open": 1, "requests": 53, "steps": 95, "nodes": 218, "frames": 38,
    "tokens_committed": 1302, "tokens_matched": 781, "step_ms": 6.31, "host_us_per_step": 130.0, "drafting_s": 597.0,
    "books": {"tokens": 1302, "accepted": 391, "verified": 500, "frames": 38, "late": 4},
    "model_loaded": True, "warnings": [{"at": 1.0, "text": "edgespec.threads: passes stall"}],
}  # fmt: skip


def test_a_status_reads_as_words_and_units() -> None:
    part = WorkerPart("example", report=lambda status: [("part", f"of {status['requests']} requests")])
    assert report.text(STATUS, [part]).splitlines() == [
        "worker        lab-7 (ab12), edgespec 0.1, up 1:02:03",
        "state         drafting",
        "gateway       gw at 127.0.0.1:7443, round trip 3.2 ms",
        "draft model   small.gguf",
        "requests      1 open, 53 since the start",
        "drafting      95 steps in 0:09:57: 6.3 ms a step, and 0.1 ms beside the model",
        "sent          218 candidates in 38 frames",
        "help          wrote 30% of the tokens (391 of 1302) and so saved 391 passes of the target: it helps",
        "draft         right for 781 of 1302 tokens (60%), in time or too late",
        "part          of 53 requests",
        "warnings      edgespec.threads: passes stall",
    ]


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"linked": False, "refused": None}, "gateway       gw, not linked"),
        ({"linked": False, "refused": "quarantined"}, "gateway       gw, not linked: quarantined"),
        ({"through": "desk-2"}, "gateway       gw at 127.0.0.1:7443 through the peer desk-2, round trip 3.2 ms"),
        (
            {"steps": 0, "step_ms": None, "host_us_per_step": None},
            "drafting      no step finished in 0:09:57 of drafting",
        ),
        ({"steps": 0, "step_ms": None, "drafting_s": 0.0}, "drafting      no step yet"),
        ({"tokens_committed": 0, "tokens_matched": 0}, "draft         right for 0 of 0 tokens, in time or too late"),
        ({"books": None}, "help          unknown: the gateway has not sent its figures, or is older than this worker"),
        ({"paused": "exam week", "state": "paused"}, "state         paused: exam week"),
    ],
)
def test_each_state_has_its_sentence(changed: dict[str, Any], line: str) -> None:
    assert line in report.text(STATUS | changed, ()).splitlines()


def test_a_worker_that_starts_says_what_it_does() -> None:
    starting = {"version": "0.1", "state": "starting", "doing": "loading libraries", "doing_s": 12.3, "busy": ""}
    assert report.text(starting, ()) == "state         starting: loading libraries (for 12 s)"
    busy = report.text(starting | {"busy": "this machine is busy: its load is 9.0 on 2 processors"}, ()).splitlines()
    assert busy[1].split() == "this machine is busy: its load is 9.0 on 2 processors".split()


@pytest.mark.parametrize(("verb", "reason"), [("pause", "exam week"), ("resume", None)])
def test_pause_and_resume_print_whether_it_drafts(
    verb: str, reason: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(control_client, "call", lambda *_, **__: {"paused": reason})
    assert main([verb]) == 0
    assert capsys.readouterr().out.strip() == report.pause({"paused": reason})
    assert (f"paused: {reason}" == report.pause({"paused": reason})) is (reason is not None)
