"""A gateway and a worker as processes, at log level debug, through every way to fail: no secret is in what they write.

The secrets are a wrong API key, a valid one, a prompt, and a completion, which a JSON schema makes the model spell.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from edgespec.core.pairing.messages import Code, check_number, parse_code
from edgespec.shared.server_keys import ServerKeyStore
from edgespec_lab.rig import Processes, module
from tests.support import part_ports
from tests.support.canary import ANSWER, KEY, PROMPT, requests, traces_of
from tests.support.tiny_gguf import make_tiny_gguf

pytestmark = pytest.mark.live
WAIT_S = 120.0
WORDS = "quokka-wombat-numbat"
"""The length of a pairing code that is none."""
GROUPS = "a worker of another group", "a worker of the key's group"


@dataclass
class Pair:
    """A gateway and a worker below one folder."""

    folder: Path
    processes: Processes
    key: str = ""

    def start(self, side: str, *argv: str) -> None:
        self.processes.start(side, [*module("tests.support.faulty"), side, str(self.folder), *argv])

    def wait_for(self, condition: Callable[[], bool]) -> None:
        self.processes.wait_for("gateway", condition, WAIT_S)

    def command(self, side: str, *argv: str) -> subprocess.CompletedProcess[str]:
        program = module("cloud_gateway" if side == "gateway" else "edgespec")
        command = [*program, *argv, "--config", str(self.folder / f"{side}.toml")]
        return subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)

    @property
    def ready(self) -> Any:
        return json.loads((self.folder / "ready.json").read_text())

    def send(self, data: bytes, enough: bytes = b"") -> bytes:
        """The response to raw bytes, until the gateway hangs up, or `enough` is in it."""
        with socket.create_connection(("127.0.0.1", self.ready["api"]["port"]), 20) as connection:
            received = b""
            with contextlib.suppress(ConnectionError):  # refused before all of it was sent
                connection.sendall(data)
            with contextlib.suppress(TimeoutError, ConnectionError):
                while part := connection.recv(65536):
                    received += part
                    if enough and enough in received:
                        break
        return received

    def chat(self, content: str = PROMPT, enough: bytes = b"", **more: Any) -> bytes:
        """The response to a chat request that is in order."""
        return self.send(self.chat_request(content, **more), enough)

    def chat_request(self, content: str = PROMPT, **more: Any) -> bytes:
        messages = [{"role": "user", "content": content}]
        body: dict[str, object] = {"model": "tiny", "messages": messages, "max_tokens": 40, "seed": 3}
        sent = json.dumps(body | {"edgespec": {"usage": True}} | more).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {self.key}\r\n"
        return f"{head}Connection: close\r\nContent-Length: {len(sent)}\r\n\r\n".encode() + sent

    def linked(self) -> bool:
        (worker,) = json.loads(self.command("gateway", "workers", "list", "--json").stdout)["workers"]
        return bool(worker["linked"])


def configure(folder: Path) -> None:
    make_tiny_gguf(folder / "tiny.gguf", seed=1, vocab=320)
    make_tiny_gguf(folder / "draft.gguf", vocab=320)
    (folder / "gateway.toml").write_text(
        f'{part_ports.TOML}[target]\nmodel = "{folder}/tiny.gguf"\ncontext = 512\nslots = 2\n'
        f'[local_draft]\nmodel = "{folder}/draft.gguf"\n[api]\nport = 0\nclient_options = ["usage"]\n'
        f'[link]\nhost = "127.0.0.1"\nport = 0\nmdns = false\n'
        f'[traces]\nfolder = "{folder}/traces"\n[daemon]\nstate_dir = "{folder}/g"\nlog_level = "debug"\n'
    )
    (folder / "worker.toml").write_text(
        f'[draft]\nmodel = "{folder}/draft.gguf"\ncontext = 256\n[gateway]\ndiscover = false\n'
        f'[daemon]\nname = "lab-7"\nstate_dir = "{folder}/w"\npriority = "normal"\n[owner]\nmode = "always"\n'
    )


def pair(both: Pair) -> list[str]:
    """With a code that is none, and one that is wrong, first; returns the codes."""
    command = [*module("cloud_gateway"), "pair", "--json", "--config", str(both.folder / "gateway.toml")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as operator:
        assert operator.stdout is not None
        first = json.loads(operator.stdout.readline())
        right = parse_code(first["code"])
        assert (
            both.command("worker", "pair", first["address"], f"{right.nameplate}-{WORDS}-{right.check}").returncode != 0
        )
        words = right.words[::-1]
        spki = ServerKeyStore(both.folder / "g").tls_identity().spki_hash
        wrong = str(Code(right.nameplate, words, check_number(right.nameplate, words, spki)))
        assert both.command("worker", "pair", first["address"], wrong).returncode != 0
        events = (json.loads(line) for line in operator.stdout)
        second = next(event["code"] for event in events if "code" in event)
        both.wait_for(lambda: both.command("worker", "pair", first["address"], second).returncode == 0)
        operator.wait(WAIT_S)
    return ["-".join(parse_code(code).words) for code in (first["code"], wrong, second)]


def fail_in_every_way(both: Pair) -> dict[str, bytes]:
    """Provokes each failure; returns the responses, which show that it happened."""
    responses: dict[str, bytes] = {}
    for name, data in requests(both.key, both.ready["api"]["port"], "tiny").items():
        responses[name] = both.send(data)
    schema = {
        "type": "object",
        "properties": {"a": {"const": ANSWER}},
        "required": ["a"],
        "additionalProperties": False,
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    responses["a completion"] = both.chat(response_format=wanted, max_tokens=100)
    responses["a completion that is cut off"] = both.chat(response_format=wanted, max_tokens=20)
    responses["a decline"] = both.chat(PROMPT * 12)
    both.chat(enough=b"data: ", stream=True, max_tokens=400)
    both.command("gateway", "workers", "group", "lab-7", "physics")
    responses["a worker of another group"] = both.chat()
    both.command("gateway", "workers", "group", "lab-7", "default", "physics")
    responses["a worker of the key's group"] = both.chat()
    with socket.socket(socket.AF_UNIX) as control:
        control.connect(str(both.folder / "g" / "gateway.sock"))
        control.sendall(json.dumps({"method": PROMPT, "params": {PROMPT: PROMPT}}).encode() + b"\n")
        responses["a control request"] = control.recv(4096)
    both.command("worker", "pause", "--reason", PROMPT)
    both.command("worker", "resume")
    for side, fault in (("worker", "fail-worker"), ("gateway", "fail-target")):
        (both.folder / fault).touch()
        responses[fault] = both.chat()
        both.wait_for(lambda: has_failed(both, side))  # noqa: B023
        (both.folder / fault).unlink()
    return responses


def has_failed(both: Pair, side: str) -> bool:
    """Whether a pass of this side's model has failed; if not, it gets another request."""
    if "RuntimeError" in both.processes.log(side):
        return True
    both.chat()
    return False


