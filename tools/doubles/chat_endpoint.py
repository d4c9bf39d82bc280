"""A chat endpoint with a made-up queue: a real server on this machine, whose waits and failures are given."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass(frozen=True, slots=True)
class Reply:
    """What an endpoint does with a request."""

    wait_s: float = 0.0
    """Before the first token."""
    status: int = 200
    retry_after: str | None = None
    tokens: int = 8
    step_s: float = 0.004
    break_after: int | None = None
    """Tokens after which the connection is cut."""
    raw: bytes | None = None
    """Sent instead of tokens."""
    content_type: str = "text/event-stream"


Behaviour = Callable[[], Reply]


@dataclass
class ChatEndpoint:
    """An OpenAI-compatible server that streams meaningless words; what it really did is kept for comparison."""

    behaviour: Behaviour
    port: int = 0
    waits_s: list[float] = field(default_factory=list)
    """From a request having arrived to its first token having been written, by this server's own clock."""
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    @property
    def base_url(self) -> str:
        """What a survey's configuration names."""
        return f"http://127.0.0.1:{self.port}/v1"

    async def answer(self, request: web.Request) -> web.StreamResponse:
        arrived = time.perf_counter()
        self.requests.append(await request.json())
        self.headers.append(dict(request.headers))
        reply = self.behaviour()
        if reply.status != 200:
            headers = {"Retry-After": reply.retry_after} if reply.retry_after is not None else {}
            return web.json_response({"error": {"message": "no"}}, status=reply.status, headers=headers)

        response = web.StreamResponse(headers={"Content-Type": reply.content_type})
        await response.prepare(request)
        await response.write(_event({"choices": [{"delta": {"role": "assistant", "content": ""}}]}))
        await asyncio.sleep(reply.wait_s)
        if reply.raw is not None:
            await response.write(reply.raw)
            return response

        for token in range(reply.tokens):
            if token == reply.break_after:
                assert request.transport is not None
                request.transport.abort()
                return response
            await response.write(_event({"choices": [{"delta": {"content": f"{token} "}}]}))
            if token == 0:
                self.waits_s.append(time.perf_counter() - arrived)
            await asyncio.sleep(reply.step_s)
        await response.write(_event({"choices": [{"delta": {}, "finish_reason": "stop"}]}))
        await response.write(_event({"choices": [], "usage": {"completion_tokens": reply.tokens}}))
        await response.write(b"data: [DONE]\n\n")
        return response


@contextlib.asynccontextmanager
async def serving(*endpoints: ChatEndpoint) -> AsyncIterator[None]:
    """Serves each endpoint on a free port of loopback."""
    runners = []
    try:
        for endpoint in endpoints:
            app = web.Application()
            app.router.add_post("/v1/chat/completions", endpoint.answer)
            runner = web.AppRunner(app, access_log=None)
            runners.append(runner)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", endpoint.port).start()
            endpoint.port = runner.addresses[0][1]
        yield
    finally:
        for runner in runners:
            await runner.cleanup()


def _event(item: Any) -> bytes:
    return b"data: " + json.dumps(item).encode() + b"\n\n"
