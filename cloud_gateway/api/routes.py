"""All routes with their guards, in one table, so that no route exists without a guard."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Literal

from aiohttp import web

from cloud_gateway.api.errors import (
    ID,
    TRACE_PARENT,
    as_client_error,
    error_response,
    new_id,
    refused,
    show,
    unavailable,
)
from cloud_gateway.api.listener import Connection
from cloud_gateway.api.openapi import OPERATIONS
from cloud_gateway.api.service import KEY, Api
from cloud_gateway.api.sse import ClientGoneError
from cloud_gateway.auth import KeyRing
from edgespec.core.errors import ClientError

Guard = Literal["public", "key"]
Endpoint = Callable[[Api, web.Request], Awaitable[web.StreamResponse]]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
CLIENT_LEFT = 499
"""Status in the metrics where the client closed the connection before the response; nginx's number."""


@dataclass(frozen=True, slots=True)
class Route:
    """One method and path, with its guard and its handler."""

    method: str
    path: str
    guard: Guard
    endpoint: Endpoint


ROUTES = tuple(
    Route(method, path.replace("{model}", "{model:.+}"), "public" if one.public else "key", getattr(Api, one.endpoint))
    for (method, path), one in OPERATIONS.items()
)

SERVED = ", ".join(f"{method} {path}" for method, path in OPERATIONS)


def make_app(api: Api, keys: KeyRing, more: Sequence[Route] = ()) -> web.Application:
    """The app of the API listener, with `more` routes.

    Run it with `handler_cancellation=True`: completions then end when clients leave.
    """
    table: dict[web.AbstractRoute, Route] = {}

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        request[ID] = new_id()
        TRACE_PARENT.set(request.headers.get("traceparent", ""))
        origins, origin = api.limits.api.cors, request.headers.get("Origin")
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
            allow = error.headers.get("Allow") if isinstance(error, web.HTTPException) else None
            shown = as_client_error(error, request)
            refused(request, request.get(KEY), shown)
            response = error_response(shown, allow)
            status = response.status
        finally:
            api.metrics.request(route.path if route is not None else "other", status)
        return await _ended(request, response)

    app = web.Application(middlewares=[guarded], client_max_size=api.limits.max_body_bytes)
    app.on_response_prepare.append(show)
    app.on_response_prepare.append(partial(_show_quota, api))
    app.on_response_prepare.append(partial(_share, api))
    api.several_keys = keys.several
    for route in (*ROUTES, *more):
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


async def _show_quota(api: Api, request: web.Request, response: web.StreamResponse) -> None:
    if KEY in request:
        response.headers.update(api.quotas.headers(request[KEY].id, time.monotonic()))


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
            raise unavailable("The gateway has as many connections as it may; try again shortly.", code="busy")
        request[KEY] = key
    if request.headers.get("Content-Encoding", "identity").strip().lower() not in ("", "identity"):
        sentence = "Bodies are read as they are: send this one without the header 'Content-Encoding'."
        raise ClientError(sentence, status=415, code="unsupported_encoding")
    if (request.content_length or 0) > max_body_bytes:
        raise web.HTTPRequestEntityTooLarge(max_body_bytes, request.content_length or 0)


def _unknown(request: web.Request) -> Exception:
    """A path that is not served, or not by this method."""
    refused = request.match_info.http_exception
    if isinstance(refused, web.HTTPMethodNotAllowed):
        return refused
    sentence = f"This gateway does not serve {request.method} {request.path}. It serves {SERVED}; see /openapi.json."
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
