"""Requests made from the gateway's OpenAPI document, sent to a whole gateway.

A request is one of the document's operations with a body of its schema, or such a body with one place made wrong, or
any bytes. No status is 500 or more, and every response, each event of a stream included, is decoded by its type in the
document. The gateway has its real engine, over a table in the place of a target, and a hostile worker.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from typing import Any

import aiohttp
import msgspec

from cloud_gateway.api.errors import Error
from cloud_gateway.api.routes import Route
from tools.fuzz.decoder import WRONG, spoiled
from tools.fuzz.served import AT_ONCE, TIMEOUT_S, documented_routes, serving

Json = dict[str, Any]
TEXTS = ("", "a", "fuzz", "user", "assistant", "text", "function", "stop \u2603", "\u0000", "x" * 70, "\U0001f600")
WRONG_SHARE = 0.25
BYTES_SHARE = 0.03
USUAL_SHARE = 0.9
POST_SHARE = 0.9
SERVED = documented_routes()


class Drawing:
    """Values of the document's schemas."""

    def __init__(self, document: Json, rng: random.Random) -> None:
        self._schemas = document["components"]["schemas"]
        self._rng = rng

    def value(self, schema: Json, depth: int = 0) -> Any:
        """Any value that the schema allows; optional fields are rarer further down."""
        rng = self._rng
        if "$ref" in schema:
            return self.value(self._schemas[schema["$ref"].rpartition("/")[2]], depth)
        if "anyOf" in schema:
            return self.value(rng.choice(schema["anyOf"]), depth)
        if "enum" in schema:
            return rng.choice(schema["enum"])

        match schema.get("type"):
            case "object":
                return self._object(schema, depth)
            case "array":
                most = min(schema.get("maxItems", 3), schema.get("minItems", 0) + 3)
                count = rng.randint(schema.get("minItems", 0), most)
                return [self.value(schema.get("items", {}), depth + 1) for _ in range(count)]
            case "string":
                if "pattern" in schema:
                    return "f1"
                return rng.choice(TEXTS[1:] if schema.get("minLength") else TEXTS)
            case "integer" | "number" as kind:
                return self._number(schema, kind == "integer")
            case "boolean":
                return rng.random() < 0.5
            case "null":
                return None
        return rng.choice(WRONG)

    def _object(self, schema: Json, depth: int) -> Json:
        rng = self._rng
        required = schema.get("required", ())
        share = 0.25 / (1 + depth)
        made = {
            name: self.value(one, depth + 1)
            for name, one in schema.get("properties", {}).items()
            if name in required or rng.random() < share
        }
        others = schema.get("additionalProperties")
        if isinstance(others, dict) and depth < 8:
            made |= {str(rng.randrange(300)): self.value(others, depth + 1) for _ in range(rng.randrange(3))}
        return made

    def _number(self, schema: Json, whole: bool) -> float:
        low = schema.get("minimum", -(2.0**31))
        high = schema.get("maximum", 2.0**31)
        drawn = self._rng.choice((low, high, self._rng.uniform(low, high)))
        if whole:
            return int(min(max(int(drawn), int(low)), int(high)))
        return drawn


async def cases(seed: str, count: int) -> Counter[str]:
    """So many requests, a few at once. Raises AssertionError naming the first at which something went wrong."""
    # The gateway draws at times that vary; with numbers of its own the requests are the same in every run.
    rng = random.Random(seed)
    gateways = random.Random(f"{seed} gateway")
    seen = Counter[str]()
    async with serving(gateways) as (url, headers), aiohttp.ClientSession(headers=headers) as session:
        async with session.get(url + "/openapi.json") as response:
            drawing = Drawing(await response.json(), rng)
            document = json.loads(await response.read())
        for start in range(0, count, AT_ONCE):
            drawn = [_request(document, drawing, rng) for _ in range(min(AT_ONCE, count - start))]
            seen.update(await asyncio.gather(*(_ask(session, url, *one) for one in drawn)))

    return seen


def _request(document: Json, drawing: Drawing, rng: random.Random) -> tuple[str, str, bytes]:
    posts = [key for key, one in SERVED.items() if one.body]
    method, path = rng.choice(posts if rng.random() < POST_SHARE else list(SERVED))
    described = document["paths"][path][method.lower()]
    if "requestBody" not in described:
        return method, path, b""

    body = drawing.value(described["requestBody"]["content"]["application/json"]["schema"])
    if rng.random() < USUAL_SHARE:
        _make_usual(body, rng)
    if rng.random() < WRONG_SHARE:
        body = spoiled(body, rng, (*WRONG, "\ud800"))
    data = json.dumps(body).encode()
    return method, path, rng.randbytes(rng.randrange(1, 60)) if rng.random() < BYTES_SHARE else data


def _make_usual(body: Json, rng: random.Random) -> None:
    """Values without which nearly every body is refused, for reasons that the schema cannot state."""
    body |= {"model": "fuzz", "max_tokens": rng.randint(1, 8), "n": rng.choice((1, 2))}
    for name in ("max_completion_tokens", "tools", "tool_choice", "top_logprobs", "stream_options"):
        if rng.random() < 0.9:
            body.pop(name, None)
    if body.get("messages"):
        roles = ("user", "system", "assistant")
        body["messages"] = [{"role": rng.choice(roles), "content": rng.choice(TEXTS)} for _ in body["messages"]]


async def _ask(session: aiohttp.ClientSession, url: str, method: str, path: str, data: bytes) -> str:
    shown = f"{method} {path} {data[:2000]!r}"
    where = url + path.replace("{model}", "fuzz")
    try:
        async with asyncio.timeout(TIMEOUT_S), session.request(method, where, data=data) as response:
            body = await response.read()
            kind = response.content_type
    except TimeoutError:
        raise AssertionError(f"no response within {TIMEOUT_S:g} s: {shown}") from None
    assert response.status < 500, f"status {response.status}: {body[:500]!r} for {shown}"
    try:
        _check(SERVED[method, path], response.status, kind, body)
    except msgspec.DecodeError as error:
        raise AssertionError(f"{error}: {body[:1000]!r} for {shown}") from None

    return f"{path} {response.status}"


def _check(route: Route, status: int, kind: str, body: bytes) -> None:
    """Raises msgspec.DecodeError where the response is not what the document says."""
    if status != 200:
        msgspec.json.decode(body, type=Error)
        return
    if kind != "text/event-stream":
        msgspec.json.decode(body, type=route.response)
        return

    events = [one.partition(b"data: ")[2] for one in body.split(b"\n\n") if b"data: " in one]
    assert events.pop() == b"[DONE]" and route.event is not None
    for event in events:
        msgspec.json.decode(event, type=route.event)
