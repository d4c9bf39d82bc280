"""The OpenAPI document: every route and parameter is in it, and no request made from it fails the gateway."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import msgspec
import pytest

from cloud_gateway.api import ROUTES
from cloud_gateway.api.completions import ChatForm
from cloud_gateway.api.responses import ResponsesBody
from cloud_gateway.api.routes import document
from cloud_gateway.api.schema import ChatBody, CompletionBody
from tests.support.echo import Echo
from tools.fuzz import openapi_cases


async def test_every_route_and_every_parameter_is_in_it(echo: Echo) -> None:
    headers = {"Authorization": f"Bearer {echo.key}"}
    async with aiohttp.ClientSession(headers=headers) as session:
        async with session.get(echo.listener.url + "/openapi.json") as response:
            assert response.status == 200
            served = await response.json()
    listed = {(route.method, route.shown): route.guard for route in ROUTES}
    described = {
        (method.upper(), path): "public" if one.get("security") == [] else "key"
        for path, methods in served["paths"].items()
        for method, one in methods.items()
    }
    assert described == listed
    for kind in (ChatBody, CompletionBody, ResponsesBody):
        fields = {field.encode_name for field in msgspec.structs.fields(kind)}
        properties = served["components"]["schemas"][kind.__name__]["properties"]
        assert properties.keys() == fields
        assert properties["model"] == {"type": "string", "enum": ["echo"]}
    streamed = served["paths"]["/v1/completions"]["post"]["responses"]["200"]["content"]["text/event-stream"]["schema"]
    done, chunk = streamed["properties"]["data"]["anyOf"]
    assert done["const"] == "[DONE]" and chunk["contentSchema"] == {"$ref": "#/components/schemas/TextChunk"}
    (parameter,) = served["paths"]["/v1/models/{model}"]["get"]["parameters"]
    assert parameter["schema"]["enum"] == ["echo"]


def test_while_no_model_is_loaded_any_name_is_allowed() -> None:
    schemas = msgspec.json.decode(document())["components"]["schemas"]
    assert schemas["ChatBody"]["properties"]["model"] == {"type": "string"}


def test_two_hundred_requests_made_from_it_are_answered_as_it_says() -> None:
    seen = asyncio.run(openapi_cases.cases("7", 200))
    assert seen.total() == 200
    assert {"/v1/chat/completions 200", "/v1/completions 200", "/v1/completions 400", "/v1/models 200"} <= seen.keys()


def test_a_field_that_is_not_in_it_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = ChatForm.whole

    def longer(self: ChatForm, *args: Any) -> dict[str, object]:
        return {**msgspec.to_builtins(plain(self, *args)), "secret": 1}

    monkeypatch.setattr(ChatForm, "whole", longer)
    with pytest.raises(AssertionError, match="unknown field `secret`"):
        asyncio.run(openapi_cases.cases("7", 200))
