"""Floods by a client with an API key of its own. Where they may hold slots, an honest neighbour is the control."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from tools.attacks.aim import Aim, Pace, at_once, connected, exchange, post
from tools.attacks.floods import Flood
from tools.attacks.prompts import prompt

NEIGHBOUR_WORDS, NEIGHBOUR_TOKENS = 80, 48
CANCELS_PER_S = 50.0
BIG_TEXT_BYTES = 4_000_000
MANY_PROMPTS = 400_000
LEVELS = 18
"""Of the schema: 3.9 s of exponential analysis at two references a level."""


def chat(text: str, **more: Any) -> dict[str, Any]:
    """A chat body of one message."""
    return {"messages": [{"role": "user", "content": text}], "temperature": 0, **more}


async def neighbour(aim: Aim, count: Counter[str]) -> None:
    """An honest client: ordinary requests back to back, as many at once as one key may run."""
    numbers, rng = itertools.count(), random.Random(5)

    async def one() -> None:
        text = prompt(rng, next(numbers), NEIGHBOUR_WORDS)
        await exchange(aim, post(aim, "chat/completions", chat(text, max_tokens=NEIGHBOUR_TOKENS)), count)

    await at_once(aim.streams, one)


async def cancels(aim: Aim, count: Counter[str]) -> None:
    pace, rng = Pace(CANCELS_PER_S), random.Random(6)

    async def one() -> None:
        await pace.turn()
        body = chat(prompt(rng, count["requests"], 40), n=4, stream=True, max_tokens=256)
        async with connected(aim.api_port) as (_, writer):
            writer.write(post(aim, "chat/completions", body))
            await writer.drain()
            count["requests"] += 1
            await asyncio.sleep(rng.uniform(0, 0.2))

    await at_once(8, one)


async def big_prompts(aim: Aim, count: Counter[str]) -> None:
    data = post(aim, "chat/completions", chat("a word and " * (BIG_TEXT_BYTES // 11)))
    pace = Pace(2)

    async def one() -> None:
        await pace.turn()
        await exchange(aim, data, count)

    await at_once(4, one)


async def many_prompts(aim: Aim, count: Counter[str]) -> None:
    data = post(aim, "completions", {"prompt": [[1]] * MANY_PROMPTS})
    texts = post(aim, "completions", {"prompt": ["a"] * MANY_PROMPTS})
    pace = Pace(1)

    async def one() -> None:
        await pace.turn()
        await exchange(aim, data if sum(count.values()) % 2 else texts, count)

    await at_once(2, one)


async def many_choices(aim: Aim, count: Counter[str]) -> None:
    rng = random.Random(7)

    async def one() -> None:
        body = chat(prompt(rng, sum(count.values()), 60), n=8, max_tokens=2048)
        await exchange(aim, post(aim, "chat/completions", body), count)
        await asyncio.sleep(0.2)

    await at_once(8, one)


def bomb(levels: int) -> dict[str, Any]:
    """A schema of so many levels, each of which requires two properties of the next one's kind."""
    definitions: dict[str, Any] = {
        f"l{i}": {
            "type": "object",
            "properties": {name: {"$ref": f"#/$defs/l{i + 1}"} for name in "ab"},
            "required": ["a", "b"],
        }
        for i in range(levels)
    }
    definitions[f"l{levels}"] = {"type": "null"}
    return {"$ref": "#/$defs/l0", "$defs": definitions}


def schemas(levels: int) -> Callable[[Aim, Counter[str]], Awaitable[None]]:
    """One request of one token a second, with a schema of so many levels."""
    form = {"type": "json_schema", "json_schema": {"name": "bomb", "schema": bomb(levels)}}

    async def flood(aim: Aim, count: Counter[str]) -> None:
        pace = Pace(1)

        async def one() -> None:
            await pace.turn()
            await exchange(aim, post(aim, "chat/completions", chat("Hi", max_tokens=1, response_format=form)), count)

        await at_once(4, one)

    return flood


async def penalties(aim: Aim, count: Counter[str]) -> None:
    pace = Pace(2)
    extremes = (1e-310, 1e-307, 5e-324, 1e308)

    async def one() -> None:
        await pace.turn()
        body = chat("Hi", max_tokens=2, repetition_penalty=extremes[sum(count.values()) % len(extremes)])
        response = await exchange(aim, post(aim, "chat/completions", body), count)
        if b"\r\n\r\n{" in response:
            with_error = json.loads(response[response.index(b"\r\n\r\n{") :]).get("error") or {}
            count[f"code {with_error.get('code')}"] += 1

    await at_once(1, one)


FLOODS = {
    "cancels": Flood("50 requests of n = 4 a second, given up within 0.2 s", "key", cancels, neighbour),
    "many-choices": Flood("8 requests of n = 8 and 2048 tokens (B9)", "key", many_choices, neighbour),
    "big-prompts": Flood("prompts of 4 MB (B9)", "key", big_prompts),
    "many-prompts": Flood("400,000 prompts in one request (B9)", "key", many_prompts),
    "schemas": Flood(
        "a schema that doubles the analysis at each of 18 levels (A4)", "key", schemas(LEVELS), schemas(1)
    ),
    "penalties": Flood("repetition penalties of 1e-310 and the like (A2, A3)", "key", penalties),
}
