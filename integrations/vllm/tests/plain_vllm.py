"""A vLLM without our scheduler, as far as `/v1/completions` goes, and a worker that drafts for it.

The next token follows from the last two; the text ends at a length. Streams and lists of prompts take stated times.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from edgespec_vllm.link.streams import Streams

from cloud_gateway.core.requests.events import FrameArrived
from cloud_gateway.engine.exchange import WorkerGone
from edgespec.core.protocol.messages import ROOT, Close, Commit, Open
from integrations.vllm.tests.links import Workers, tree

VOCAB = 40
EOS = 2


def chosen(tokens: Sequence[int], ends_at: int = 1 << 30) -> int:
    """The model's token after these."""
    if len(tokens) >= ends_at:
        return EOS
    return 5 + (31 * tokens[-1] + 17 * tokens[-2] + len(tokens)) % (VOCAB - 5)


class PlainVllm:
    """The server. `calls` are the numbers of prompts of lists, `streams` the lengths of prompts of streams."""

    def __init__(self, token_s: float = 0.004, call_s: float = 0.006, ends_at: int = 1 << 30) -> None:
        self.token_s = token_s
        self.call_s = call_s
        self.ends_at = ends_at
        self.call_status = 200
        self.busy_from = 0
        """The number of the first of two streams that are refused with 429; 0: none is."""
        self.cut_after: int | None = None
        """Tokens after which a stream's connection is cut."""
        self.calls: list[int] = []
        self.streams: list[int] = []
        self.salts: set[str] = set()

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.salts.add(body["cache_salt"])
        if isinstance(body["prompt"][0], list):
            return await self._call(body)
        return await self._stream(request, body)

    async def _call(self, body: dict[str, Any]) -> web.Response:
        assert body["max_tokens"] == 1 and not body["stream"]
        self.calls.append(len(body["prompt"]))
        await asyncio.sleep(self.call_s)
        if self.call_status != 200:
            return web.json_response({"error": {"message": "no", "code": self.call_status}}, status=self.call_status)

        draws = [chosen(prompt, self.ends_at) for prompt in body["prompt"]]
        choices = [
            {"index": index, "text": "", "token_ids": [draw], "finish_reason": "stop" if draw == EOS else "length"}
            for index, draw in enumerate(draws)
        ]
        return web.json_response({"choices": choices[::-1]})

    async def _stream(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        tokens = list(body["prompt"])
        self.streams.append(len(tokens))
        if self.busy_from and self.busy_from <= len(self.streams) < self.busy_from + 2:
            return web.json_response({"error": {"message": "busy", "code": 429}}, status=429)

        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        reason = None
        if self.cut_after == 0:
            assert request.transport is not None
            request.transport.close()
            return response

        for made in range(1, body["max_tokens"] + 1):
            await asyncio.sleep(self.token_s)
            tokens.append(chosen(tokens, self.ends_at))
            if tokens[-1] in body["stop_token_ids"]:
                reason = "stop"
            elif made == body["max_tokens"]:
                reason = "length"
            choice = {"index": 0, "token_ids": tokens[-1:], "finish_reason": reason}
            await response.write(f"data: {json.dumps({'choices': [choice]})}\n\n".encode())
            if made == self.cut_after:
                assert request.transport is not None
                request.transport.close()
                return response
            if reason is not None:
                break
        await response.write(b"data: [DONE]\n\n")
        return response

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Its URL."""

        async def health(_: web.Request) -> web.Response:
            return web.Response()

        app = web.Application()
        app.add_routes([web.post("/v1/completions", self.completions), web.get("/health", health)])
        runner = web.AppRunner(app, handler_cancellation=True)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            port = runner.addresses[0][1]
            yield f"http://127.0.0.1:{port}"
        finally:
            await runner.cleanup()


class DraftingWorkers(Workers):
    """The links of one worker, which drafts a chain after each commit. `streams` has to be set."""

    streams: Streams

    def __init__(self, draft: Callable[[list[int]], int], depth: int = 8, delay_s: float = 0.002) -> None:
        super().__init__()
        self.add("w", step_s=0.0005)
        self.silent = False
        self.sends = 0
        """Frames that it sent."""
        self._draft = draft
        self._depth = depth
        self._delay_s = delay_s
        self._prefixes: dict[tuple[int, int], list[int]] = {}
        self._next_ids: dict[tuple[int, int], int] = {}

    def send(self, worker: str, bodies: Sequence[Any]) -> None:
        super().send(worker, bodies)
        for body in bodies:
            key = (body.request, body.epoch)
            match body:
                case Open():
                    self._prefixes[key] = list(body.tokens)
                    self._next_ids[key] = 1
                case Commit():
                    self._prefixes[key][body.prefix_len :] = body.tokens
                case Close():
                    self._prefixes.pop(key, None)
                    continue
            asyncio.get_running_loop().call_later(self._delay_s, self._send_chain, worker, *key)

    def vanish(self) -> None:
        """The link ends."""
        del self.views["w"]
        self.silent = True
        self.streams.post(WorkerGone("w"))

    def _send_chain(self, worker: str, request: int, epoch: int) -> None:
        prefix = self._prefixes.get((request, epoch))
        if prefix is None or self.silent:
            return

        path = list(prefix)
        for _ in range(self._depth):
            path.append(self._draft(path))
        first = self._next_ids[request, epoch]
        self._next_ids[request, epoch] = first + self._depth
        parents = [ROOT, *range(first, first + self._depth - 1)]
        self.sends += 1
        frame = tree(request, epoch, prefix, first, parents, path[len(prefix) :])
        self.streams.post(FrameArrived(worker, frame))
