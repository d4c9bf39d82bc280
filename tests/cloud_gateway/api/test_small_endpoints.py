"""The small endpoints, and options that clients and load tools expect."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from edgespec import __version__
from tests.support.echo import CHAT, HELLO, MODEL, Echo, echo_gateway, post
from tools.doubles.limits import request_limits

PAGE = "https://chat.example"
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
TOOLS: list[Any] = [{"type": "function", "name": "weather", "parameters": {"type": "object"}}]


@pytest.fixture(params=["as-made", "even"])
async def echo(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Echo]:
    limits = request_limits(stream=request.param, model_alias=("gpt-4o-mini",), cors=(PAGE,))
    async with echo_gateway(tmp_path, limits) as running:
        yield running


async def test_load_tools_may_ask_for_a_length_if_the_operator_allows_it(tmp_path: Path) -> None:
    asked = {**CHAT, "max_tokens": 60, "stream": True, "stream_options": {"continuous_usage_stats": True}}
    for change in ({"ignore_eos": True}, {"min_tokens": 6}, asked):
        async with echo_gateway(tmp_path / "no", request_limits(client_options=())) as echo:
            status, body, _ = await post(echo, {**CHAT, "max_tokens": 60, **change})
            assert (status, body["error"]["code"]) == (400, "option_not_allowed")
    async with echo_gateway(tmp_path / "yes") as echo:
        status, body, _ = await post(echo, {**CHAT, "max_tokens": 60, "ignore_eos": True})
        assert (status, body["choices"][0]["finish_reason"]) == (200, "length")
        await post(echo, {**CHAT, "max_tokens": 60, "min_tokens": 6})
        assert echo.engine.requests[-1].min_tokens == 6
        status, body, _ = await post(echo, {**CHAT, "max_tokens": 60, "min_tokens": 61})
        assert (status, body["error"]["param"]) == (400, "min_tokens"), body
        async with openai.AsyncOpenAI(base_url=echo.base_url, api_key=echo.key) as client:
            chunks = [one async for one in await client.chat.completions.create(**asked)]
        counts = [chunk.usage.completion_tokens for chunk in chunks]
        assert counts == sorted(counts) and counts[-1] > counts[0] == 3


async def test_names_version_and_tokens_are_shown(echo: Echo) -> None:
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {echo.key}"}) as session:
        async with session.get(echo.listener.url + "/") as response:
            assert (await response.json())["openapi"] == "/openapi.json"
        async with session.get(echo.listener.url + "/version") as response:
            assert await response.json() == {"version": __version__}
        async with session.get(echo.base_url + "/models") as response:
            assert [one["id"] for one in (await response.json())["data"]] == ["echo", "gpt-4o-mini"]
    for body, text in (
        ({"prompt": "ab"}, "ab"),
        ({"content": "ab"}, "ab"),
        ({"messages": HELLO}, "user: hello ✓ world"),
    ):
        status, found, _ = await post(echo, body, "/tokenize")
        assert (status, found["tokens"]) == (200, list(text.encode())) and found["max_model_len"] == MODEL.context
    assert (await post(echo, {}, "/tokenize"))[0] == 400


ALIAS = "gpt-4o-mini"


async def test_a_response_repeats_the_name_by_which_the_model_was_asked(echo: Echo) -> None:
    for name in ("echo", ALIAS):
        for path, asked in (("/v1/chat/completions", CHAT), ("/v1/completions", {"prompt": "x"})):
            status, body, _ = await post(echo, {**asked, "model": name}, path)
            assert (status, body["model"]) == (200, name)
    async with openai.AsyncOpenAI(base_url=echo.base_url, api_key=echo.key) as client:
        chunks = [
            one async for one in await client.chat.completions.create(model=ALIAS, messages=[HELLO[0]], stream=True)
        ]
    assert {chunk.model for chunk in chunks} == {ALIAS}


async def test_a_model_that_is_not_served_is_refused_with_all_names(echo: Echo) -> None:
    status, body, _ = await post(echo, {**CHAT, "model": "other"})
    assert (status, body["error"]["code"]) == (404, "model_not_found")
    expected = f"The model 'other' does not exist here; this gateway serves 'echo', also by '{ALIAS}'."
    assert body["error"]["message"] == expected


@pytest.mark.parametrize(("path", "named"), [("/v1/embeddings", "embeddings"), ("/v1/messages", "Anthropic's")])
async def test_apis_that_are_not_served_are_refused_by_name(echo: Echo, path: str, named: str) -> None:
    status, body, _ = await post(echo, {"model": "echo", "input": "x"}, path)
    assert (status, body["error"]["code"]) == (400, "unsupported_endpoint")
    assert path in body["error"]["message"] and named in body["error"]["message"]
    status, body, _ = await post(echo, {}, "/v1/nothing")
    assert (status, body["error"]["code"]) == (404, "unknown_url")


async def test_log_likelihood_of_a_prompt_is_refused_by_name(echo: Echo) -> None:
    """The body of lm-eval's `local-completions` for a task that compares log-likelihoods."""
    asked = {"model": "echo", "prompt": [[1, 2]], "echo": True, "max_tokens": 0, "logprobs": 1, "temperature": 0}
    status, body, _ = await post(echo, asked, "/v1/completions")
    assert (status, body["error"]["param"], body["error"]["code"]) == (400, "echo", "unsupported_parameter")
    assert "evaluations by log-likelihood (lm-eval) cannot run here" in body["error"]["message"]


async def test_another_servers_parameter_is_not_taken_for_a_slip(echo: Echo) -> None:
    for name, hint in (("timings_per_token", ""), ("n_probs", ""), ("max_token", " (did you mean 'max_tokens'?)")):
        status, body, _ = await post(echo, {**CHAT, name: 1})
        assert (status, body["error"]["message"]) == (400, f"Unknown parameter: '{name}'{hint}.")


async def test_only_listed_pages_may_use_the_api_in_a_browser(echo: Echo) -> None:
    for origin, allowed in ((PAGE, PAGE), ("https://evil.example", None)):
        _, _, headers = await post(echo, CHAT, Origin=origin)
        assert headers.get("Access-Control-Allow-Origin") == allowed
        async with aiohttp.ClientSession(headers={"Origin": origin}) as session:
            async with session.options(echo.base_url + "/chat/completions") as response:
                assert response.status == (204 if allowed else 405)
                assert ("Access-Control-Allow-Headers" in response.headers) == bool(allowed)
