"""All routes in one table, with their guards, so that no route exists without one, and with the types of their bodies
and responses, from which the OpenAPI 3.1 document of `GET /openapi.json` is made."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args, get_type_hints

import msgspec
from aiohttp import web
from msgspec import Struct

from cloud_gateway.api.completions import (
    ChatChunk,
    ChatCompletion,
    Health,
    Model,
    Models,
    TextChunk,
    TextCompletion,
    Tokens,
    Version,
    Welcome,
)
from cloud_gateway.api.errors import (
    ID,
    TRACE_PARENT,
    Error,
    as_client_error,
    error_response,
    new_id,
    refused,
    show_request_id,
    unavailable,
)
from cloud_gateway.api.listener import Connection
from cloud_gateway.api.parameters import Parameter, fields_of
from cloud_gateway.api.schema import ChatBody, Common, CompletionBody, TokenizeBody
from cloud_gateway.api.service import KEY, Api
from cloud_gateway.api.sse import ClientGoneError
from cloud_gateway.auth import KeyRing
from edgespec.core.errors import ClientError

Guard = Literal["public", "key"]
Endpoint = Callable[[Api, web.Request], Awaitable[web.StreamResponse]]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
CLIENT_LEFT = 499
"""Status for observers if the client closed the connection before the response; nginx's number."""


@dataclass(frozen=True, slots=True)
class Route:
    """One method and path, with its guard and its handler; for the document its body, response and stream's events."""

    method: str
    path: str
    guard: Guard
    endpoint: Endpoint
    summary: str = ""
    response: Any = None
    body: type[Struct] | None = None
    event: type[Struct] | None = None
    page: str = ""
    """A word for it, if people open it in a browser: `GET /`, `serve` and `status` then name it."""

    @property
    def shown(self) -> str:
        """The path as it is documented."""
        return self.path.replace(":.+", "")


async def openapi(api: Api, request: web.Request) -> web.StreamResponse:
    """`GET /openapi.json`: every route, with the types of its body and response."""
    return web.Response(
        body=document(request.app[DOCUMENTED], *api.described, tuple(api.limits.parameters)),
        content_type="application/json",
    )


async def welcome(api: Api, request: web.Request) -> web.StreamResponse:
    """`GET /`: paths to begin with, and pages for people."""
    body = msgspec.json.encode(Welcome(pages=request.app[PAGES]))
    return web.Response(body=body, content_type="application/json")


ROUTES = (
    Route("GET", "/healthz", "public", Api.healthz, "Whether requests are accepted; 503 if not.", Health),
    Route("GET", "/health", "public", Api.healthz, "Whether requests are accepted; 503 if not.", Health),
    Route("GET", "/openapi.json", "key", openapi, "This document.", dict[str, Any]),
    Route("GET", "/v1/models", "key", Api.models, "The one model that is served.", Models),
    Route("GET", "/v1/models/{model:.+}", "key", Api.model, "A model by its id.", Model),
    Route("POST", "/v1/chat/completions", "key", Api.chat, "A chat completion.", ChatCompletion, ChatBody, ChatChunk),
    Route("POST", "/tokenize", "key", Api.tokenize, "The tokens of a prompt.", Tokens, TokenizeBody),
    Route("GET", "/version", "key", Api.version, "The gateway's version.", Version),
    Route("GET", "/", "public", welcome, "Paths to begin with.", Welcome),
    Route(
        "POST", "/v1/completions", "key", Api.completions, "Text that continues a prompt.",
        TextCompletion, CompletionBody, TextChunk,
    ),
)  # fmt: skip

PAGES = web.AppKey("pages", dict[str, str])
"""The paths of an app that people open in a browser, each by a word for it."""
DOCUMENTED = web.AppKey("documented", tuple[Route, ...])
"""The routes of an app that have a summary: what clients may rely on."""


NOT_SERVED: Mapping[str, str] = {
    "/v1/embeddings": "this gateway computes no embeddings: its model completes text. Send them to an embedding server",
    "/v1/messages": "this gateway does not speak Anthropic's Messages API. Send the chat to /v1/chat/completions, "
    "OpenAI's API, or by a proxy that translates between them",
}
"""Paths of other APIs that clients ask for, each with a sentence for them."""


