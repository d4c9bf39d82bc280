"""Values of the parameters of tools that are refused by name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cloud_gateway.core.requests.request import OPTIONS
from tests.support.echo import CHAT, MODEL, Echo, echo_gateway, post
from tests.support.served import PARAMETERS, needs
from tools.doubles.limits import request_limits

BAD: list[tuple[dict[str, Any], str | None]] = [
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tools": [{"type": "magic", "function": {"name": "f"}}]}, "tools[0].type"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}] * 2}, "tools[1].function.name"),
    ({"tools": [{"type": "function", "function": {"name": "f", "strict": True}}]}, "tools"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
    ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
]


@pytest.fixture
async def echo(tmp_path: Path) -> AsyncIterator[Echo]:
    async with echo_gateway(tmp_path, request_limits(client_options=OPTIONS, parameters=PARAMETERS)) as running:
        yield running


async def test_bad_values_are_refused_by_name(echo: Echo) -> None:
    for change, param in BAD:
        status, body, _ = await post(echo, {**CHAT, **change})
        assert (status, body["error"]["param"]) == (400, param), (change, body)
        assert set(body["error"]) == {"message", "type", "param", "code"}
        assert body["error"]["type"] == "invalid_request_error"
        assert body["error"]["message"].endswith(".")
    assert echo.engine.requests == []


@needs("response_format")
async def test_a_grammar_without_a_compiler_is_refused_by_the_tools_that_need_it(echo: Echo) -> None:
    """The gateway of these tests has none. Beside a schema, tools are always written by a grammar."""
    tools = [{"type": "function", "function": {"name": "f"}}]
    status, body, _ = await post(echo, {**CHAT, "tools": tools, "response_format": {"type": "json_object"}})
    assert (status, body["error"]["param"], body["error"]["code"]) == (400, "tools", "unsupported_parameter")


@pytest.mark.claim("a-prompt-that-cannot-fit-is-refused-before-it-is-tokenised")
async def test_tools_that_cannot_fit_are_refused_before_they_are_tokenised(echo: Echo) -> None:
    description = "x" * (8 * MODEL.context + 1)
    tools = [{"type": "function", "function": {"name": "f", "description": description}}]
    status, body, _ = await post(echo, {**CHAT, "tools": tools})
    error = body["error"]
    assert (status, error["code"], error["param"]) == (400, "context_length_exceeded", "messages")
    assert echo.engine.requests == []
