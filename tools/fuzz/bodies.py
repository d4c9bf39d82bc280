"""Bodies of chat and text completions over the whole parameter space, as a client would send them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

from cloud_gateway.api.schema import RANGES
from edgespec.core.protocol.ranges import Range
from tools.fuzz.model import CHOICES, METHODS

SUBNORMAL = (5e-324, 1e-310, 2.2250738585072014e-308)
EDGES = (0.0, -0.0, *SUBNORMAL, 1e-300, 1e-38, 1e-5, 0.009999, 0.01, 0.5, 1.0, 2.0, 10.0)
"""Greedy begins below 1e-5; the smallest float32 is near 1e-38; the others are bounds and ordinary values."""


def inside(rng: random.Random, bounds: Range, whole: bool = False) -> float:
    """A number of the range: a bound, its neighbour, an edge of the arithmetic, or any."""
    if whole:
        low = int(bounds.low)
        high = int(bounds.high)
        any_ = rng.choice((low, low + 1, 0, 1, 2, high - 1, high, rng.randint(low, high), rng.randint(low, low + 50)))
        if any_ in bounds:
            return any_
        return high

    kind = rng.random()
    if kind < 0.4:
        value = rng.uniform(bounds.low, bounds.high)
    elif kind < 0.7:
        value = rng.choice(EDGES) * rng.choice((1, -1))
    else:
        value = rng.choice((bounds.low, bounds.high))
        value = math.nextafter(value, rng.choice((-math.inf, value, math.inf)))
    if value in bounds:
        return value

    return bounds.high


def outside(rng: random.Random, bounds: Range, whole: bool = False) -> float:
    """A number that the range refuses, as near to it as there is or far away."""
    if whole:
        return rng.choice((int(bounds.low) - 1, int(bounds.high) + 1, 2**70, -(2**70)))
    below = bounds.low if bounds.above else math.nextafter(bounds.low, -math.inf)
    return rng.choice((below, math.nextafter(bounds.high, math.inf), -1e308, 1e308, 1e18))


Body = dict[str, Any]

NUMBERS = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
WHOLE = ("top_k", "seed")
WRONG_SHARE = 0.05
"""Bodies with one value out of its range, which must be refused by name."""
SCHEMAS: tuple[Body, ...] = (
    {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False},
    {"enum": ["yes", "no", 5, None]},
    {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
)
"""Few, since each is compiled once; the grammar itself has its own tests."""


def body(rng: random.Random, chat: bool, vocab_size: int, most_tokens: int) -> tuple[Body, str | None]:
    """A body, and the parameter that is out of its range, if any. At most `most_tokens` of each answer."""
    made: Body = {"model": "fuzz", "max_tokens": rng.randint(1, most_tokens)}
    made |= _chat(rng) if chat else _text(rng, vocab_size)
    for name in (*NUMBERS, *WHOLE):
        if rng.random() < 0.4:
            made[name] = inside(rng, RANGES[name], name in WHOLE)
    _maybe(rng, made, "logit_bias", lambda: _biases(rng, vocab_size))
    _maybe(rng, made, "n", lambda: rng.choice((1, 1, 2, 3)))
    _maybe(rng, made, "stop", lambda: rng.choice(("a", ["b", "cc"], "\u2603", ["x" * 500])))
    _maybe(rng, made, "stream", lambda: rng.random() < 0.5)
    _maybe(rng, made, "edgespec", lambda: _extension(rng))
    if rng.random() >= WRONG_SHARE:
        return made, None

    wrong = rng.choice((*NUMBERS, *WHOLE, "logit_bias"))
    value = outside(rng, RANGES[wrong], wrong in WHOLE)
    made[wrong] = {"1": value} if wrong == "logit_bias" else value
    return made, wrong


def _maybe(rng: random.Random, made: Body, name: str, value: Callable[[], object], share: float = 0.25) -> None:
    if rng.random() < share:
        made[name] = value()


def _chat(rng: random.Random) -> Body:
    made: Body = {"messages": [{"role": "user", "content": rng.choice(("hi", "", "a\u0301\u2603", "x" * 40))}]}
    if rng.random() < 0.2:
        made["logprobs"] = True
        _maybe(rng, made, "top_logprobs", lambda: rng.randint(0, 20), 0.7)
    elif rng.random() < 0.05:
        schema = {"name": "s", "schema": rng.choice(SCHEMAS)}
        made["response_format"] = {"type": "json_schema", "json_schema": schema}
    return made


def _text(rng: random.Random, vocab_size: int) -> Body:
    tokens = [rng.choice((0, vocab_size - 1, rng.randrange(vocab_size))) for _ in range(rng.randint(1, 12))]
    made: Body = {"prompt": rng.choice(("once upon", tokens, [tokens, tokens[:1]]))}
    _maybe(rng, made, "logprobs", lambda: rng.randint(0, 5))
    return made


def _biases(rng: random.Random, vocab_size: int) -> dict[str, float]:
    bounds = RANGES["logit_bias"]
    if rng.random() < 0.1:  # every token of a small vocabulary is banned, or forced
        return dict.fromkeys(map(str, range(min(vocab_size, 1024))), rng.choice((bounds.low, bounds.high)))
    return {str(rng.randrange(vocab_size)): inside(rng, bounds) for _ in range(rng.choice((1, 2, 8)))}


def _extension(rng: random.Random) -> Body:
    made: Body = {}
    _maybe(rng, made, "policy", lambda: rng.choice(list(CHOICES.policies)), 0.5)
    _maybe(rng, made, "k", lambda: int(inside(rng, RANGES["edgespec.k"], whole=True)), 0.5)
    _maybe(rng, made, "phi", lambda: inside(rng, RANGES["edgespec.phi"]), 0.5)
    _maybe(rng, made, "prefer", lambda: rng.choice(("latency", "balanced", "offload")), 0.5)
    _maybe(rng, made, "offload", lambda: rng.choice(("auto", "never")), 0.5)
    _maybe(rng, made, "ignore_eos", lambda: rng.random() < 0.5, 0.5)
    _maybe(rng, made, "verification", lambda: rng.choice(sorted(METHODS)), 0.5)
    return made
