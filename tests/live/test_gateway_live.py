"""`cloud-gateway serve` as a process with a tiny target: every command, its start and end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest

from edgespec_lab.rig import Processes, module
from tests.support import part_ports
from tests.support.tiny_gguf import make_tiny_gguf

pytestmark = pytest.mark.live
LOAD_S = 120.0
PAGE = Path(__file__).parents[2] / "docs" / "api.md"
ENDLESS = {"edgespec": {"ignore_eos": True, "usage": True}}


@dataclass
class Running:
    """A gateway process and its folder."""

    folder: Path
    processes: Processes

    @property
    def pid(self) -> int:
        return self.processes.pid("gateway")

    @property
    def ready(self) -> Any:
        return json.loads((self.folder / "ready.json").read_text())

    def command(self, *argv: str, code: int = 0) -> str:
        """Runs `cloud-gateway` with this gateway's configuration."""
        done = cli(self.folder, *argv)
        assert done.returncode == code, done.stderr
        return done.stdout if code == 0 else done.stderr

    def client(self, key: str) -> openai.OpenAI:
        return openai.OpenAI(base_url=self.ready["api"]["url"] + "/v1", api_key=key, max_retries=0, timeout=60)

    def wait_ready(self) -> None:
        self.processes.wait_for("gateway", (self.folder / "ready.json").exists, LOAD_S)

    def end(self, sig: signal.Signals | None = signal.SIGTERM) -> tuple[int, str, str]:
        """Exit status, output and log; `sig` None: it was sent a signal before."""
        output = self.processes.stop("gateway", sig)
        return self.processes.ended["gateway"], output, self.processes.log("gateway")


def cli(folder: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    command = [*module("cloud_gateway"), *argv, "--config", str(folder / "gateway.toml")]
    return subprocess.run(command, capture_output=True, text=True, timeout=LOAD_S, check=False)


@contextlib.contextmanager
def gateway(folder: Path, *options: str, within: Sequence[str] = ()) -> Iterator[Running]:
    """Starts a gateway over a tiny random target on free ports, run by the command `within`; waits for nothing."""
    make_tiny_gguf(folder / "tiny.gguf", vocab=320)
    (folder / "gateway.toml").write_text(
        f'{part_ports.TOML}[target]\nmodel = "{folder}/tiny.gguf"\n'
        f'exact = "yes"\ncontext = 512\nslots = 2\n[local_draft]\nmodel = ""\n'
        f'[api]\nport = 0\n[link]\nhost = "127.0.0.1"\nport = 0\nmdns = false\n'
        f'[daemon]\nstate_dir = "{folder}/state"\n'
    )
    files = ["--config", str(folder / "gateway.toml"), "--ready-file", str(folder / "ready.json")]
    with Processes(folder) as processes:
        processes.start("gateway", [*within, *module("cloud_gateway"), "serve", *files, *options], piped=True)
        yield Running(folder, processes)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with gateway(tmp_path_factory.mktemp("gw")) as started:
        started.wait_ready()
        yield started


@pytest.fixture(scope="module")
def key(running: Running) -> str:
    return json.loads(running.command("keys", "create", "--name", "test", "--offload", "--json"))["key"]


def test_the_official_client_gets_one_answer_for_one_seed(running: Running, key: str) -> None:
    with running.client(key) as client:
        (model,) = client.models.list().data
        ask = {"model": model.id, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 24}
        whole = [client.chat.completions.create(**ask, seed=5, extra_body=ENDLESS) for _ in range(2)]
        stream = client.chat.completions.create(
            **ask, seed=5, stream=True, stream_options={"include_usage": True}, extra_body=ENDLESS
        )
        chunks = list(stream)
        streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        other = client.chat.completions.create(**ask, seed=6, extra_body=ENDLESS)
    texts = [answer.choices[0].message.content for answer in whole]
    assert texts[0] == texts[1] == streamed
    assert texts[0] != other.choices[0].message.content
    assert whole[0].usage is not None
    assert whole[0].usage.completion_tokens == 24
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 24
    assert whole[0].usage.model_extra["edgespec"]["why_off"] == "no worker is linked"
    assert whole[0].system_fingerprint == chunks[0].system_fingerprint


@pytest.mark.parametrize(
    ("run", "block", "printed"),
    [
        ([sys.executable, "-c"], r"```python\n(.*?)```", "completion_tokens"),
        (["bash", "-c"], r"```\n(curl .*?)```", "[DONE]"),
    ],
)
def test_an_example_of_the_api_page_runs(running: Running, key: str, run: list[str], block: str, printed: str) -> None:
    (text,) = re.findall(block, PAGE.read_text(), re.DOTALL)
    given = {"http://127.0.0.1:8080": running.ready["api"]["url"], "es-...": key, "SmolLM2-135M-Instruct.Q4_1": "tiny"}
    for shown, value in given.items():
        text = text.replace(shown, value)
    done = subprocess.run([*run, text], capture_output=True, text=True, timeout=LOAD_S, check=False)
    assert done.returncode == 0 and printed in done.stdout, done.stdout + done.stderr


def test_commands_reach_the_running_gateway(running: Running, key: str) -> None:
    status = json.loads(running.command("status", "--json"))
    assert (status["state"], status["model"], status["pid"]) == ("serving", "tiny", running.pid)
    assert json.loads(running.command("workers", "list", "--json")) == {"workers": []}
    assert "No worker is paired" in running.command("workers", "list")
    assert "No machine called `unknown`" in running.command("workers", "revoke", "unknown", code=77)
    assert "serving" in running.command("status")


def test_pair_shows_a_code_and_ctrl_c_closes_the_window(running: Running) -> None:
    command = [*module("cloud_gateway"), "pair", "--config", str(running.folder / "gateway.toml")]
    for _ in range(2):  # the second one shows that the first window was closed
        with subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, text=True) as pairing:
            assert pairing.stdout is not None
            shown = json.loads(pairing.stdout.readline())
            assert shown["code"].count("-") == 4
            assert shown["address"] == f"wss://127.0.0.1:{running.ready['link']['port']}"
            assert "open already" in running.command("pair", code=77)
            pairing.send_signal(signal.SIGINT)
            assert pairing.wait(30) == 130


