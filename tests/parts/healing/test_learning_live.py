"""A worker that learns and a gateway, as processes: whose texts are on the worker's disk, and when they go."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from edgespec_lab.rig import Processes, module
from tests.support import part_ports
from tests.support.tiny_gguf import make_tiny_gguf

pytestmark = pytest.mark.live
WAIT_S = 120.0
CANARY = "quokka wombat numbat bilby"
"""The prompt of a key without consent."""


@dataclass
class Scene:
    """A gateway and a worker below one folder."""

    folder: Path
    processes: Processes

    @property
    def learning(self) -> Path:
        return self.folder / "w" / "learning"

    def command(self, side: str, *argv: str) -> str:
        program = module("cloud_gateway" if side == "gateway" else "edgespec")
        command = [*program, *argv, "--config", str(self.folder / f"{side}.toml")]
        return subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=True).stdout

    def wait_for(self, condition: Callable[[], bool]) -> None:
        self.processes.wait_for("gateway", condition, WAIT_S)

    def start_worker(self, *argv: str) -> None:
        config = str(self.folder / "worker.toml")
        self.processes.start("worker", [*module("edgespec"), "run", "--always", "--config", config, *argv])
        self.wait_for(self.linked)

    def linked(self) -> bool:
        (worker,) = json.loads(self.command("gateway", "workers", "list", "--json"))["workers"]
        return bool(worker["linked"])

    def key(self, *argv: str) -> str:
        made: str = json.loads(self.command("gateway", "keys", "create", "--offload", "--json", *argv))["key"]
        return made

    def call(self, key: str, path: str, body: dict[str, object] | None = None) -> Any:
        ready = json.loads((self.folder / "ready.json").read_text())
        request = urllib.request.Request(
            f"http://127.0.0.1:{ready['api']['port']}{path}",
            None if body is None else json.dumps(body).encode(),
            {"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=WAIT_S) as response:
            return json.loads(response.read())

    def ask(self, key: str, prompt: str) -> list[int]:
        """Has the worker draft a completion; returns the tokens of the prompt."""
        body: dict[str, object] = {
            "model": "tiny", "prompt": prompt, "max_tokens": 60, "temperature": 0, "ignore_eos": True,
        }  # fmt: skip
        self.wait_for(lambda: bool(self.frames(key, body)))
        tokens: list[int] = self.call(key, "/tokenize", {"model": "tiny", "prompt": prompt})["tokens"]
        return tokens

    def frames(self, key: str, body: dict[str, object]) -> int:
        found = self.call(key, "/v1/completions", body | {"edgespec": {"usage": True}})
        received: int = found["usage"]["edgespec"]["frames"]["received"]
        return received

    def kept(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = json.loads(self.command("worker", "learn", "status", "--json"))["keys"]
        return rows

    def disk_has(self, tokens: Sequence[int]) -> bool:
        """Whether a file of the worker's state has these tokens in it."""
        wanted = array("I", tokens).tobytes()
        files = [path for path in (self.folder / "w").rglob("*") if path.is_file()]
        return any(wanted in path.read_bytes() for path in files)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("learning")
    make_tiny_gguf(folder / "tiny.gguf", seed=1, vocab=320)
    make_tiny_gguf(folder / "draft.gguf", seed=1, vocab=320, unlike=0.05)
    (folder / "gateway.toml").write_text(
        f'{part_ports.TOML}[target]\nmodel = "{folder}/tiny.gguf"\ncontext = 512\nslots = 2\n'
        f'[api]\nport = 0\nclient_options = ["usage", "ignore_eos"]\n[link]\nhost = "127.0.0.1"\nport = 0\n'
        f'mdns = false\n[daemon]\nstate_dir = "{folder}/g"\n'
    )
    (folder / "worker.toml").write_text(
        f'[draft]\nmodel = "{folder}/draft.gguf"\ncontext = 512\n[gateway]\ndiscover = false\n'
        f'[daemon]\nname = "lab-7"\nstate_dir = "{folder}/w"\n[learn]\nenabled = true\n'
    )
    with Processes(folder, last=["gateway"]) as processes:
        scene = Scene(folder, processes)
        ready = str(folder / "ready.json")
        serve = [*module("cloud_gateway"), "serve", "--config", f"{folder}/gateway.toml", "--ready-file", ready]
        processes.start("gateway", serve)
        scene.wait_for((folder / "ready.json").exists)
        pair(scene)
        scene.start_worker()
        yield scene


