"""The id of one API request: in the response's header, in the log and in the audit log."""

from __future__ import annotations

import secrets

from aiohttp import web

HEADER = "x-request-id"
"""OpenAI's name for it; the official client shows it as `_request_id`."""
ID = web.RequestKey("id", str)
"""Under which the guard leaves the id in the request."""


def new_id() -> str:
    """Made here: an id of the client's choice could be anything, also a secret."""
    return f"req_{secrets.token_hex(12)}"


async def show(request: web.Request, response: web.StreamResponse) -> None:
    """Puts the id into the response's headers; a signal of the application, called before they are sent."""
    response.headers[HEADER] = request.get(ID) or new_id()
