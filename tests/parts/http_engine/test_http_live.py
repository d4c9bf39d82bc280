"""llama.cpp's own server, unmodified, behind a gateway: texts are its own, also if it is killed in the middle."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest

from cloud_gateway.core.verify.accept import flatten
from cloud_gateway.core.verify.candidates import CandidateTree
from cloud_gateway.models.target_model import Work
from cloud_gateway.models.text import Text
from cloud_gateway.parts.http_engine.server import Server
from cloud_gateway.parts.http_engine.target import REFUSES, HttpTarget, ServerLoop
from cloud_gateway.parts.http_engine.tokens import check_same, tokens_of
from edgespec.core.errors import ModelError
from edgespec_lab.rig import Processes, module
from tests.support import part_ports
from tests.support.tiny_gguf import make_tiny_gguf
from tools import peers

pytestmark = pytest.mark.live
LOAD_S = 120.0
CONTEXT = 512
PROMPTS = ("hello", "one two three four", "a b a b a b a b")
COUNT = 40


@dataclass
class LlamaServer:
    """One that runs, or ran, at a port."""

    processes: Processes
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self, model: Path) -> None:
        program = peers.program()
        if not program.exists():
            pytest.skip(f"{program.name} is not built: make peers")  # minutes, so CI does not build it
        command = [str(program), "--model", str(model), "--host", "127.0.0.1", "--port", str(self.port)]
        self.processes.start("server", [*command, "--ctx-size", str(CONTEXT), "--parallel", "1", "--threads", "1"])
        self.processes.wait_for("server", self.healthy, LOAD_S)

    def healthy(self) -> bool:
        try:
            return bool(self.ask("/health") == {"status": "ok"})
        except OSError:
            return False

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=LOAD_S) as response:
            return json.load(response)

    def tokens(self, text: str) -> list[int]:
        found: list[int] = self.ask("/tokenize", {"content": text, "add_special": False})["tokens"]
        return found

    def completion(self, tokens: list[int], count: int = COUNT) -> list[int]:
        """The server's own greedy tokens."""
        body = {"prompt": tokens, "n_predict": count, "temperature": 0, "return_tokens": True, "ignore_eos": True}
        found: list[int] = self.ask("/completion", body)["tokens"]
        return found


def text_of(model: Path, tokens: Sequence[int]) -> str:
    """The text of a completion, as the gateway writes it."""
    detokeniser = Text(tokens_of(model)[0].tokenizer).detokeniser()
    return "".join(detokeniser.feed(token) for token in tokens) + detokeniser.flush()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("models")
    return make_tiny_gguf(folder / "tiny.gguf", vocab=320), make_tiny_gguf(folder / "other.gguf", vocab=352)


@pytest.fixture
def server(tmp_path: Path, models: tuple[Path, Path]) -> Iterator[LlamaServer]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with Processes(tmp_path / "server") as processes:
        llama_server = LlamaServer(processes, port)
        llama_server.start(models[0])
        yield llama_server


@dataclass
class Gateway:
    """One before the server, and a client of it."""

    processes: Processes
    folder: Path
    client: openai.OpenAI

    def complete(self, prompt: str, count: int = COUNT, **more: Any) -> Any:
        return self.client.completions.create(
            model="tiny", prompt=prompt, max_tokens=count, temperature=0,
            extra_body={"edgespec": {"ignore_eos": True, "usage": True, **more}},
        )  # fmt: skip


@pytest.fixture
def gateway(tmp_path: Path, models: tuple[Path, Path], server: LlamaServer) -> Iterator[Gateway]:
    path = tmp_path / "gateway.toml"
    attach = [*module("cloud_gateway"), "attach", server.url, "--model", str(models[0]), "--output", str(path)]
    done = subprocess.run(attach, capture_output=True, text=True, timeout=LOAD_S, check=True)
    assert "tokens by id     yes" in done.stdout and "kind of server   llama-server" in done.stdout

    api = '[api]\nport = 0\nclient_options = ["ignore_eos", "sources"]\n'
    ports = f'{api}[link]\nhost = "127.0.0.1"\nport = 0\nmdns = false\n'
    path.write_text(f'{part_ports.TOML}{path.read_text()}{ports}[daemon]\nstate_dir = "{tmp_path}/state"\n')
    ready = tmp_path / "ready.json"
    config = ["--config", str(path)]
    with Processes(tmp_path / "gateway") as processes:
        processes.start("gateway", [*module("cloud_gateway"), "serve", *config, "--ready-file", str(ready)])
        processes.wait_for("gateway", ready.exists, LOAD_S)
        create = [*module("cloud_gateway"), "keys", "create", "--name", "test", "--json", *config]
        key = json.loads(subprocess.run(create, capture_output=True, text=True, timeout=LOAD_S, check=True).stdout)[
            "key"
        ]
        url = json.loads(ready.read_text())["api"]["url"]
        with openai.OpenAI(base_url=url + "/v1", api_key=key, max_retries=0, timeout=LOAD_S) as client:
            yield Gateway(processes, tmp_path, client)


