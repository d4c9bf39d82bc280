"""The gateway before vLLM, over real sockets and with a child that speaks vLLM's stream (fake_vllm.py)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from edgespec_vllm.gateway import VllmGateway
from edgespec_vllm.gateway.bodies import UpstreamError, choice_of, event_of, finish_of, in_one_text
from llguidance import LLMatcher

from cloud_gateway.api.grammars import Grammar
from cloud_gateway.parts import all_parts
from cloud_gateway.process.config import schema
from cloud_gateway.process.serve import gateway_class
from edgespec.core.errors import ConfigError, ModelError
from edgespec.shared.settings import overridden
from edgespec.shared.starting import Starting
from tests.support.tiny_target import make_tiny_target
from tests.support.until import until

FAKE = Path(__file__).with_name("fake_vllm.py")
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
ASK = [{"role": "user", "content": "hi"}]


class Served:
    """A running gateway and a client with its key."""

    def __init__(self, folder: Path, gateway: VllmGateway, url: str) -> None:
        self.folder = folder
        self.gateway = gateway
        self.url = url
        self.headers = {"Authorization": f"Bearer {gateway.keys.create('test', offload=True)[1]}"}

    async def post(
        self, status: int = 200, path: str = "chat/completions", after: str | None = None, **body: Any
    ) -> Any:
        """The response of a request with this status, and this `Retry-After`."""
        usual = {"model": "tiny", "max_tokens": 6, "temperature": 0} | ({} if "prompt" in body else {"messages": ASK})
        async with aiohttp.ClientSession(headers=self.headers) as session:
            async with session.post(f"{self.url}/v1/{path}", json=usual | body) as response:
                text = await response.text()
                assert response.status == status, text
                assert after is None or response.headers["Retry-After"] == after
                if not body.get("stream"):
                    return json.loads(text)
                return text

    async def text(self, **body: Any) -> Any:
        return await self.post(path="completions", **body)

    @property
    def bodies(self) -> list[dict[str, Any]]:
        """What vLLM was sent."""
        return [json.loads(line) for line in (self.folder / "bodies").read_text().splitlines()]


Make = Callable[..., Any]


@contextmanager
def elsewhere(folder: Path, monkeypatch: pytest.MonkeyPatch, vocabulary: int = 320) -> Iterator[str]:
    """The URL of a server with its own port and API key."""
    monkeypatch.setenv("VLLM_API_KEY", "key of the other machine")
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    environment = os.environ | {"FAKE_VOCABULARY": str(vocabulary)}
    child = subprocess.Popen([sys.executable, FAKE, "serve", folder, "--port", str(port)], env=environment)
    try:
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            assert child.poll() is None
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        child.kill()
        child.wait()


@pytest.fixture
async def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Make]:
    """Starts a gateway over the script; options as in gateway.toml."""
    make_tiny_target(tmp_path / "tiny", vocab=320)
    command = tmp_path / "vllm"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} {FAKE} "$@" $FAKE_MORE\n')
    command.chmod(0o755)
    monkeypatch.setenv("FAKE_BODIES", str(tmp_path / "bodies"))
    running: list[asyncio.Future[None]] = []

    async def start(**more: Any) -> Served:
        options = {
            "target.model": str(tmp_path / "tiny"), "target.engine": f"vllm:{command}", "target.context": 1024,
            "api.port": 0, "link.host": "127.0.0.1", "link.port": 0,
            "daemon.state_dir": str(tmp_path / "state"), "api.client_options": ["offload", "usage", "k", "ignore_eos"],
        }  # fmt: skip
        options |= {f"{port.table}.port": 0 for part in all_parts() for port in part.ports}
        defaults = schema(all_parts())()
        if hasattr(defaults.link, "mdns"):
            options["link.mdns"] = False
        settings = overridden(defaults, options | more)
        ready = tmp_path / "ready.json"
        gateway = gateway_class(settings.target.engine)(settings, Starting("test"), ready, all_parts())
        assert isinstance(gateway, VllmGateway)
        running.append(asyncio.ensure_future(gateway.run()))
        while not ready.exists():
            await asyncio.sleep(0.05)
            if running[-1].done():
                running.pop().result()

        return Served(tmp_path, gateway, json.loads(ready.read_text())["api"]["url"])

    yield start
    if running:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(asyncio.gather(*running), 60)


async def test_token_ids_go_to_vllm_and_its_tokens_become_text(serve: Make) -> None:
    served = await serve()
    found = await served.post(messages=ASK)
    [choice] = found["choices"]
    assert choice["finish_reason"] == "length"
    assert len(choice["message"]["content"]) == 6
    assert found["usage"]["completion_tokens"] == 6
    [sent] = served.bodies
    assert "messages" not in sent
    assert sent["prompt"] == served.gateway.models.text.render_chat(ASK)
    assert sent["vllm_xargs"]["edgespec_offload"] == "default"
    assert "seed" not in sent
    streamed = await served.post(stream=True, max_tokens=100, edgespec={"offload": "never"}, temperature=1)
    assert streamed.count('"finish_reason":"stop"') == 1
    assert "vllm_xargs" not in served.bodies[-1]
    assert served.bodies[-1]["seed"] >= 0
    assert served.bodies[-1]["cache_salt"] == sent["cache_salt"]  # of the same key


async def test_what_vllm_cannot_do_gets_a_400_and_is_documented(serve: Make) -> None:
    served = await serve()
    for refused in (
        {"min_p": 0.1}, {"logit_bias": {"5": 1}}, {"seed": 0, "temperature": 1}, {"edgespec": {"k": 3}},
    ):  # fmt: skip
        error = (await served.post(400, **refused))["error"]
        assert error["code"] == "unsupported_parameter"
        assert error["param"].removeprefix("edgespec.") in str(refused)
    await served.post(seed=3)  # greedy
    await served.post(seed=3, temperature=1, edgespec={"offload": "never"}, min_tokens=3)
    assert (served.bodies[-1]["seed"], served.bodies[-1]["min_tokens"]) == (3, 3)
    async with aiohttp.ClientSession(headers=served.headers) as session:
        document = await (await session.get(f"{served.url}/openapi.json")).json()
    properties = document["components"]["schemas"]["ChatBody"]["properties"]
    assert {name for name, one in properties.items() if "400" in one.get("description", "")} == {
        "min_p", "logit_bias", "seed"
    }  # fmt: skip


async def test_without_drafts_vllm_serves_all_parameters(serve: Make) -> None:
    served = await serve(**{"policy.name": "plain"})
    found = await served.post(min_p=0.1, logit_bias={"5": 1}, seed=7, temperature=1, edgespec={"usage": True})
    assert found["usage"]["edgespec"]["why_off"] == "policy plain"
    [sent] = served.bodies
    assert (sent["min_p"], sent["logit_bias"], sent["seed"]) == (0.1, {"5": 1.0}, 7)
    assert "vllm_xargs" not in sent


async def test_schemas_and_tools_are_grammars_of_vllm(serve: Make) -> None:
    pytest.importorskip("cloud_gateway.parts.structured_output", reason="the part was removed")
    pytest.importorskip("cloud_gateway.parts.function_calling", reason="the part was removed")
    served = await serve()
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
    await served.post(response_format=wanted)
    assert "%json" in served.bodies[-1]["structured_outputs"]["grammar"]
    await served.post(400, response_format={**wanted, "json_schema": {"name": "n", "schema": {"type": "nothing"}}})
    tools = [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]
    await served.post(tools=tools, tool_choice="required")
    assert "tool_call" in served.bodies[-1]["structured_outputs"]["grammar"]


async def test_stops_cut_the_text_and_logprobs_are_those_of_vllm(serve: Make) -> None:
    pytest.importorskip("cloud_gateway.parts.log_probabilities", reason="the part was removed")
    served = await serve()
    whole = await served.text(prompt="ab", max_tokens=9)
    text = whole["choices"][0]["text"]
    cut = await served.text(prompt="ab", max_tokens=9, stop=text[3])
    assert cut["choices"][0] == whole["choices"][0] | {"text": text[:3], "finish_reason": "stop"}
    assert cut["usage"]["completion_tokens"] == 4
    found = await served.post(logprobs=True, top_logprobs=2)
    entries = found["choices"][0]["logprobs"]["content"]
    assert [entry["logprob"] for entry in entries] == [-0.5] * 6
    assert [one["logprob"] for one in entries[0]["top_logprobs"]] == [-0.5, -1.5]


async def test_the_workers_command_works_before_vllm_too(serve: Make) -> None:
    served = await serve()
    assert served.gateway.commands.worker_rows() == []  # nobody is paired


async def test_a_vllm_that_ends_gives_503_and_is_started_again(serve: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    served = await serve()
    [dying] = served.gateway.models.text.encode("!")
    monkeypatch.setenv("FAKE_DYING", str(dying))
    server = served.gateway.commands.engine._server
    os.killpg(os.getpgid(_child(server)), signal.SIGKILL)
    await until(lambda: not server.up)
    error = (await served.post(503))["error"]
    assert error["code"] == "engine_stopped"
    await until(lambda: server.up, 30)
    assert server.starts == 2
    assert (await served.post(503, path="completions", prompt="a!"))["error"]["code"] == "engine_stopped"
    await until(lambda: server.starts == 3 and server.up, 30)
    await served.post()


def _child(server: Any) -> int:
    """The child's process id."""
    found = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    socket = str(server._socket)
    return next(int(one) for one in found if socket in Path(f"/proc/{one}/cmdline").read_text())


