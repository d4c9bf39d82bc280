"""`python fake_vllm.py serve FOLDER --uds PATH ...`: a server of vLLM's `/v1/completions` stream, without a model.

It writes each body that it is sent to `$FAKE_BODIES`. A completion is the letters after the prompt's last one; a prompt
that ends with the token `$FAKE_DYING` ends the process in the middle of the stream.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from aiohttp import web

EOS, LENGTH = 2, 10
KEY = os.environ["VLLM_API_KEY"]
BODIES = Path(os.environ["FAKE_BODIES"]).open("a")  # noqa: SIM115  until the process ends


def token(body: dict[str, Any], n: int) -> int:
    """The n-th of a completion."""
    return EOS if n == LENGTH and not body["ignore_eos"] else int(5 + (body["prompt"][-1] + n) % 26)


async def completions(request: web.Request) -> web.StreamResponse:
    """Two tokens in an event, as with a draft that is accepted."""
    if request.headers.get("Authorization") != f"Bearer {KEY}":
        raise web.HTTPUnauthorized
    body = await request.json()
    BODIES.write(json.dumps(body) + "\n")
    BODIES.flush()
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    made: list[int] = []
    reason = None
    while reason is None:
        chunk: list[int] = []
        while len(chunk) < 2 and reason is None:
            chunk.append(token(body, len(made) + len(chunk)))
            reason = "stop" if chunk[-1] in body["stop_token_ids"] else None
            if reason is None and len(made) + len(chunk) == body["max_tokens"]:
                reason = "length"
        made += chunk
        choice: dict[str, Any] = {"index": 0, "text": "", "token_ids": chunk, "finish_reason": reason}
        if "logprobs" in body:
            tops = [{f"token_id:{one}": -0.5, "token_id:3": -1.5} for one in chunk]
            choice["logprobs"] = {"token_logprobs": [-0.5] * len(chunk), "top_logprobs": tops, "tokens": []}
        await response.write(f"data: {json.dumps({'choices': [choice]})}\n\n".encode())
        if body["prompt"][-1] == int(os.environ.get("FAKE_DYING", "-1")):
            os._exit(3)
        await asyncio.sleep(float(os.environ.get("FAKE_STEP_S", "0")))
    await response.write(b"data: [DONE]\n\n")
    return response


async def health(request: web.Request) -> web.Response:
    """No key is needed."""
    return web.Response()


async def models(request: web.Request) -> web.Response:
    """The one model."""
    return web.json_response({"data": [{"id": "fake", "max_model_len": 1024}]})


def main() -> None:
    """Serves until it is ended."""
    if "--broken" in sys.argv:
        sys.exit("no such option: --broken")
    app = web.Application()
    routes = [web.post("/v1/completions", completions), web.get("/health", health), web.get("/v1/models", models)]
    app.add_routes(routes)
    web.run_app(app, path=sys.argv[sys.argv.index("--uds") + 1], print=lambda _: None, handle_signals=True)


if __name__ == "__main__":
    main()
