"""The command `cloud-gateway`: what it prints, its exit codes, and that it never shows a traceback."""

import io
import json
import os
import subprocess
import sys
import time
from argparse import ArgumentTypeError
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cloud_gateway.__main__ import main
from cloud_gateway.auth import KeyRing
from cloud_gateway.links.paired import PairedWorkers
from cloud_gateway.process import views
from cloud_gateway.process.commands import since
from edgespec import __version__
from edgespec.__main__ import main as worker_main


@pytest.fixture(autouse=True)
def home(tmp_path: Path, short_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without configuration, state or a running gateway."""
    for variable in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME"):
        monkeypatch.setenv(variable, str(tmp_path / variable.lower()))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_folder))
    for variable in ("STATE_DIRECTORY", "RUNTIME_DIRECTORY", "CREDENTIALS_DIRECTORY", "NOTIFY_SOCKET"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_a_key_is_made_shown_once_listed_and_revoked(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "list"]) == 0
    assert "no API keys yet" in capsys.readouterr().out
    assert main(["keys", "create", "--name", "ann", "--offload"]) == 0
    shown = capsys.readouterr().out
    secret = shown.splitlines()[0]
    ring = KeyRing(home / "xdg_state_home" / "edgespec" / "gateway" / "keys")
    key = ring.check(f"Bearer {secret}")
    assert (key.name, key.offload) == ("ann", True)
    assert "may see its prompts" in shown
    assert main(["keys", "list"]) == 0
    listed = capsys.readouterr().out
    assert key.id in listed
    assert "ann" in listed
    assert secret.split("-")[2] not in listed
    assert main(["keys", "revoke", key.id]) == 0
    assert ring.all()[0].revoked is not None


def test_keys_speak_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "create", "--json"]) == 0
    created = json.loads(capsys.readouterr().out)
    assert created["key"].startswith(f"es-{created['id']}-")
    assert created["offload"] is False, "off until switched on"
    assert main(["keys", "list", "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)["keys"]
    assert listed["cache_group"] == "", "shares with no other key until a group is given"
    assert listed == {name: value for name, value in created.items() if name != "key"}
    assert main(["keys", "revoke", created["id"], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["revoked"]


def test_a_configuration_chooses_the_folder_of_the_keys(home: Path) -> None:
    config = home / "gateway.toml"
    config.write_text(f'[daemon]\nstate_dir = "{home}/elsewhere"\n')
    assert main(["keys", "create", "--config", str(config)]) == 0
    assert (home / "elsewhere" / "keys" / "api-keys.json").exists()


@pytest.mark.parametrize(
    ("argv", "config", "code", "words"),
    [
        (["keys", "revoke", "nope"], None, 73, "no API key 'nope'"),
        (["keys", "create", "--name", "x" * 200], None, 73, "at most 100"),
        (["keys", "create", "--cache-group", "x" * 200], None, 73, "cache group of an API key is at most 100"),
        (["keys", "list", "--config", "missing.toml"], None, 78, "missing.toml"),
        (["keys", "list"], "[api]\nport = 'x'\n", 78, "line 2"),
        (["keys", "list"], "[api\n", 78, "not TOML"),
    ],
)
def test_mistakes_are_one_line_and_a_distinct_exit_code(
    home: Path, argv: list[str], config: str | None, code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if config is not None:
        (home / "gateway.toml").write_text(config)
        argv = [*argv, "--config", str(home / "gateway.toml")]
    assert main(argv) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("cloud-gateway: ")
    assert captured.err.count("\n") == 1
    assert words in captured.err


@pytest.mark.parametrize("argv", [["status"], ["pair"], ["status", "--json"]])
def test_what_needs_a_running_gateway_says_how_to_start_one(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 71
    assert "start it with `cloud-gateway serve`" in capsys.readouterr().err


def test_workers_are_listed_and_revoked_while_no_gateway_runs(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["workers", "list"]) == 0
    assert "No worker is paired yet" in capsys.readouterr().out
    paired = PairedWorkers(home / "xdg_state_home" / "edgespec" / "gateway" / "keys")
    paired.add(b"k" * 32, "desk 7")
    assert main(["workers", "list", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["workers"]
    assert (row["name"], row["standing"], row["linked"], row["rtt_ms"]) == ("desk 7", "paired", False, None)
    assert main(["workers", "expire", row["id"], "90d", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["expires_at"] == pytest.approx(time.time() + 90 * 86400, abs=60)
    assert main(["workers", "expire", row["id"], "2020-01-01"]) == 0
    assert "expires at 2020-01-01 00:00." in capsys.readouterr().out and paired.lookup(b"k" * 32) == "expired"
    assert main(["workers", "expire", row["id"], "never"]) == 0
    assert "never expires" in capsys.readouterr().out and paired.lookup(b"k" * 32) == "paired"
    assert main(["workers", "release", "desk 7"]) == 77
    assert "is not quarantined; it is paired" in capsys.readouterr().err
    paired.quarantine(row["id"], "3 of 4 API keys accepted 2% of what its probabilities claim")
    assert main(["workers", "list"]) == 0
    assert "quarantined: 3 of 4 API keys accepted 2%" in capsys.readouterr().out
    assert main(["workers", "release", row["id"], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["standing"] == paired.lookup(b"k" * 32) == "paired"
    assert main(["workers", "revoke", row["id"][:6]]) == 0
    assert paired.lookup(b"k" * 32) == "revoked"
    capsys.readouterr()
    assert main(["workers", "list"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:4] == [row["id"], "desk", "7", "revoked"]
    assert main(["workers", "revoke", "nobody"]) == 77


@pytest.mark.parametrize("argv", [[], ["fly"], ["keys"], ["keys", "create", "--colour"], ["workers", "revoke"]])
def test_wrong_usage_is_exit_code_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == 2
    assert "usage: cloud-gateway" in capsys.readouterr().err


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    assert __version__ in capsys.readouterr().out


def test_small_commands_load_no_model_library() -> None:
    code = "import sys; from cloud_gateway.__main__ import main; main(['keys', 'list']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    loaded = set(done.stdout.split())
    assert "cloud_gateway.auth" in loaded
    assert not loaded & {"torch", "transformers", "numpy", "llama_cpp", "aiohttp", "prometheus_client", "zeroconf"}


def test_a_reader_that_leaves_ends_the_command_silently() -> None:
    main(["keys", "create"])
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "cloud_gateway", "keys", "list"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, timeout=60, check=False)
    os.close(writing)
    assert done.stderr == b""
    assert done.returncode == 141


@pytest.mark.parametrize(
    ("command", "argv"), [(main, ["keys", "list"]), (worker_main, ["status"])], ids=["cloud-gateway", "edgespec"]
)
def test_a_fault_of_ours_is_one_line_of_places(
    command: Callable[[list[str]], int],
    argv: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def broken(*args: object, **options: object) -> None:
        raise ValueError("my secret prompt")

    monkeypatch.setattr("edgespec.shared.settings.load_usual", broken)
    assert command(argv) == 75
    (line,) = capsys.readouterr().err.splitlines()
    assert "A fault of this program ended it; please report this line: ValueError at " in line
    assert line.endswith(":broken.")
    assert "secret" not in line


def test_status_can_be_watched_with_rates_and_workers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--watch"]) == 71
    assert "gateway" in capsys.readouterr().err
    before: dict[str, Any] = {
        "uptime_s": 1, "pid": 1, "version": "1", "state": "serving", "model": "m", "api": "a", "link": "l",
        "metrics": "m", "policy": "adaptive", "workers_linked": 1, "workers_paused": 0, "workers_quarantined": 0,
        "requests_active": 1, "requests_queued": 0, "requests": 4, "rounds": 10, "tokens": 30, "local_draft_passes": 0,
        "drafted": {"worker": 20}, "accepted": {"worker": 15}, "frames": {}, "refused": {},
    }  # fmt: skip
    now = before | {"rounds": 20, "tokens": 60, "drafted": {"worker": 60}, "accepted": {"worker": 45}}
    row: dict[str, Any] = {"name": "[b]lab", "linked": True, "paused": None, "rtt_ms": 20.0, "step_ms": 5.0}
    gone = {"name": "gone", "linked": False}
    console = Console(width=120, file=io.StringIO())
    console.print(views.screen(before, now, 2.0, [row | {"requests": 3, "frames": 9, "accepted": 45}, gone]))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "15.0 tokens/s, 3.00 a pass, 0.0 local draft passes/s, 75% of 40 candidates accepted" in shown
    assert "[b]lab  ready  20.0 ms     5.0 ms  3         9       45" in shown
    assert "gone" not in shown
    console.print(views.screen(None, now, 1.0, [gone]))
    assert "No worker is linked" in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_mistyped_verb_or_option_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    for program, typed, meant in (
        (main, ["workers", "lsit"], "list"),
        (main, ["status", "--wacth"], "--watch"),
        (worker_main, ["piar", "1-a-b-c-2"], "pair"),
    ):
        with pytest.raises(SystemExit) as ended:
            program(typed)
        assert ended.value.code == 2
        assert f"Did you mean `{meant}`?" in capsys.readouterr().err


def test_since_takes_spans_and_dates() -> None:
    now = time.time()
    assert [round(now - since(text)) for text in ("90m", "24h", "7d")] == [5400, 86400, 604800]
    assert since("2026-11-20T08:00+00:00") == 1795161600
    with pytest.raises(ArgumentTypeError, match="'yesterday' is no time"):
        since("yesterday")
