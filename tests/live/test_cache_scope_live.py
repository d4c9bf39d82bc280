"""Timing does not show whether another key sent the same prompt: the real models, in this process, timed."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.keyed import Keyed, chosen, keyed_gateway

pytestmark = pytest.mark.live
REPETITIONS = 12
WORDS = 120


@pytest.fixture
async def gateway(tmp_path: Path, quantised_model: Path) -> AsyncIterator[Keyed]:
    settings = chosen(quantised_model, quantised_model, context=1024, policy="local-chain")
    async with keyed_gateway(tmp_path, settings) as running:
        yield running


def prompt(rng: random.Random) -> str:
    words = ("river", "stone", "letter", "garden", "winter", "engine", "paper", "window", "market", "story")
    return " ".join(rng.choice(words) for _ in range(WORDS))


async def seconds(gateway: Keyed, key: str, text: str) -> float:
    """Processor time, all of which is of this process: the clock shows the same, and other processes besides."""
    began = time.process_time()
    await gateway.ask(key, text)
    return time.process_time() - began


@pytest.mark.claim("anothers-prompt-and-a-new-prompt-take-the-same-time")
async def test_anothers_prompt_and_a_new_prompt_take_the_same_time(gateway: Keyed) -> None:
    (_, alice), (_, bob) = gateway.keys.create("alice"), gateway.keys.create("bob")
    rng = random.Random(1)
    await seconds(gateway, bob, prompt(rng))
    taken: dict[str, list[float]] = {"right": [], "wrong": [], "own": []}
    for repetition in range(REPETITIONS):
        secret = prompt(rng)
        await gateway.ask(alice, secret)
        prompts = {"right": secret, "wrong": prompt(rng)}
        for which in ("right", "wrong") if repetition % 2 else ("wrong", "right"):
            taken[which].append(await seconds(gateway, bob, prompts[which]))
        taken["own"].append(await seconds(gateway, alice, secret + " and so on"))
    right, wrong, own = (statistics.median(taken[which]) for which in ("right", "wrong", "own"))
    print(f"right {1e3 * right:.1f} ms, wrong {1e3 * wrong:.1f} ms, own {1e3 * own:.1f} ms, {taken}")
    assert own < 0.5 * wrong, "what a prompt that is kept saves can be measured here"
    assert abs(right - wrong) < 0.05 * (wrong - own), "a twentieth of it at most shows to another key"