def scrape(both: Pair) -> str:
    with urllib.request.urlopen(both.ready["metrics"]["url"] + "/metrics", timeout=20) as response:
        return str(response.read().decode())


@dataclass(frozen=True)
class Run:
    """The processes' output and the clients' responses."""

    written: Mapping[str, str]
    responses: Mapping[str, bytes]
    secrets: Sequence[str]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    folder = tmp_path_factory.mktemp("canary")
    configure(folder)
    with Processes(folder, last=["gateway"]) as processes:
        both = Pair(folder, processes)
        both.start("gateway", "serve", "--config", f"{folder}/gateway.toml", "--ready-file", f"{folder}/ready.json")
        both.wait_for((folder / "ready.json").exists)
        both.key = json.loads(both.command("gateway", "keys", "create", "--name", "ann", "--offload", "--json").stdout)[
            "key"
        ]
        codes = pair(both)
        both.start("worker", "run", "--config", f"{folder}/worker.toml", "--set", "daemon.log_level=debug")
        both.wait_for(both.linked)
        responses = fail_in_every_way(both)
        written = {"ready": (folder / "ready.json").read_text(), "metrics": scrape(both)}
        written["audit"] = both.command("gateway", "audit", "--json").stdout
        written["status"] = both.command("gateway", "status").stdout
        with socket.create_connection(("127.0.0.1", both.ready["api"]["port"])) as running:
            running.sendall(both.chat_request(stream=True, max_tokens=400))
            assert running.recv(4096)
            os.kill(processes.pid("gateway"), signal.SIGTERM)
            time.sleep(0.2)
            processes.stop("gateway")
        processes.stop("worker")
        for path in (*folder.glob("*.log"), *(folder / "traces").iterdir(), *folder.glob("g/audit/*")):
            written[path.name] = path.read_bytes().decode(errors="backslashreplace")
        secrets = [KEY, both.key.rpartition("-")[2], PROMPT, ANSWER, *codes, *WORDS.split("-")]
    yield Run(written, responses, secrets)