def make_app(api: Api, keys: KeyRing, more: Sequence[Route] = ()) -> web.Application:
    """The app of the API listener, with `more` routes.

    Run it with `handler_cancellation=True`: completions then end when clients leave.
    """
    table: dict[web.AbstractRoute, Route] = {}

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        request[ID] = new_id()
        TRACE_PARENT.set(request.headers.get("traceparent", ""))
        origins = api.limits.api.cors
        origin = request.headers.get("Origin")
        if request.method == "OPTIONS" and allowed_origin(origins, origin):
            return web.Response(status=204)

        route = table.get(request.match_info.route)
        status = CLIENT_LEFT
        try:
            _admit(request, route, keys, api.limits.max_body_bytes)
            response = await handler(request)
            status = response.status
        except ClientGoneError:
            response = web.Response(status=CLIENT_LEFT)  # never sent; aiohttp needs a response to close
        except Exception as error:  # noqa: BLE001 - the last place where a failure can become a response
            if isinstance(error, web.HTTPException):
                allow = error.headers.get("Allow")
            else:
                allow = None
            shown = as_client_error(error, request)
            refused(request, request.get(KEY), shown)
            response = error_response(shown, allow)
            status = response.status
        finally:
            api.responded(route.path if route is not None else "other", status)

        return await _ended(request, response)

    app = web.Application(middlewares=[guarded], client_max_size=api.limits.max_body_bytes)
    app.on_response_prepare.append(show_request_id)
    app.on_response_prepare.append(partial(_show_limits, api))
    app.on_response_prepare.append(partial(_share, api))
    api.several_keys = keys.several
    routes = (*ROUTES, *more)
    app[PAGES] = {route.page: route.path for route in routes if route.page}
    app[DOCUMENTED] = tuple(route for route in routes if route.summary)
    for route in routes:
        handler = partial(route.endpoint, api)
        table[app.router.add_route(route.method, route.path, handler, expect_handler=_expect_later)] = route

    return app


def allowed_origin(origins: Sequence[str], origin: str | None) -> bool:
    """Whether a web page of this origin may use the API."""
    return origin is not None and bool({"*", origin} & set(origins))


async def _share(api: Api, request: web.Request, response: web.StreamResponse) -> None:
    """CORS, for the origins that the operator has listed; keys travel in a header, so cookies are never allowed."""
    origin = request.headers.get("Origin")
    if allowed_origin(api.limits.api.cors, origin):
        response.headers["Access-Control-Allow-Origin"] = origin or ""
        response.headers["Access-Control-Expose-Headers"] = "*"
        response.headers["Vary"] = "Origin"
        if request.method == "OPTIONS":
            response.headers["Access-Control-Allow-Methods"] = "GET, POST"
            response.headers["Access-Control-Allow-Headers"] = "Authorization, *"
            response.headers["Access-Control-Max-Age"] = "600"


async def _show_limits(api: Api, request: web.Request, response: web.StreamResponse) -> None:
    """The headers of what admits a key's requests."""
    if KEY in request:
        for admission in api.admissions:
            response.headers.update(admission.headers(request[KEY], time.monotonic()))


async def _expect_later(request: web.Request) -> None:
    """Does nothing: "100 Continue" is sent when the body is about to be read (service.py)."""


def _admit(request: web.Request, route: Route | None, keys: KeyRing, max_body_bytes: int) -> None:
    """Checks a request and stores its key, before a byte of its body is read.

    Raises ClientError 401, 404, 413, 415, 503, HTTPException 405.
    """
    if route is None:
        raise _unknown(request)

    if route.guard == "key":
        key = keys.check(request.headers.get("Authorization"))
        if isinstance(request.protocol, Connection) and not request.protocol.proven():
            raise unavailable(
                "The gateway has as many connections as it may; try again shortly.",
                code="busy",
            )
        request[KEY] = key

    encoding = request.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        sentence = "Bodies are read as they are: send this one without the header 'Content-Encoding'."
        raise ClientError(sentence, status=415, code="unsupported_encoding")
    if (request.content_length or 0) > max_body_bytes:
        raise web.HTTPRequestEntityTooLarge(max_body_bytes, request.content_length or 0)


def _unknown(request: web.Request) -> Exception:
    """A path that is not served, or not by this method."""
    refused = request.match_info.http_exception
    if isinstance(refused, web.HTTPMethodNotAllowed):
        return refused

    why = NOT_SERVED.get(request.path.rstrip("/"))
    if why is not None:
        return ClientError(f"{request.path} is not served: {why}.", code="unsupported_endpoint")

    served = ", ".join(f"{route.method} {route.shown}" for route in request.app[DOCUMENTED])
    sentence = f"This gateway does not serve {request.method} {request.path}. It serves {served}; see /openapi.json."
    return ClientError(sentence, status=404, code="unknown_url")


async def _ended(request: web.Request, response: web.StreamResponse) -> web.StreamResponse:
    """The response; the connection then stays open only if the request had a key and its body was read."""
    unread = not request.content.is_eof()
    if not response.prepared and (unread or (KEY not in request and response.status >= 400)):
        response.force_close()
    if unread and isinstance(request.protocol, Connection):
        with suppress(ConnectionError):
            await response.prepare(request)
            await response.write_eof()
            await request.protocol.drop_body()
    elif KEY in request and response.keep_alive is not False and isinstance(request.protocol, Connection):
        request.protocol.wait_for_next(request[KEY].id)

    return response


