"""The table of routes, their guards and limits on bodies, and the OpenAPI document, which has all of them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from cloud_gateway.api import ROUTES, errors, make_app
from cloud_gateway.api.completions import ChatForm
from cloud_gateway.api.routes import document
from cloud_gateway.api.schema import ChatBody, CompletionBody
from edgespec.shared.log_text import LimitedLog
from tests.support.echo import CHAT, Echo, echo_gateway, post, request_head
from tests.support.served import needs
from tools.doubles.limits import request_limits
from tools.fuzz import openapi_cases


@pytest.mark.claim("every-route-is-in-the-table-and-keeps-its-guard")
async def test_every_route_is_in_the_table_and_keeps_its_guard(echo: Echo) -> None:
    app = make_app(echo.api, echo.keys)
    listed = {(route.method, route.path.replace(":.+", "")) for route in ROUTES}
    found = {(route.method, route.resource.canonical) for route in app.router.routes() if route.resource}
    assert found == listed, "a route was added beside the table"
    async with aiohttp.ClientSession() as session:
        for route in ROUTES:
            url = echo.listener.url + route.path.replace("{model:.+}", "echo")
            async with session.request(route.method, url, json=CHAT) as response:
                assert response.status == (200 if route.guard == "public" else 401), route
            async with session.request(
                route.method, url, json=CHAT, headers={"Authorization": "Bearer es-x"}
            ) as response:
                assert response.status == (200 if route.guard == "public" else 401), route
    assert {route.path for route in ROUTES if route.guard == "public"} == {"/", "/healthz", "/health"}
    assert echo.engine.requests == []


async def test_a_route_added_behind_the_tables_back_stays_closed(echo: Echo) -> None:
    from aiohttp import web
    from aiohttp.test_utils import TestClient, TestServer

    async def open_door(request: web.Request) -> web.Response:
        return web.Response(text="inside")

    app = make_app(echo.api, echo.keys)
    app.router.add_get("/door", open_door)
    async with TestClient(TestServer(app)) as client:
        assert (await client.get("/door")).status == 404


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/", 200), ("GET", "/v1/chat", 404), ("POST", "/v1/embeddings", 400), ("GET", "/metrics", 404),
     ("GET", "/v1/chat/completions", 405), ("DELETE", "/v1/models/echo", 405), ("HEAD", "/healthz", 405),
     ("GET", "/v1//models", 404), ("GET", "/v1/models/", 404), ("GET", "/v1/../healthz", 200)],
)  # fmt: skip
async def test_unknown_paths_and_methods_are_refused_in_openais_shape(
    echo: Echo, method: str, path: str, status: int
) -> None:
    async with aiohttp.ClientSession() as session, session.request(method, echo.listener.url + path) as response:
        assert response.status == status
        if status == 405:
            assert response.headers["Allow"]
        if status != 200 and method != "HEAD":
            assert set((await response.json())["error"]) == {"message", "type", "param", "code"}


async def test_a_body_that_does_not_arrive_is_given_up(tmp_path: Path) -> None:
    async with echo_gateway(tmp_path, request_limits(read_timeout_s=0.2)) as echo:
        reader, writer = await asyncio.open_connection("127.0.0.1", echo.listener.port)
        writer.write(request_head(echo, length=100) + b"{")
        assert b"408" in await reader.readline()
        writer.close()


@pytest.mark.claim("a-list-that-is-away-unpairs-nobody")
@pytest.mark.parametrize("fault", ["damaged", "gone"])
async def test_unreadable_keys_let_nobody_in_and_give_503(
    fault: str, echo: Echo, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether a key is valid cannot be said: 401 would make a client throw its key away."""
    monkeypatch.setattr(errors, "lines", LimitedLog(errors.requests_log))  # a line a minute, whatever ran before
    path = echo.keys.file.path
    content = path.read_bytes()
    path.unlink()
    if fault == "damaged":
        path.write_text("{")
        path.chmod(0o600)

    status, body, headers = await post(echo, CHAT)
    assert (status, body["error"]["code"]) == (503, "keys_unreadable")
    assert "its operator" in body["error"]["message"] and int(headers["Retry-After"]) > 0
    assert str(path) not in json.dumps(body)
    assert str(path) in caplog.text and "restore" in caplog.text

    path.write_bytes(content)
    path.chmod(0o600)
    assert (await post(echo, CHAT))[0] == 200


HOSTS = ("localhost", "evil.example", "127.0.0.1", "[::1]", "", "x/health", "health", "127.0.0.1:1/health?")


@pytest.mark.claim("no-host-or-form-of-a-path-opens-a-route")
@pytest.mark.parametrize("host", HOSTS)
async def test_no_host_or_form_of_a_path_opens_a_route(host: str, echo: Echo) -> None:
    forms = ("{path}", "http://evil.example{path}", "{path}?x=/health", "/health/..{path}", "/{path}")
    methods = ("GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS")[: 7 if host == "localhost" else 2]
    paths = [route.path.replace("{model:.+}", "echo") for route in ROUTES if route.guard != "public"]
    for target in (form.format(path=path) for path in paths for form in forms):
        for method in methods:
            reader, writer = await asyncio.open_connection("127.0.0.1", echo.listener.port)
            head = f"{method} {target} HTTP/1.1\r\nHost: {host}\r\nOrigin: http://evil.example\r\n"
            writer.write(f"{head}Content-Length: 2\r\n\r\n{{}}".encode())
            status = int((await reader.readline()).split()[1])
            assert 400 <= status < 500, (method, target, host, status)
            writer.close()
    assert echo.engine.requests == []


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
    for kind in (ChatBody, CompletionBody):
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
    schemas = msgspec.json.decode(document(ROUTES))["components"]["schemas"]
    assert schemas["ChatBody"]["properties"]["model"] == {"type": "string"}


@needs("logprobs")
def test_two_hundred_requests_made_from_it_are_answered_as_it_says() -> None:
    seen = asyncio.run(openapi_cases.cases("9", 200))
    assert seen.total() == 200
    assert {"/v1/chat/completions 200", "/v1/completions 200", "/v1/completions 400", "/v1/models 200"} <= seen.keys()


def test_a_field_that_is_not_in_it_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = ChatForm.whole

    def longer(self: ChatForm, *args: Any) -> dict[str, object]:
        return {**msgspec.to_builtins(plain(self, *args)), "secret": 1}

    monkeypatch.setattr(ChatForm, "whole", longer)
    with pytest.raises(AssertionError, match="unknown field `secret`"):
        asyncio.run(openapi_cases.cases("9", 200))