async def test_what_vllm_refuses_reaches_the_client_with_its_status(
    serve: Make, caplog: pytest.LogCaptureFixture
) -> None:
    served = await serve()
    for status in (400, 422):
        for top_k in (status, 1000 + status):
            error = (await served.post(status, top_k=top_k))["error"]
            assert (error["type"], error["code"]) == ("invalid_request_error", "engine_refused")
            assert error["message"].startswith("vLLM refuses this request: top_k is too large")
    assert "top_k is too large" in (await served.post(400, top_k=400, stream=True))
    limited = await served.post(429, top_k=429, after="7")
    assert (limited["error"]["type"], limited["error"]["code"]) == ("rate_limit_error", "engine_busy")
    assert (await served.post(503, top_k=503, after="5"))["error"]["code"] == "engine_stopped"
    for status in (401, 404, 500, 504, 1500):
        error = (await served.post(502, top_k=status))["error"]
        assert (error["type"], error["code"]) == ("server_error", "engine_failed")
        assert "secret" not in error["message"]
    await served.post()
    assert "vLLM answered with status 422" in caplog.text
    assert "secret" not in caplog.text


async def test_one_key_does_not_keep_another_waiting(serve: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_STEP_S", "0.05")
    served = await serve(**{"target.slots": 2})
    other = Served(served.folder, served.gateway, served.url)
    many = [asyncio.ensure_future(served.text(prompt="a", max_tokens=9)) for _ in range(12)]
    await until(lambda: served.gateway.commands.engine.queued >= 8)
    assert served.gateway.commands.engine.active == 1  # a slot stays free for other keys
    await other.text(prompt="b", max_tokens=9)
    assert sum(one.done() for one in many) < 6
    await asyncio.gather(*many)


async def test_a_client_that_leaves_ends_its_request(serve: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_STEP_S", "0.5")
    served = await serve()
    whole_s = 0.5 * 400 / 2
    left = asyncio.ensure_future(served.text(prompt="a", max_tokens=400, ignore_eos=True))

    # The gateway counts a request before it sends it; what is ended before that never reaches vLLM.
    await until(lambda: served.bodies and served.bodies[-1].get("max_tokens") == 400)
    assert served.gateway.commands.engine.active == 1
    left.cancel()
    await until(lambda: served.gateway.commands.engine.active == 0, whole_s / 5)
    await until(lambda: "left" in served.bodies[-1], whole_s / 5)
    assert served.bodies[-1]["left"] < 400 / 4


async def test_requests_without_a_scope_share_no_cache_salt(serve: Make) -> None:
    served = await serve(**{"api.prefix_cache": False})
    for _ in range(3):
        await served.text(prompt="a")
    salts = [body["cache_salt"] for body in served.bodies]
    assert len({*salts}) == 3
    assert all(len(salt) == 32 for salt in salts)


async def test_a_vllm_elsewhere_is_reached_by_its_url(
    serve: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match="does not answer at http://127.0.0.1:1"):
        await serve(**{"target.engine": "vllm+http://127.0.0.1:1"})
    with elsewhere(tmp_path / "tiny", monkeypatch) as url:
        served = await serve(**{"target.engine": f"vllm+{url}"})
        await served.post()
        await served.post(400, top_k=400)


async def test_a_vllm_elsewhere_with_another_model_is_refused(
    serve: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = make_tiny_target(tmp_path / "other", vocab=280)
    made = json.loads((tmp_path / "tiny" / "tokenizer.json").read_text())
    vocabulary = made["model"]["vocab"]
    (first, low), *_, (last, high) = sorted(vocabulary.items(), key=lambda pair: pair[1])[40:60]
    vocabulary |= {first: high, last: low}
    (other / "tokenizer.json").write_text(json.dumps(made))
    with elsewhere(other, monkeypatch) as url, pytest.raises(ModelError, match="has another tokenizer than"):
        await serve(**{"target.engine": f"vllm+{url}"})
    for size in (319, 321):
        with elsewhere(tmp_path / "tiny", monkeypatch, size) as url:
            with pytest.raises(ModelError, match=f"another vocabulary .*{'400' if size == 319 else '200'} for token"):
                await serve(**{"target.engine": f"vllm+{url}"})


async def test_a_child_that_cannot_start_is_named_with_its_last_words(
    serve: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_MORE", "--broken")
    with pytest.raises(ModelError, match="no such option: --broken"):
        await serve()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"api.ui": True}, ConfigError),
        ({"traces.folder": "/tmp/traces"}, ConfigError),
        ({"local_draft.mode": "async-local"}, ConfigError),
        ({"target.model": "auto:quantised"}, ModelError),
        ({"target.engine": "vllm:/no/such/command"}, ModelError),
        ({"target.context": 2048}, ModelError),
    ],
)
async def test_settings_that_have_no_effect_stop_the_start(serve: Make, options: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        await serve(**options)


TEXT = 'start: "yes" | NO\nNO: /no+/'


@pytest.mark.parametrize("lark", ["", 'start: "<" @a0 ">" | @json | @text'])
def test_the_grammar_for_vllm_is_one_that_its_library_takes(lark: str) -> None:
    if lark:
        grammar = Grammar(lark, "tools", {"a0": SCHEMA, "json": SCHEMA, "text": TEXT})
    else:
        grammar = Grammar(SCHEMA, "response_format")
    text = in_one_text(grammar)
    assert LLMatcher.validate_grammar(LLMatcher.grammar_from_lark(text)) == ""


@pytest.mark.parametrize(
    "line",
    [
        b"data: {", b'data: {"choices": 1}',
        b'data: {"choices": [{"token_ids": [320]}]}', b'data: {"choices": [{"token_ids": [-1]}]}',
    ],
)  # fmt: skip
def test_what_is_no_completion_is_refused(line: bytes) -> None:
    with pytest.raises(UpstreamError):
        choice_of(line, 320)


def test_a_stream_without_an_end_is_an_error() -> None:
    assert choice_of(b"data: [DONE]\n", 320) is None
    assert choice_of(b": comment\n", 320) is None
    with pytest.raises(UpstreamError, match="early"):
        finish_of(None)
    found = choice_of(b'data: {"choices": [{"token_ids": [5, 2], "finish_reason": "stop"}]}', 320)
    assert found is not None
    event = event_of(found, frozenset({2}), None)
    assert event is not None
    assert event.tokens == [5]
    with pytest.raises(UpstreamError, match="missing"):
        event_of(found, frozenset({2}), 1)
