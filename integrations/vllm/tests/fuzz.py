"""`python -m integrations.vllm.tests.fuzz N`: random board messages, none of which may make the hook fail.

Each case is a message: valid, valid with values at and beyond every bound, or bytes that are none. Between them
requests grow, end and begin. Whatever is set as a draft must be one that vLLM can verify.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from edgespec_vllm.guard import Guard
from edgespec_vllm.hook import Hook

from integrations.vllm.tests.boards import DRAFTS, MAX_LEN, VOCAB, Link, hook, request

ODD: tuple[Any, ...] = (
    -1,
    0,
    1,
    VOCAB - 1,
    VOCAB,
    VOCAB + 1,
    2**31 - 1,
    2**31,
    2**32,
    2**63,
    -(2**63),
    None,
    True,
    1.5,
    b"",
    "x",
    [],
    {},
)
SCALE = 16
"""Messages between two steps of the engine."""


def values(rng: random.Random) -> list[Any]:
    """A short list of token ids, mostly of the vocabulary."""
    return [rng.randrange(VOCAB) if rng.random() < 0.97 else rng.choice(ODD) for _ in range(rng.randrange(12))]


def message(rng: random.Random, requests: Sequence[Any]) -> bytes:
    """One frame."""
    number = rng.randrange(1, 60)
    start = rng.randrange(MAX_LEN)
    if requests and rng.random() < 0.7:  # a chain that continues, or nearly
        one = rng.choice(requests)
        number = one.number
        start = len(one.all_token_ids) - rng.randrange(3)
        tokens = [*one.all_token_ids[start:], *values(rng)]
    else:
        tokens = values(rng)
    body: list[Any] = rng.choice(
        (
            ["want", number, start],
            ["leave", number],
            *[["chain", number, start, tokens, [rng.randrange(9) for _ in tokens]]] * 6,
            [rng.choice(("hello", "closed", "chain", 7)), number, rng.choice(ODD), tokens],
        )
    )
    if rng.random() < 0.03:
        body[rng.randrange(len(body))] = rng.choice(ODD)
    if rng.random() < 0.002:
        return rng.randbytes(rng.randrange(1, 40))

    payload = msgspec.msgpack.encode(body)
    return len(payload).to_bytes(4, "little") + payload


def run(cases: int, seed: int) -> dict[str, int]:
    """Sends the cases to a hook; returns counts. Raises AssertionError for a draft that vLLM could not verify."""
    rng = random.Random(seed)
    found = {"messages": 0, "drafts": 0, "malformed": 0, "connections": 0}
    with tempfile.TemporaryDirectory() as folder:
        link = Link(Path(folder))
        opened = 0
        it = hook(link.path, grammar=lambda one, tokens: tokens[: len(one.all_token_ids) % 4])
        now = 0.0
        it._clock = lambda: now
        guard = Guard(lambda: it)
        live: list[Any] = []
        while found["messages"] < cases:
            now += 60
            if len(live) < 8:
                opened += 1
                tokens = values(random.Random(opened)) or [1]
                tokens = [1, *(t for t in tokens if type(t) is int and 0 <= t < VOCAB)]
                live.append(request(tokens, str(opened), number=opened, use_structured_output=opened % 5 == 0))
                guard(Hook.opened, live[-1])
            guard(Hook.committed)
            link.received()
            link.send(*(message(rng, live) for _ in range(SCALE)))
            found["messages"] += SCALE
            guard(Hook.draft, live)
            for one in [*live]:
                found["drafts"] += check(one)
                target = [rng.randrange(VOCAB)] if rng.random() < 0.5 else one.spec_token_ids[:2] or [5]
                one.all_token_ids += target
                one.num_output_tokens += len(target)
                one.num_computed_tokens = len(one.all_token_ids) - (1 if rng.random() < 0.9 else 3)
                if len(one.all_token_ids) > MAX_LEN - 2:
                    live.remove(one)
                    guard(Hook.closed, one)
            if not it.board.line.up:
                link.drop()
        assert guard.failures == 0, "the hook failed"
        found["malformed"], found["connections"] = it.board.malformed, it.board.line.connected

    return found


def check(one: Any) -> bool:
    """Whether a request has a draft, which vLLM must be able to verify."""
    draft = one.spec_token_ids
    assert type(draft) is list, draft
    assert len(draft) <= min(DRAFTS, max(MAX_LEN - len(one.all_token_ids) - 1, 0)), draft
    assert all(type(token) is int and 0 <= token < VOCAB for token in draft), draft
    return bool(draft)


if __name__ == "__main__":
    print(run(int(sys.argv[1]), seed=1))
