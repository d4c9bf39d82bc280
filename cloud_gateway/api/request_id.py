"""The id of one API request: in the response's header, in the log and in the audit log."""

from __future__ import annotations

import secrets
from contextvars import ContextVar

from aiohttp import web

HEADER = "x-request-id"
"""OpenAI's name for it; the official client shows it as `_request_id`."""
ID = web.RequestKey("id", str)
"""The guard (routes.py) stores the id in the request under it."""

TRACE_PARENT: ContextVar[str] = ContextVar("traceparent", default="")
"""The client's header of that name (W3C Trace Context), while its request is handled."""


def new_id() -> str:
    """A new id. A client's own is not used, since it could contain anything, also a secret."""
    return f"req_{secrets.token_hex(12)}"


async def show(request: web.Request, response: web.StreamResponse) -> None:
    """Puts the id into the response's headers; a signal of the application, called before they are sent."""
    response.headers[HEADER] = request.get(ID) or new_id()
