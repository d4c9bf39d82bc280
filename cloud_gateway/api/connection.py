"""One HTTP connection of a listener, with refusals of our own for what is no HTTP.

aiohttp quotes what it cannot parse, to the client and to its log: a header with an API key, a body with a prompt.
"""

from __future__ import annotations

import logging
import time

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from cloud_gateway.api.errors import error_response, internal
from cloud_gateway.api.request_id import HEADER, new_id
from edgespec.core.errors import ClientError
from edgespec.shared.throttle import Throttle

log = logging.getLogger("cloud_gateway.api")

_refused = Throttle()


class Connection(RequestHandler):
    """aiohttp's protocol of one connection."""

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The response to a request that is none, or that failed outside the application; the connection ends."""
        if request.writer.output_size > 0:
            raise ConnectionError  # a response has begun: aiohttp closes the connection
        if status < 500:
            _note(request, status)
            error = ClientError("The request is not valid HTTP/1.1.", status=status, code="malformed_http")
        else:
            error = internal(exc or "a request outlived its time")
        response = error_response(error)
        response.headers[HEADER] = new_id()
        response.force_close()
        return response


class Server(web.Server):
    """Makes a `Connection` for each connection that is accepted."""

    def __call__(self) -> Connection:
        return Connection(self, loop=self._loop, **self._kwargs)


class Runner(web.AppRunner):
    """As aiohttp's, over `Connection`s."""

    async def _make_server(self) -> Server:
        made = await super()._make_server()
        return Server(
            made.request_handler,
            request_factory=made.request_factory,
            handler_cancellation=made.handler_cancellation,
            **made._kwargs,
        )


def _note(request: web.BaseRequest, status: int) -> None:
    """Anybody can provoke this line, so at most one a minute for each status."""
    more = _refused.admit(status, time.monotonic())
    if more is not None:
        others = f" (and {more} more like it)" if more else ""
        log.info("refused what is not HTTP from %s with %d%s", request.remote, status, others)
