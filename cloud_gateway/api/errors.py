"""Errors in OpenAI's shape, so that its clients raise their own classes of errors (docs/api.md).

A request has an id, which its line in the log, the response's header and the audit log show.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Literal

import msgspec
from aiohttp import web
from msgspec import Struct

from cloud_gateway.auth import Key
from edgespec.core.errors import ClientError, EdgespecError, KeyStoreError
from edgespec.shared.log_text import LimitedLog, places

log = logging.getLogger(__name__)
requests_log = logging.getLogger("cloud_gateway.api")
RETRY_S = 5.0
"""After which a client is to try again."""
ErrorType = Literal["invalid_request_error", "rate_limit_error", "server_error"]
TYPES: Mapping[int, ErrorType] = {
    429: "rate_limit_error",
    500: "server_error",
    502: "server_error",
    503: "server_error",
}
"""OpenAI's `type` by status; every other status is an `invalid_request_error`."""

HTTP_ERRORS: Mapping[int, tuple[str, str]] = {
    405: ("method_not_allowed", "{path} does not take {method}."),
    413: (
        "request_too_large",
        "The request body is larger than the 4 MiB that this gateway takes; send less at once.",
    ),
    417: (
        "expectation_failed",
        "The header 'Expect' asks for something else than '100-continue'.",
    ),
}
"""Code and sentence for requests that the HTTP library itself refuses."""


def unavailable(why: str, *, code: str) -> ClientError:
    """503: the gateway cannot serve any request at present."""
    return ClientError(why, status=503, code=code, retry_after_s=RETRY_S)


def shutting_down() -> ClientError:
    return unavailable(
        "The gateway is shutting down; send the request again shortly.",
        code="shutting_down",
    )


def internal(error: BaseException | str) -> ClientError:
    """500 for a failure of the gateway: the response has a reference, under which the log has the failure."""
    reference = secrets.token_hex(4)
    if isinstance(error, EdgespecError | str):
        log.error("request failed (reference %s): %s", reference, error)
    else:
        log.error("request failed (reference %s): %s", reference, places(error))
    sentence = f"The gateway failed while serving this request; its log says more under the reference {reference}."
    return ClientError(sentence, status=500, code="internal_error")


def keys_unreadable(error: KeyStoreError) -> ClientError:
    """503: whether an API key is valid cannot be said. The log names the file and what to do about it."""
    lines.line(
        logging.ERROR,
        "keys",
        f"requests get 503, since API keys cannot be checked: {error}",
    )
    sentence = (
        "The gateway cannot read its list of API keys at present, so it cannot check yours; send the request again "
        "shortly, and tell its operator if this lasts: the gateway's log says what to do."
    )
    return unavailable(sentence, code="keys_unreadable")


def as_client_error(error: Exception, request: web.Request) -> ClientError:
    if isinstance(error, ClientError):
        return error
    if isinstance(error, KeyStoreError):
        return keys_unreadable(error)
    if isinstance(error, web.RequestPayloadError):
        return ClientError(
            "The request body ended early, or its chunks are not valid.",
            code="malformed_http",
        )
    if isinstance(error, web.HTTPException):
        code, sentence = HTTP_ERRORS.get(error.status, ("bad_request", error.reason))
        return ClientError(
            sentence.format(method=request.method, path=request.path),
            status=error.status,
            code=code,
        )

    return internal(error)


class ErrorObject(Struct, forbid_unknown_fields=True):
    """What was wrong; `param` is the parameter at fault."""

    message: str
    type: ErrorType
    param: str | None
    code: str | None


class Error(Struct, forbid_unknown_fields=True):
    """Any status of 400 and up."""

    error: ErrorObject


def error_object(error: ClientError) -> Error:
    """The body of a response."""
    kind = TYPES.get(error.status, "invalid_request_error")
    return Error(ErrorObject(str(error), kind, error.param, error.code))


def error_response(error: ClientError, allow: str | None = None) -> web.Response:
    """The whole response; with `Retry-After` in whole seconds where the error has a time."""
    headers = {}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if allow is not None:
        headers["Allow"] = allow
    body = msgspec.json.encode(error_object(error))
    return web.Response(body=body, status=error.status, content_type="application/json", headers=headers)


HEADER = "x-request-id"
"""OpenAI's name for it; the official client shows it as `_request_id`."""
ID = web.RequestKey("id", str)
"""The guard (routes.py) stores the id in the request under it."""

TRACE_PARENT: ContextVar[str] = ContextVar("traceparent", default="")
"""The client's header of that name (W3C Trace Context), while its request is handled."""


def new_id() -> str:
    """A new id. A client's own is not used, since it could contain anything, also a secret."""
    return f"req_{secrets.token_hex(12)}"


async def show_request_id(request: web.Request, response: web.StreamResponse) -> None:
    """Puts the id into the response's headers; a signal of the application, called before they are sent."""
    response.headers[HEADER] = request.get(ID) or new_id()


lines = LimitedLog(requests_log)
COMPLETED = web.RequestKey("completed", bool)
"""Set once the line of a request is written (`respond.completed`)."""


def refused(request: web.Request, key: Key | None, error: ClientError) -> None:
    """A request got an error instead. One line a minute for each key and kind; without a key for each kind."""
    if request.get(COMPLETED):
        return  # `respond.completed` has logged it
    level = logging.WARNING if error.status >= 500 else logging.INFO
    who = f"API key {named(key)}" if key is not None else "no API key"
    text = f"{request[ID]} of {who} from {request.remote}: refused with {error.status} {error.code}"
    lines.line(level, (key and key.id, error.status, error.code), text)


def named(key: Key) -> str:
    """An API key by its name and public id."""
    return f"{key.name or '-'} ({key.id})"