SCHEMAS = "#/components/schemas/"


@functools.lru_cache(maxsize=1)
def document(
    routes: Sequence[Route],
    models: Sequence[str] = (),
    refuses: Sequence[tuple[str, str]] = (),
    parameters: Sequence[Parameter] = (),
) -> bytes:
    """The document of these routes as JSON.

    Args:
        routes: Each with a summary.
        models: The names of the model that is served; none while it is loaded.
        refuses: Parameters that the engine cannot serve, each with the reason.
        parameters: Those of parts.
    """
    named: dict[str, Any] = {"type": "string", "enum": [*models]} if models else {"type": "string"}
    schemas = _schemas(routes, parameters)
    for route in routes:
        if route.body is not None and issubclass(route.body, Common):
            properties = schemas.components[route.body.__name__]["properties"]
            properties["model"] = named
            for name, why in refuses:
                if name in properties:
                    properties[name] = properties[name] | {"description": f"Refused with 400: {why}."}

    paths: dict[str, dict[str, Any]] = {}
    for one in routes:
        content = {"application/json": {"schema": schemas.of[str(one.response)]}}
        if one.event:
            content["text/event-stream"] = {"schema": _event(schemas.of[str(one.event)])}
        error = {"application/json": {"schema": schemas.error}}
        responses = {"200": {"description": "success", "content": content}}
        responses["503" if one.response is Health else "default"] = {
            "description": "not accepted",
            "content": content if one.response is Health else error,
        }
        found: dict[str, Any] = {"summary": one.summary, "responses": responses}
        if one.guard == "public":
            found["security"] = []
        if one.body:
            body = {"application/json": {"schema": schemas.of[str(one.body)]}}
            found["requestBody"] = {"required": True, "content": body}
        names = re.findall(r"{(\w+)}", one.shown)
        found["parameters"] = [{"name": name, "in": "path", "required": True, "schema": named} for name in names]
        paths.setdefault(one.shown, {})[one.method.lower()] = found

    whole = {
        "openapi": "3.1.0",
        "info": {"title": "edgespec chat API", "version": "1"},
        "security": [{"key": []}],
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }
    return msgspec.json.encode(whole)


@dataclass(frozen=True, slots=True)
class Schemas:
    """JSON schemas of the types of routes."""

    of: Mapping[str, dict[str, Any]]
    """By the type as text."""
    error: dict[str, Any]
    components: dict[str, Any]


def _schemas(routes: Sequence[Route], parameters: Sequence[Parameter]) -> Schemas:
    """Those of bodies, responses and events, with what the parameters add."""
    kinds = [kind for route in routes for kind in (route.body, route.response, route.event) if kind]
    fields = [
        (body.__name__, name, field.type | None)
        for body in dict.fromkeys(route.body for route in routes if route.body is not None)
        for name, field in fields_of(parameters, body).items()
    ]
    annotated = _annotated(routes, parameters)

    types = [*kinds, *(kind for _, _, kind in fields), *annotated.values(), Error]
    schemas, components = msgspec.json.schema_components(types, ref_template=f"{SCHEMAS}{{name}}")
    for (body_name, name, _), shape in zip(fields, schemas[len(kinds) :]):
        components[body_name]["properties"].setdefault(name, {**shape, "default": None})
    for choice_name, shape in zip(annotated, schemas[len(kinds) + len(fields) :]):
        components[choice_name]["properties"]["logprobs"].update(shape)
    return Schemas(dict(zip(map(str, kinds), schemas)), schemas[-1], components)


def _annotated(routes: Sequence[Route], parameters: Sequence[Parameter]) -> dict[str, Any]:
    """Names of the types of choices, each with the type of what a parameter says about their tokens, or None."""
    types: dict[str, Any] = {}
    for route in routes:
        if route.body is None:
            continue
        for field in fields_of(parameters, route.body).values():
            if field.annotations is not None:
                for kind in (route.response, route.event):
                    (choice,) = get_args(get_type_hints(kind)["choices"])
                    types[choice.__name__] = field.annotations | None

    return types


def _event(chunk: dict[str, Any]) -> dict[str, Any]:
    """A server-sent event as OpenAPI 3.2 describes it: in its data a chunk as JSON, or at the end [DONE]."""
    text = {
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": chunk,
    }
    data = {"anyOf": [{"const": "[DONE]"}, text]}
    return {"type": "object", "properties": {"data": data}, "required": ["data"]}
