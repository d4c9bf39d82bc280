"""Errors in OpenAI's shape, so that its clients raise their own classes of errors (docs/api.md)."""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Mapping
from typing import Literal

import msgspec
from aiohttp import web
from msgspec import Struct

from edgespec.core.errors import ClientError, EdgespecError
from edgespec.shared.log_text import places

log = logging.getLogger(__name__)

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
    413: ("request_too_large", "The request body is larger than the 4 MiB that this gateway takes; send less at once."),
    417: ("expectation_failed", "The header 'Expect' asks for something else than '100-continue'."),
}
"""Code and sentence for requests that the HTTP library itself refuses."""


def unavailable(why: str, *, code: str) -> ClientError:
    """503: the gateway cannot serve any request at present."""
    return ClientError(why, status=503, code=code, retry_after_s=RETRY_S)


def internal(error: BaseException | str) -> ClientError:
    """500 for a failure of the gateway: the response has a reference, under which the log has the failure."""
    reference = secrets.token_hex(4)
    if isinstance(error, EdgespecError | str):
        log.error("request failed (reference %s): %s", reference, error)
    else:
        log.error("request failed (reference %s): %s", reference, places(error))
    sentence = f"The gateway failed while serving this request; its log says more under the reference {reference}."
    return ClientError(sentence, status=500, code="internal_error")


def as_client_error(error: Exception, request: web.Request) -> ClientError:
    if isinstance(error, ClientError):
        return error
    if isinstance(error, web.RequestPayloadError):
        return ClientError("The request body ended early, or its chunks are not valid.", code="malformed_http")
    if isinstance(error, web.HTTPException):
        code, sentence = HTTP_ERRORS.get(error.status, ("bad_request", error.reason))
        return ClientError(sentence.format(method=request.method, path=request.path), status=error.status, code=code)
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
