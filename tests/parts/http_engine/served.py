"""A server of the OpenAI kind over a model without weights, which misbehaves if it is asked to."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tools.doubles.model import EOS, HASH, Model

NAME = "table"
CONTEXT = 512
LONG = 7


@dataclass
class Manners:
    """Its behaviour, which may be changed while it runs."""

    model: Model = HASH
    name: str = NAME
    token_s: float = 0.0
    call_s: float = 0.0
    row_s: float = 0.0
    """Time of each further prompt of a call."""
    fresh_s: float = 0.0
    """Time of a call whose first prompt it has not seen."""
    key: str = ""
    long_s: float = 0.0
    """Time until the first token of a prompt that begins with LONG."""
    shift: int = 0
    """Added to the numbers of texts' tokens: another tokenizer."""
    ids: bool = True
    """Whether completions have token ids."""
    tokenizes: bool = True
    """Whether it has `/tokenize`."""
    lists: bool = True
    """Whether lists of prompts are taken."""
    shows_end: bool = True
    """Whether the token that ends a text is in the response."""
    cut_after: int | None = None
    """Tokens after which each stream's connection is cut."""
    streams_fail: list[int] = field(default_factory=list)
    """Statuses of the next streams; 0 cuts the connection, 1 serves."""
    call_status: int = 200
    garbled: bool = False
    """Events are no JSON."""


class TableServer:
    """Records what it was sent: `streams` has the prompts of streams, `calls` the lists of prompts."""

    def __init__(self, manners: Manners) -> None:
        self.manners = manners
        self.streams: list[list[int]] = []
        self.calls: list[list[list[int]]] = []
        self.bodies: list[dict[str, Any]] = []
        self.open_streams = 0
        self.listings = 0
        """How often it was asked for its models."""
        self.known: set[tuple[int, ...]] = set()

    def app(self) -> web.Application:
        app = web.Application(client_max_size=1 << 26)
        app.add_routes(
            [
                web.get("/v1/models", self.models),
                web.post("/v1/completions", self.completions),
                web.post("/tokenize", self.tokenize),
            ]
        )
        return app

    async def models(self, request: web.Request) -> web.Response:
        self.listings += 1
        if self.manners.key and request.headers.get("Authorization") != f"Bearer {self.manners.key}":
            return failure(401, "no")
        return web.json_response({"data": [{"id": self.manners.name, "max_model_len": CONTEXT}]})

    async def tokenize(self, request: web.Request) -> web.Response:
        if not self.manners.tokenizes:
            return failure(404, "not found")
        body = await request.json()
        return web.json_response({"tokens": [byte + self.manners.shift for byte in body["prompt"].encode()]})

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        if body["model"] != self.manners.name:
            return failure(404, "no such model")
        if isinstance(body["prompt"][0], list):
            if len(body["prompt"]) > 1 and not self.manners.lists:
                return failure(400, "one prompt")
            return await self._call(body)
        return await self._stream(request, body)

    async def _call(self, body: dict[str, Any]) -> web.Response:
        assert body["max_tokens"] == 1 and "stream" not in body
        prompts = body["prompt"]
        self.calls.append(prompts)
        fresh = tuple(prompts[0]) not in self.known
        self.known.update(map(tuple, prompts))
        seconds = self.manners.call_s + self.manners.row_s * (len(prompts) - 1) + self.manners.fresh_s * fresh
        await asyncio.sleep(seconds)
        if self.manners.call_status != 200:
            return failure(self.manners.call_status, "not now")

        choices = [self._choice(index, prompt, 1) for index, prompt in enumerate(prompts)]
        return web.json_response({"choices": choices[::-1]})

    def _choice(self, index: int, tokens: Sequence[int], left: int) -> dict[str, Any]:
        token = self.manners.model.argmax(tokens)
        choice: dict[str, Any] = {"index": index, "text": "", "token_ids": [token], "finish_reason": None}
        if token == EOS and not self.bodies[-1]["ignore_eos"]:
            choice["finish_reason"] = "stop"
            if not self.manners.shows_end:
                choice["token_ids"] = []
        elif left == 1:
            choice["finish_reason"] = "length"
        if not self.manners.ids:
            del choice["token_ids"]
        return choice

    async def _stream(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        tokens = list(body["prompt"])
        self.streams.append(list(tokens))
        status = 1
        if self.manners.streams_fail:
            status = self.manners.streams_fail.pop(0)
        if status > 1:
            return failure(status, "not now")

        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        self.open_streams += 1
        try:
            await self._events(request, response, body, cut=status == 0)
        finally:
            self.open_streams -= 1
        return response

    async def _events(
        self, request: web.Request, response: web.StreamResponse, body: dict[str, Any], *, cut: bool
    ) -> None:
        tokens = list(body["prompt"])
        if tokens[0] == LONG:
            await asyncio.sleep(self.manners.long_s)
        for made in range(1, body["max_tokens"] + 1):
            if cut or (self.manners.cut_after is not None and made > self.manners.cut_after):
                assert request.transport is not None
                request.transport.abort()
                return
            await asyncio.sleep(self.manners.token_s)
            if self.manners.garbled:
                await response.write(b"data: {not json\n\n")
                return
            choice = self._choice(0, tokens, body["max_tokens"] + 1 - made)
            tokens.append(self.manners.model.argmax(tokens))
            await response.write(f"data: {json.dumps({'choices': [choice]})}\n\n".encode())
            if choice["finish_reason"]:
                break
        await response.write(b"data: [DONE]\n\n")


def failure(status: int, why: str) -> web.Response:
    headers = {}
    if status == 429:
        headers["Retry-After"] = "7"
    return web.json_response({"error": {"message": why, "code": status}}, status=status, headers=headers)


@dataclass
class Running:
    """A server, its URL, and its thread's event loop."""

    server: TableServer
    port: int = 0
    stop: Callable[[], None] = lambda: None
    """Ends it before the end of `up`."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @contextlib.contextmanager
    def up(self) -> Iterator[None]:
        """Runs it in a thread meanwhile, at the port that it had before."""
        loop = asyncio.new_event_loop()
        runner = web.AppRunner(self.server.app(), handler_cancellation=True, shutdown_timeout=0)

        async def start() -> int:
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", self.port, reuse_address=True)
            await site.start()
            return int(runner.addresses[0][1])

        thread = threading.Thread(target=loop.run_forever, daemon=True)
        thread.start()
        self.port = asyncio.run_coroutine_threadsafe(start(), loop).result(10)
        ending = contextlib.ExitStack()

        def stop() -> None:
            asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
            loop.call_soon_threadsafe(loop.stop)
            thread.join(10)

        ending.callback(stop)
        self.stop = ending.close
        with ending:
            yield


@contextlib.contextmanager
def serving(manners: Manners | None = None) -> Iterator[Running]:
    """A server that runs meanwhile."""
    running = Running(TableServer(manners or Manners()))
    with running.up():
        yield running
