"""Values of the parameters of forms that are refused by name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cloud_gateway.core.requests.request import OPTIONS
from tests.support.echo import CHAT, Echo, echo_gateway, post
from tests.support.served import PARAMETERS
from tools.doubles.limits import request_limits

JSON_OBJECT = {"type": "json_object"}
BAD: list[tuple[dict[str, Any], str | None]] = [
    ({"response_format": {"type": "yaml"}}, "response_format.type"),
    ({"response_format": {}}, "response_format.type"),
    ({"response_format": "json"}, "response_format"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format.json_schema.schema"),
    ({"response_format": JSON_OBJECT, "edgespec": {"ignore_eos": True}}, "edgespec.ignore_eos"),
    ({"response_format": JSON_OBJECT, "min_tokens": 5}, "min_tokens"),
    ({"response_format": JSON_OBJECT}, "response_format"),
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
