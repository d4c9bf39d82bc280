"""The command `edgespec`: every mistake is one sentence with its exit code, found before anything is started."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgespec import __version__
from edgespec.__main__ import main
from edgespec.core.errors import PairingError
from edgespec.core.protocol.names import key_id
from edgespec.shared.keystore import KeyStore
from edgespec.shared.paired import PairedGateways


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
        (["run", "--set", "owner.idle_s"], 78, "Command line: `--set owner.idle_s` must be KEY=VALUE"),
        (["run", "--set", "owner.idle_s="], 78, "must be a number from 0 to 86400"),
        (["pair", "abc"], 77, "`abc` is not a pairing code"),
        (["pair", "ws://x:1", "4821-acorn-album-amber-7305"], 71, "the link to a gateway always uses TLS"),
        (["pair", "127.0.0.1:1", "4821-acorn-album-amber-7305"], 69, "No gateway can be reached at 127.0.0.1:1"),
        (["status"], 71, "worker.sock); start it with `edgespec run`."),
        (["pause"], 71, "The worker is not running"),
        (["demo", "--rtt-ms", "-5"], 78, "--rtt-ms is -5, but must be a number from 0 to 10000."),
        (["demo", "--max-tokens", "0"], 78, "--max-tokens is 0, but must be a number from 1 to 1024."),
        (["demo", "--json", "none/figures.json"], 78, "there is no such folder; make it, or name another file"),
        (["demo", "--keep", "/proc/none/here"], 78, "/proc/none/here cannot be written"),
        (["demo", "--prompts", "none.jsonl"], 78, "The prompts in none.jsonl cannot be read"),
        (["replay", "none.trace"], 65, "none.trace cannot be read"),
    ],
)
def test_a_mistake_is_one_sentence_and_its_exit_code(
    capsys: pytest.CaptureFixture[str], argv: list[str], code: int, says: str
) -> None:
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


def test_a_key_is_rotated_and_both_ids_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "worker.toml"
    config.write_text(f'[daemon]\nstate_dir = "{tmp_path / "state"}"\n')
    store = KeyStore(tmp_path / "state")
    before = key_id(store.identity().public)
    assert main(["keys", "rotate", "--config", str(config), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"old": before, "new": key_id(store.identity().public)}
    assert main(["keys", "rotate", "--config", str(config)]) == 0
    assert "Restart `edgespec run`" in capsys.readouterr().out


def test_a_gateway_is_unpaired_by_its_name(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = KeyStore(home / "xdg_state_home" / "edgespec" / "worker")
    gateways = PairedGateways(store.folder)
    gateways.add(b"k" * 32, b"s" * 32, "lab", "wss://lab:1", 1)
    assert main(["unpair", "lib"]) == PairingError.exit_code
    assert "No machine called `lib` is paired; paired are: lab (" in capsys.readouterr().err
    assert main(["unpair", "lab", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"forgotten": "lab", "id": key_id(b"k" * 32)}
    assert gateways.all() == []