def test_a_second_gateway_and_a_taken_port_are_one_sentence(running: Running, tmp_path: Path) -> None:
    done = cli(running.folder, "serve")
    assert done.returncode == 71
    assert "running already" in done.stderr.splitlines()[-1] and "checking the models" not in done.stderr
    for option in ("api.port", "link.port", *part_ports.PART_PORTS):
        port = running.ready[option.split(".")[0]]["port"]
        (tmp_path / "gateway.toml").write_text(
            f'[daemon]\nstate_dir = "{tmp_path}/state"\n[link]\nhost = "127.0.0.1"\n'
        )
        free = [f"--{key.replace('.', '-')}=0" for key in part_ports.PART_PORTS]
        done = cli(tmp_path, "serve", "--port", "0", "--link-port", "0", *free, "--set", f"{option}={port}")
        assert done.returncode == 71, done.stderr
        assert f"127.0.0.1 port {port} is in use" in done.stderr
        assert f"`{option}`" in done.stderr
        assert "Traceback" not in done.stderr


async def test_sigterm_lets_the_answer_end_and_refuses_new_ones(tmp_path: Path) -> None:
    with gateway(tmp_path) as running:
        await asyncio.to_thread(running.wait_ready)
        ready = running.ready
        made = json.loads(await asyncio.to_thread(running.command, "keys", "create", "--json"))
        client = openai.AsyncOpenAI(base_url=ready["api"]["url"] + "/v1", api_key=made["key"], max_retries=0)
        ask = {"model": "tiny", "prompt": "hello", "max_tokens": 480, "extra_body": ENDLESS}
        stream = await client.completions.create(**ask, stream=True)
        first = await anext(stream)
        os.kill(running.pid, signal.SIGTERM)
        while True:
            try:
                await client.models.list()
            except openai.InternalServerError as error:
                assert error.code == "shutting_down"
                break
        rest = [chunk async for chunk in stream]
        assert first.choices
        assert rest[-1].choices[0].finish_reason == "length"
        await client.close()
        code, out, err = await asyncio.to_thread(running.end, None)
    assert code == 0
    shown = out.splitlines()
    assert shown[:2] == [f"API      {ready['api']['url']}/v1 serves tiny", f"workers  {ready['link']['url']}"]
    assert {line.split()[0]: line.split()[1].removesuffix("/metrics") for line in shown[2:]} == {
        name: ready[name]["url"] for name in ready.keys() - {"pid", "model", "api", "link"}
    }
    assert "Traceback" not in err
    assert not (tmp_path / "ready.json").exists()


def test_sigterm_while_loading_ends_at_once(tmp_path: Path) -> None:
    with gateway(tmp_path) as running:
        sock = tmp_path / "state" / "gateway.sock"
        deadline = time.monotonic() + LOAD_S
        while not sock.exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        with ThreadPoolExecutor() as both:  # one after the other they might outlast the loading
            status = both.submit(running.command, "status", "--json")
            pair = both.submit(running.command, "pair", code=77)
        assert json.loads(status.result())["state"] == "starting"
        assert "still loading" in pair.result()
        code, out, err = running.end()
    assert (code, out) == (0, "")
    assert "Traceback" not in err


def test_systemd_is_notified_when_the_gateway_is_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(LOAD_S)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        with gateway(tmp_path) as running:
            while (got := systemd.recv(999).decode()).startswith("STATUS=starting: "):
                pass
            assert got.splitlines() == ["READY=1", "STATUS=serving tiny"]
            assert (tmp_path / "ready.json").exists()
            os.kill(running.pid, signal.SIGTERM)
            assert systemd.recv(999) == b"STOPPING=1"
            assert running.end(None)[0] == 0
