"""`python fake_vllm.py serve FOLDER --uds PATH ...`: a server of vLLM's `/v1/completions` stream, without a model.

It writes each body that it is sent to `$FAKE_BODIES`, and `{"left": TOKENS}` if the client goes after so many tokens. A
completion is the letters after the prompt's last one; a prompt that ends with the token `$FAKE_DYING` ends the process
in the middle of the stream. A `top_k` of 400 or more is the status of an error, as a response, and from 1400 on in the
stream. With `--port` it is a vLLM that runs elsewhere.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from aiohttp import web
from tokenizers import Tokenizer

EOS = 2
LENGTH = 10
QUOTED = "top_k is too large; the prompt was: my secret"
KEY = os.environ["VLLM_API_KEY"]
BODIES = Path(os.environ["FAKE_BODIES"]).open("a")  # noqa: SIM115  until the process ends


def token(body: dict[str, Any], n: int) -> int:
    """The n-th of a completion."""
    if n == LENGTH and not body["ignore_eos"]:
        return EOS
    return int(5 + (body["prompt"][-1] + n) % 26)


async def completions(request: web.Request) -> web.StreamResponse:
    """A stream, or the status that `top_k` asks for."""
    if request.headers.get("Authorization") != f"Bearer {KEY}":
        raise web.HTTPUnauthorized

    body = await request.json()
    BODIES.write(json.dumps(body) + "\n")
    BODIES.flush()
    size = int(os.environ.get("FAKE_VOCABULARY", "320"))
    if max(body["prompt"]) >= size:
        return web.json_response(refusal(400, f"Token id {max(body['prompt'])} is out of vocabulary"), status=400)
    if not body.get("stream"):
        return web.json_response({"choices": [{"text": ""}]})

    asked = max(body["top_k"], 0) % 1000
    if body["top_k"] == asked >= 400:
        shown = {"error": "Unauthorized"} if asked == 401 else refusal(asked, QUOTED)
        return web.json_response(shown, status=asked, headers={"Retry-After": "7"})

    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    sent = [0]
    try:
        await response.prepare(request)
        if asked >= 400:
            await response.write(f"data: {json.dumps(refusal(asked, QUOTED))}\n\n".encode())
        else:
            await write_tokens(response, body, sent)
    except ConnectionError:
        BODIES.write(json.dumps({"left": sum(sent)}) + "\n")
        BODIES.flush()
        raise

    return response


async def write_tokens(response: web.StreamResponse, body: dict[str, Any], sent: list[int]) -> None:
    """Two tokens in an event, as with a draft that is accepted. `sent` gets their number.

    Raises ConnectionError if the client goes away.
    """
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
        sent.append(len(chunk))
        choice: dict[str, Any] = {"index": 0, "text": "", "token_ids": chunk, "finish_reason": reason}
        if "logprobs" in body:
            tops = [{f"token_id:{one}": -0.5, "token_id:3": -1.5} for one in chunk]
            choice["logprobs"] = {"token_logprobs": [-0.5] * len(chunk), "top_logprobs": tops, "tokens": []}
        await response.write(f"data: {json.dumps({'choices': [choice]})}\n\n".encode())
        if body["prompt"][-1] == int(os.environ.get("FAKE_DYING", "-1")):
            os._exit(3)
        await asyncio.sleep(float(os.environ.get("FAKE_STEP_S", "0")))
    await response.write(b"data: [DONE]\n\n")


def refusal(status: int, why: str) -> dict[str, Any]:
    """In vLLM's form."""
    return {"error": {"message": why, "type": "BadRequestError", "param": None, "code": status}}


async def tokenize(request: web.Request) -> web.Response:
    """By the tokenizer of the folder that is served."""
    body = await request.json()
    tokens = Tokenizer.from_file(f"{sys.argv[2]}/tokenizer.json").encode(body["prompt"], add_special_tokens=False).ids
    return web.json_response({"tokens": tokens, "count": len(tokens), "max_model_len": 1024})


async def detokenize(request: web.Request) -> web.Response:
    """The same backwards."""
    tokens = (await request.json())["tokens"]
    text = Tokenizer.from_file(f"{sys.argv[2]}/tokenizer.json").decode(tokens, skip_special_tokens=False)
    return web.json_response({"prompt": text})


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
    routes = [
        web.post("/v1/completions", completions),
        web.post("/tokenize", tokenize),
        web.post("/detokenize", detokenize),
        web.get("/health", health),
        web.get("/v1/models", models),
    ]
    app.add_routes(routes)
    where: dict[str, Any] = {"path": sys.argv[sys.argv.index("--uds") + 1]} if "--uds" in sys.argv else {
        "host": "127.0.0.1", "port": int(sys.argv[sys.argv.index("--port") + 1])
    }  # fmt: skip
    web.run_app(app, **where, print=lambda _: None, handle_signals=True)


if __name__ == "__main__":
    main()