def test_texts_are_the_servers_own_and_llama_cpp_is_not_loaded(
    server: LlamaServer, gateway: Gateway, models: tuple[Path, Path]
) -> None:
    for prompt in PROMPTS:
        expected = text_of(models[0], server.completion(server.tokens(prompt)))
        for sources in ([], ["lookup"]):
            completion = gateway.complete(prompt, sources=sources)
            assert completion.choices[0].text == expected
            assert completion.usage.completion_tokens == COUNT

    maps = Path(f"/proc/{gateway.processes.pid('gateway')}/maps").read_text()
    assert "libllama" not in maps


def test_what_is_refused_stands_in_the_api_document(gateway: Gateway) -> None:
    document = gateway.client.get("/../openapi.json", cast_to=dict[str, Any])
    chat = document["components"]["schemas"]["ChatBody"]["properties"]
    described = {name: chat[name]["description"] for name in REFUSES}
    assert described == {name: f"Refused with 400: {why}." for name, why in REFUSES.items()}
    for refused in ({"min_tokens": 3}, {"logprobs": 1}):
        with pytest.raises(openai.BadRequestError, match="the server that computes the model"):
            gateway.client.completions.create(model="tiny", prompt="hello", extra_body=refused)


def test_a_server_that_is_killed_and_started_again_goes_on(
    server: LlamaServer, gateway: Gateway, models: tuple[Path, Path]
) -> None:
    count = CONTEXT - 50
    expected = text_of(models[0], server.completion(server.tokens("hello"), count))
    stream = gateway.client.completions.create(
        model="tiny", prompt="hello", max_tokens=count, temperature=0, stream=True,
        extra_body={"edgespec": {"ignore_eos": True}},
    )  # fmt: skip
    text = next(stream).choices[0].text
    os.kill(server.processes.pid("server"), signal.SIGKILL)
    server.processes.stop("server", None)
    server.start(models[0])
    text += "".join(chunk.choices[0].text for chunk in stream)
    assert text == expected


def test_a_server_that_comes_back_with_another_model_serves_nobody(
    server: LlamaServer, gateway: Gateway, models: tuple[Path, Path]
) -> None:
    gateway.complete("hello", 4)
    server.processes.stop("server")
    server.start(models[1])
    with pytest.raises(openai.APIStatusError, match="serves another one") as refused:
        gateway.complete("hello", 4)
    assert refused.value.status_code == 502

    server.processes.stop("server")
    with pytest.raises(openai.APIStatusError, match="does not answer") as refused:
        gateway.complete("hello", 4)
    assert refused.value.status_code == 503


def test_a_call_draws_what_the_stream_would(server: LlamaServer, models: tuple[Path, Path]) -> None:
    prompt = server.tokens("one two three four")
    text = server.completion(prompt, 6)
    _, tokens = tokens_of(models[0])
    loop = ServerLoop()
    connection = Server(server.url)
    loop.run(connection.open())
    target = HttpTarget(connection, loop, tokens, slots=1, context=CONTEXT, kv_tokens=1024)
    slot, _ = target.open(prompt)  # no stream is begun
    tree = CandidateTree(prompt)
    node = tree.root
    for token in text[:4]:
        tree.add_local(node, (token + 1) % 320, 0.1, 0.1)
        node = tree.add_local(node, token, 0.9, 0.9) or node
    flat = flatten(tree.root, tree.best(8))
    (rows,) = target.verify([Work(slot, flat)])
    drawn = [token for token in rows.argmax if token >= 0]
    assert drawn == text[:5]
    assert target.passes[0].rows == len(flat)
    loop.run(connection.close())
    loop.stop()


def test_another_tokenizer_is_found_at_the_start(server: LlamaServer, models: tuple[Path, Path]) -> None:
    loop = ServerLoop()
    connection = Server(server.url)
    loop.run(connection.open())
    loop.run(check_same(connection, tokens_of(models[0])[0].tokenizer, 320))
    with pytest.raises(ModelError, match="another tokenizer than `target.model`"):
        loop.run(check_same(connection, tokens_of(models[1])[0].tokenizer, 352))
    loop.run(connection.close())
    loop.stop()