@pytest.mark.claim("nothing-that-is-written-holds-a-secret")
@pytest.mark.parametrize("name", ["gateway.log", "worker.log", "ready", "metrics", "audit", "status"])
def test_nothing_that_is_written_holds_a_secret(run: Run, name: str) -> None:
    assert traces_of(run.secrets, run.written[name]) == []


@pytest.mark.claim("nothing-that-is-written-holds-a-secret")
def test_no_trace_or_audit_file_holds_a_secret(run: Run) -> None:
    names = [name for name in run.written if name.endswith((".trace", ".jsonl"))]
    assert len(names) > 3
    for name in names:
        assert traces_of(run.secrets, run.written[name]) == [], name


@pytest.mark.claim("nothing-that-is-written-holds-a-secret")
def test_every_way_to_fail_was_gone(run: Run) -> None:
    """Otherwise the tests above would show nothing."""
    refused = {name: data.split(b" ")[1] for name, data in run.responses.items() if data.startswith(b"HTTP/1")}
    served = ("a completion", "a completion that is cut off", "a decline", *GROUPS)
    assert {refused.pop(name) for name in served} == {b"200"}
    failed = {name: refused.pop(name) for name in ("fail-worker", "fail-target")}
    assert set(failed.values()) <= {b"200", b"500"}
    assert set(refused.values()) <= {b"400", b"401", b"404", b"413"}
    assert ANSWER.encode() in run.responses["a completion"]
    assert "pairing from 127.0.0.1 refused: code" in run.written["gateway.log"]
    assert b"LocalProtocolError" in run.responses["a control request"]
    entries = [json.loads(line) for line in run.written["audit"].splitlines()]
    assert {"assigned", "released", "declined"} <= {entry["event"] for entry in entries}
    log = run.written["gateway.log"]
    assert "RuntimeError" in log, "the target failed"
    assert "bytes to standard error; they are withheld" in log
    assert " library: reported by support/faulty.py" in log
    assert "RuntimeError" in run.written["worker.log"]


@pytest.mark.claim("a-worker-of-another-group-is-sent-nothing")
def test_groups_decide_which_worker_is_given_a_prompt(run: Run) -> None:
    no, yes = (json.loads(run.responses[name].rpartition(b"\r\n\r\n")[2])["usage"]["edgespec"] for name in GROUPS)
    assert (no["workers"], no["frames"]["received"]) == ([], 0)
    assert no["why_off"] == "no worker of this API key's groups (default) is linked"
    assert (yes["workers"], yes["why_off"]) == (["lab-7"], None)


def test_each_completion_left_one_line_with_its_id(run: Run) -> None:
    (found,) = [
        line for line in run.responses["a completion"].decode().split("\r\n") if line.lower().startswith("x-request-id")
    ]
    request_id = found.split(": ")[1]
    lines = [line for line in run.written["gateway.log"].splitlines() if request_id in line]
    assert len([line for line in lines if "of API key ann (" in line and line.endswith(", stop")]) == 1
    assert request_id in run.written["audit"]
