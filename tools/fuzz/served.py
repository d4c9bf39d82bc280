"""Bodies through the whole gateway: HTTP, engine, a hostile worker. No status of 500 and up, no answer that failed.

`python -m tools.fuzz.served COMMAND ...` runs a command beside such a gateway, with its address and an API key in the
place of {url} and {key}; the exit code is the command's.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from cloud_gateway.api import Api, Backend, ServedModel, make_app
from cloud_gateway.api.listener import listen
from cloud_gateway.api.routes import ROUTES, Route
from cloud_gateway.auth import KeyRing
from cloud_gateway.core.requests.request import OPTIONS
from cloud_gateway.engine.loop import Engine
from cloud_gateway.links.paired import PairedWorkers
from cloud_gateway.part import Foundation, LinkIdentity
from cloud_gateway.parts import all_parts
from cloud_gateway.process.config import GatewaySettings, schema
from cloud_gateway.process.loading import engine_settings
from edgespec.core.protocol.signing import SigningKey
from tools.doubles.engines import TableDraft, TableTarget
from tools.doubles.limits import TIMES, api_bounds, request_limits
from tools.fuzz.bodies import Body, body
from tools.fuzz.frames import RandomLink
from tools.fuzz.model import CHARACTERS, PARAMETERS, grammars, table

VOCABULARY = len(CHARACTERS)
TOKENS = 8
"""Of an answer: several rounds."""
AT_ONCE = 4
TIMEOUT_S = 60.0
"""For one answer of a few tokens; a policy that does not come to an end exceeds it."""


async def cases(seed: str, count: int) -> Counter[str]:
    """So many bodies, a few at once. Raises AssertionError naming the body at which something went wrong."""
    rng = random.Random(seed)
    seen = Counter[str]()
    async with serving(rng) as (url, headers), aiohttp.ClientSession(headers=headers) as session:
        for start in range(0, count, AT_ONCE):
            made = [_body(rng) for _ in range(min(AT_ONCE, count - start))]
            seen.update(await asyncio.gather(*(_ask(session, url, *one) for one in made)))

    return seen


def _body(rng: random.Random) -> tuple[Body, str | None, bool]:
    chat = rng.random() < 0.5
    return *body(rng, chat, VOCABULARY, TOKENS), chat


async def _ask(session: aiohttp.ClientSession, url: str, made: Body, wrong: str | None, chat: bool) -> str:
    path = "/v1/chat/completions" if chat else "/v1/completions"
    data = json.dumps(made).encode()
    shown = json.dumps(made)[:2000]
    try:
        async with asyncio.timeout(TIMEOUT_S), session.post(url + path, data=data) as response:
            text = await response.text()
    except TimeoutError:
        raise AssertionError(f"no answer within {TIMEOUT_S:g} s: {shown}") from None
    assert response.status in (200, 400), f"status {response.status}: {text[:500]} for {shown}"
    assert (response.status == 400) or wrong is None, f"{wrong} out of its range was let in: {shown}"
    assert '"server_error"' not in text, f"the answer failed: {text[:500]} for {shown}"
    assert "NaN" not in text and "Infinity" not in text, f"a number that is none for {shown}"
    return str(response.status)


def part_routes(keys: KeyRing, state_dir: Path) -> list[Route]:
    """The routes of all parts under their default settings."""
    link = LinkIdentity("gateway", bytes(32), PairedWorkers(state_dir))
    gateway = Foundation(schema(all_parts())(), keys, SigningKey(bytes(32)), state_dir, link)
    return [route for part in all_parts() for route in part.start(gateway).routes()]


def documented_routes() -> dict[tuple[str, str], Route]:
    """Every route of the gateway's OpenAPI document, by method and path."""
    with tempfile.TemporaryDirectory() as folder:
        routes = (*ROUTES, *part_routes(KeyRing(Path(folder) / "keys"), Path(folder)))
    return {(route.method, route.shown): route for route in routes if route.summary}


@asynccontextmanager
async def serving(rng: random.Random) -> AsyncIterator[tuple[str, dict[str, str]]]:
    """A gateway on a free port of loopback; its address and the headers of a key that may offload."""
    workers = RandomLink(rng, VOCABULARY)
    target = TableTarget(context=128, pass_s=0.0, model=table(VOCABULARY, 0, extreme=True))
    draft = TableDraft(leaves=4, model=table(VOCABULARY, 100, extreme=True))
    engine = workers.engine = Engine(target, draft, engine_settings(GatewaySettings()), workers)
    engine.start()
    api = Api(request_limits(max_tokens_limit=TOKENS, client_options=OPTIONS, parameters=PARAMETERS))
    model = ServedModel("fuzz", created=0, context=target.context, vocab_size=VOCABULARY, fingerprint="f")
    api.serve(Backend(engine, Characters(), model, grammars()))
    with tempfile.TemporaryDirectory() as folder:
        keys = KeyRing(Path(folder) / "keys")
        _, key = keys.create("fuzz", offload=True)
        app = make_app(api, keys, part_routes(keys, Path(folder)))
        listener = await listen(app, "127.0.0.1", 0, "api", api_bounds(), TIMES)
        try:
            yield listener.url, {"Authorization": f"Bearer {key}"}
        finally:
            await api.drain(0)
            await listener.close()
            engine.stop()


class Characters:
    """The API's `Text`: a token is a character, and any other character is a space."""

    def render_chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None
    ) -> list[int]:
        """The contents, one after the other."""
        return self.encode(" ".join(str(message["content"]) for message in messages) + " ")

    def encode(self, text: str) -> list[int]:
        """At least one token."""
        return [max(CHARACTERS.find(character), 1) for character in text or " "]

    def continuation(self, text: str) -> list[int]:
        """The same."""
        return self.encode(text)

    def spell(self, token: int) -> bytes:
        return CHARACTERS[token].encode()

    def detokeniser(self) -> Characters:
        """It has no state."""
        return self

    def feed(self, token: int) -> str:
        return CHARACTERS[token]

    def flush(self) -> str:
        """Nothing is held back."""
        return ""


async def beside(command: Sequence[str]) -> int:
    """Runs a command beside a gateway; returns its exit code."""
    async with serving(random.Random(1)) as (url, headers):
        key = headers["Authorization"].removeprefix("Bearer ")
        words = [word.replace("{url}", url).replace("{key}", key) for word in command]
        return await (await asyncio.create_subprocess_exec(*words)).wait()


if __name__ == "__main__":
    sys.exit(asyncio.run(beside(sys.argv[1:])))