def pair(scene: Scene) -> None:
    command = [*module("cloud_gateway"), "pair", "--json", "--config", str(scene.folder / "gateway.toml")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as operator:
        assert operator.stdout is not None
        shown = json.loads(operator.stdout.readline())
        scene.command("worker", "pair", shown["address"], shown["code"])
        operator.wait(WAIT_S)


@pytest.mark.claim("without-consent-a-worker-keeps-nothing")
def test_without_consent_not_a_byte_is_kept(scene: Scene) -> None:
    plain = scene.key("--name", "plain")
    consenting = scene.key("--name", "ann", "--learn")
    secret = scene.ask(plain, CANARY)
    sent = scene.ask(consenting, "a lamp in the rain")
    scene.wait_for(lambda: bool(scene.kept()))

    assert [row["key"] for row in scene.kept()] == [consenting.split("-")[1]]
    assert scene.disk_has(sent)
    assert not scene.disk_has(secret)
    texts = b"".join(path.read_bytes() for path in scene.folder.glob("w/**/*") if path.is_file())
    assert not any(word.encode() in texts for word in CANARY.split())
    assert {path.stat().st_mode & 0o777 for path in scene.learning.glob("*/keys/*/*")} == {0o600}

    learn = {key: scene.call(key, "/v1/models")["data"][0]["learn"] for key in (plain, consenting)}
    assert learn == {plain: False, consenting: True}


@pytest.mark.claim("a-consent-that-ends-deletes-what-workers-keep")
@pytest.mark.parametrize("end", ["withdraw", "revoke", "forget"])
def test_a_consent_that_ends_deletes_the_texts(scene: Scene, end: str) -> None:
    key = scene.key("--name", end, "--learn")
    number = key.split("-")[1]
    sent = scene.ask(key, f"dusk over {end}")
    scene.wait_for(lambda: number in [row["key"] for row in scene.kept()])
    scene_of = scene.learning.glob(f"*/keys/{number}")
    (next(scene_of).parents[1] / "draft.gguf").write_text("learnt from it")

    if end == "withdraw":
        scene.command("gateway", "learning", "withdraw", end)
        assert scene.call(key, "/v1/models")["data"][0]["learn"] is False
    elif end == "revoke":
        scene.command("gateway", "keys", "revoke", number)
    else:
        assert json.loads(scene.command("worker", "learn", "forget", number, "--json"))["texts"] > 0
    scene.wait_for(lambda: number not in [row["key"] for row in scene.kept()])
    assert not scene.disk_has(sent)
    assert not list(scene.learning.glob("*/draft.gguf"))


@pytest.mark.claim("a-consent-that-ends-deletes-what-workers-keep")
def test_a_consent_that_ended_while_the_worker_was_away_deletes_too(scene: Scene) -> None:
    key = scene.key("--name", "away", "--learn")
    sent = scene.ask(key, "the sea at night")
    scene.wait_for(lambda: scene.disk_has(sent))
    scene.processes.stop("worker")
    scene.command("gateway", "learning", "withdraw", "away")
    assert scene.disk_has(sent)
    scene.start_worker()
    scene.wait_for(lambda: not scene.disk_has(sent))


def test_a_worker_that_does_not_learn_any_more_keeps_nothing(scene: Scene) -> None:
    key = scene.key("--name", "last", "--learn")
    sent = scene.ask(key, "one day")
    scene.wait_for(lambda: scene.disk_has(sent))
    scene.processes.stop("worker")
    scene.start_worker("--set", "learn.enabled=false")
    assert not scene.learning.exists()
    again = scene.ask(key, "another day")
    assert not scene.disk_has(again)
    assert json.loads(scene.command("worker", "learn", "forget", "--json")) == {"texts": 0}
