"""`cloud-gateway attach`: what it finds out of servers that can do everything, little, or nothing."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from edgespec_vllm.gateway.attach import PART, PREFIX, Found, Verb, configuration, run_command, tried

from cloud_gateway.process.config import load
from edgespec.core.errors import ConfigError, ModelError

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
TOKEN_S = 0.01


class Double:
    """A server with a prefix cache: a new token of a prompt takes ROW_S, and one of a stream TOKEN_S."""

    def __init__(self, *, cached: bool = True, row_s: float = 0.002, fresh_s: float = 0.2) -> None:
        self.by_id = True
        self.lists = True
        self._cached = cached
        self._row_s = row_s
        self._fresh_s = fresh_s
        self._known: set[tuple[int, ...]] = set()

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        assert min(min(prompt) for prompt in _prompts(body)) >= 100, "control tokens are not sent"
        if body.get("stream"):
            return await self._stream(request, body)

        prompts = _prompts(body)
        if len(prompts) > 1 and not self.lists:
            return web.json_response({"error": {"message": "one prompt", "code": 400}}, status=400)

        beginning = tuple(prompts[0][:PREFIX])
        fresh = beginning not in self._known or not self._cached
        self._known.add(beginning)
        await asyncio.sleep(self._fresh_s * fresh + TOKEN_S + self._row_s * (len(prompts) - 1))
        choice = {"token_ids": [7]} if self.by_id else {"text": "x"}
        return web.json_response({"choices": [{"index": index, **choice} for index in range(len(prompts))]})

    async def _stream(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(body["max_tokens"]):
            await asyncio.sleep(TOKEN_S)
            await response.write(b'data: {"choices":[{"token_ids":[7]}]}\n\n')
        return response

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m", "max_model_len": 2048}]})

    async def metrics(self, _: web.Request) -> web.Response:
        return web.Response(text='vllm:cache_config_info{block_size="16",enable_prefix_caching="True"} 1.0\n')


def _prompts(body: dict[str, Any]) -> list[list[int]]:
    prompt = body["prompt"]
    if isinstance(prompt[0], list):
        return prompt
    return [prompt]


@asynccontextmanager
async def serving(**handlers: Handler) -> AsyncIterator[str]:
    app = web.Application()
    posts = {"completions": "/v1/completions"}
    gets = {"models": "/v1/models", "metrics": "/metrics"}
    app.add_routes([web.post(posts[name], handler) for name, handler in handlers.items() if name in posts])
    app.add_routes([web.get(gets[name], handler) for name, handler in handlers.items() if name in gets])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def tried_double(double: Double) -> Found:
    async with serving(completions=double.completions, models=double.models, metrics=double.metrics) as url:
        return await tried(url)


async def test_a_server_with_everything_is_usable_and_priced() -> None:
    found = await tried_double(Double())
    assert (found.model, found.context, found.block) == ("m", 2048, 16)
    assert found.usable and found.cached
    assert found.token_ms == pytest.approx(1000 * TOKEN_S, rel=0.5)
    assert found.call_ms[17] > found.call_ms[1] + 20
    shown = "\n".join(found.lines())
    assert "Drafts pay there if a drafted token is right at least" in shown and "lists of prompts yes" in shown


async def test_rows_that_cost_as_much_as_tokens_do_not_pay() -> None:
    found = await tried_double(Double(row_s=1.5 * TOKEN_S))
    assert found.usable and "drafts do not pay there" in found.verdict()


async def test_without_a_prefix_cache_the_verdict_says_so() -> None:
    found = await tried_double(Double(cached=False))
    assert not found.cached and "prefix caching" in found.verdict()


@pytest.mark.parametrize("lacks", ["by_id", "lists"])
async def test_a_server_that_lacks_what_is_needed_is_not_usable(lacks: str) -> None:
    double = Double()
    setattr(double, lacks, False)
    found = await tried_double(double)
    assert not found.usable and "cannot be verified there" in "\n".join(found.lines())


async def test_what_is_no_server_of_models_is_one_sentence() -> None:
    async def no_list(_: web.Request) -> web.Response:
        return web.json_response([])

    async with serving(models=no_list) as url:
        with pytest.raises(ModelError, match="does not answer as an OpenAI-compatible server: it lists no model"):
            await tried(url)
    with pytest.raises(ModelError, match="does not answer as an OpenAI-compatible server"):
        await tried("http://127.0.0.1:9")


def test_the_configuration_is_one_that_the_gateway_reads(tmp_path: Path) -> None:
    path = tmp_path / "gateway.toml"
    path.write_text(configuration("http://gpu:8000", tmp_path / 'a "model"', Found("m", 4096)))
    settings = load(path, ())
    assert (settings.target.engine, settings.target.context) == ("vllm+http://gpu:8000", 4096)
    assert settings.target.model == str(tmp_path / 'a "model"')


def options(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    Verb().add(parser.add_subparsers())
    return parser.parse_args(["attach", *arguments])


def test_mistakes_are_found_before_the_server_is_asked(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no URL"):
        run_command(options("gpu:8000"))
    there = tmp_path / "gateway.toml"
    there.write_text("")
    with pytest.raises(ConfigError, match="is there already"):
        run_command(options("http://127.0.0.1:9", "--model", str(tmp_path), "--output", str(there)))


def test_the_verb_prints_and_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = Found("m", 2048, True, True, True, 16, 10.0, {1: 10.0, 2: 12.0, 5: 15.0})

    async def known(url: str) -> Found:
        return found

    monkeypatch.setattr("edgespec_vllm.gateway.attach.tried", known)
    out = tmp_path / "gateway.toml"
    assert run_command(options("http://gpu:8000", "--model", str(tmp_path), "--output", str(out))) == 0
    assert "written:" in capsys.readouterr().out and "vllm+http://gpu:8000" in out.read_text()
    assert run_command(options("http://gpu:8000", "--json")) == 0
    least = json.loads(capsys.readouterr().out)["least_right"]
    assert sum(least["5"] ** level for level in range(1, 5)) == pytest.approx(15 / 9.5 - 1, abs=0.01)
    assert least["1"] is None
    assert [verb for verb in PART.verbs if isinstance(verb, Verb)]
