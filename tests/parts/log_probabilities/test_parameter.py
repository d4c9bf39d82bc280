"""The parameters over real sockets: values that are refused, endpoints that have them, and the document."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from cloud_gateway.api.sse import FRAME_BYTES
from cloud_gateway.parts.log_probabilities.parameter import LogProbabilities
from cloud_gateway.parts.log_probabilities.rows import LogprobReader
from tests.support.echo import CHAT, Echo, echo_gateway, post
from tools.doubles.limits import request_limits

PARAMETERS = (LogProbabilities(),)
TEXT = "/v1/completions"
PROMPT: dict[str, Any] = {"model": "echo", "prompt": "hello"}
ONLY_TOGETHER = "it is only allowed together with 'logprobs': true"


@pytest.fixture
async def echo(tmp_path: Path) -> AsyncIterator[Echo]:
    async with echo_gateway(tmp_path, request_limits(parameters=PARAMETERS)) as running:
        yield running


def tops(echo: Echo) -> list[int | None]:
    """The number of most probable tokens that each request asks the engine for; None if no row is read for it."""
    readers = [request.row_reader for request in echo.engine.requests]
    return [reader.top if isinstance(reader, LogprobReader) else None for reader in readers]


async def test_requests_ask_the_engine_for_as_many_as_they_say(echo: Echo) -> None:
    for more in ({}, {"logprobs": False}, {"logprobs": None, "top_logprobs": None}):
        assert (await post(echo, {**CHAT, **more}))[0] == 200
    assert (await post(echo, {**CHAT, "logprobs": True}))[0] == 200
    assert (await post(echo, {**CHAT, "logprobs": True, "top_logprobs": 20}))[0] == 200
    assert (await post(echo, PROMPT, TEXT))[0] == 200
    assert (await post(echo, {**PROMPT, "logprobs": 0}, TEXT))[0] == 200
    assert (await post(echo, {**PROMPT, "logprobs": 5, "n": 2}, TEXT))[0] == 200
    assert tops(echo) == [None, None, None, 0, 20, None, 0, 5, 5]


@pytest.mark.claim("a-number-out-of-range-is-refused-with-the-range")
async def test_bad_values_are_refused_by_name(echo: Echo) -> None:
    refused: list[tuple[dict[str, Any], str, str]] = [
        ({"logprobs": 3}, "logprobs", "expected boolean, got integer"),
        ({"top_logprobs": 3}, "top_logprobs", ONLY_TOGETHER),
        ({"top_logprobs": 0, "logprobs": False}, "top_logprobs", ONLY_TOGETHER),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs", "expected a number from 0 to 20"),
        ({"top_logprobs": -1, "logprobs": True}, "top_logprobs", "expected a number from 0 to 20"),
        ({"top_logprobs": "3", "logprobs": True}, "top_logprobs", "expected a number from 0 to 20"),
    ]
    for more, param, why in refused:
        status, body, _ = await post(echo, {**CHAT, **more})
        assert status == 400
        assert body["error"]["param"] == param
        assert body["error"]["message"] == f"Invalid '{param}': {why}."

    status, body, _ = await post(echo, {**PROMPT, "logprobs": 6}, TEXT)
    assert status == 400
    assert body["error"]["message"] == "Invalid 'logprobs': expected a number from 0 to 5."
    status, body, _ = await post(echo, {**PROMPT, "logprobs": 1, "top_logprobs": 1}, TEXT)
    assert status == 400
    assert body["error"]["code"] == "unsupported_parameter"
    assert echo.engine.requests == []


async def test_frames_of_an_even_stream_have_room_for_them(tmp_path: Path) -> None:
    limits = request_limits(parameters=PARAMETERS, stream="even")
    sizes = []
    async with echo_gateway(tmp_path, limits) as echo:
        for more in ({}, {"logprobs": True}, {"logprobs": True, "n": 2}):
            data = json.dumps({**CHAT, **more, "max_tokens": 1, "stream": True})
            async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {echo.key}"}) as session:
                async with session.post(f"{echo.base_url}/chat/completions", data=data) as response:
                    chunk, _ = await anext(aiter(response.content.iter_chunks()))
            sizes.append(len(chunk))
    assert sizes == [FRAME_BYTES, 8 * FRAME_BYTES, 16 * FRAME_BYTES]


async def test_the_document_has_the_types_of_both_endpoints(echo: Echo) -> None:
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {echo.key}"}) as session:
        async with session.get(f"{echo.listener.url}/openapi.json") as response:
            components = (await response.json())["components"]["schemas"]

    assert components["ChatBody"]["properties"]["top_logprobs"]["anyOf"][0]["maximum"] == 20
    for choice, kind in (("ChatChoice", "Chat"), ("DeltaChoice", "Chat"), ("TextChoice", "Text")):
        shown = components[choice]["properties"]["logprobs"]["anyOf"]
        assert shown == [{"$ref": f"#/components/schemas/{kind}Logprobs"}, {"type": "null"}]
