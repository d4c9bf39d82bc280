"""The KV cache is shared by time: one long conversation beside short completions of other keys, and the reverse."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from cloud_gateway.core.requests.request import TokensEvent
from cloud_gateway.engine.loop import Engine
from tests.parts.kv_preemption.test_preemption import PASS_S, SMALL, crowded, first_token_s, request
from tests.support.engines import Make
from tools.doubles.model import plain_greedy

pytestmark = pytest.mark.driven
CLAIM = pytest.mark.claim("no-key-keeps-the-kv-cache-for-longer-than-its-turn")
LONG = [5, 4, 3, 9, 8] * 130
"""A prompt of 650 tokens."""
LENGTH = 300
ROOMY = 10_000
"""Entries of a cache in which everything fits."""


@dataclass(frozen=True)
class Company:
    """Short completions beside a long one."""

    streams: int
    """Completions at once, one after the other without a pause."""
    keys: int
    prompt: int
    count: int


@dataclass
class Others:
    """The times of the short completions."""

    first_tokens_s: list[float] = field(default_factory=list)


@asynccontextmanager
async def beside(engine: Engine, company: Company) -> AsyncIterator[Others]:
    """Runs the short completions meanwhile."""
    others = Others()
    ends = asyncio.Event()
    clock = asyncio.get_running_loop().time

    async def run(key: str) -> None:
        while not ends.is_set():
            began = clock()
            first_s: float | None = None
            async for event in engine.submit(request(key, (SMALL * 9)[: company.prompt], company.count)):
                if isinstance(event, TokensEvent) and first_s is None:
                    first_s = clock() - began
                    others.first_tokens_s.append(first_s)

    tasks = [asyncio.create_task(run(f"other {number % company.keys}")) for number in range(company.streams)]
    yield others
    ends.set()
    await asyncio.gather(*tasks)


async def long_completion_s(make: Make, company: Company, kv_tokens: int = 1100) -> float:
    """Seconds that the long completion takes, half a second after the short ones began."""
    engine = crowded(make, kv_tokens=kv_tokens)
    async with beside(engine, company):
        await asyncio.sleep(0.5)
        began = asyncio.get_running_loop().time()
        tokens, _ = await engine.submit(request("victim", LONG, LENGTH)).whole()
        took_s = asyncio.get_running_loop().time() - began
    assert tokens == plain_greedy(LONG, LENGTH)
    return took_s


COMPANIES = [
    pytest.param(Company(1, 1, 60, 200), id="one stream of 200 tokens"),
    pytest.param(Company(3, 1, 60, 200), id="three of 200"),
    pytest.param(Company(3, 1, 60, 20), id="three of 20"),
    pytest.param(Company(3, 1, 60, 2), id="three of 2"),
    pytest.param(Company(8, 8, 60, 200), id="eight keys"),
    pytest.param(Company(1, 1, 120, 1), id="one token at a time"),
    pytest.param(Company(1, 1, 300, 1), id="one token after a prompt of 300"),
    pytest.param(Company(1, 1, 300, 200), id="200 tokens after a prompt of 300"),
]


@CLAIM
@pytest.mark.parametrize("company", COMPANIES)
async def test_a_long_completion_takes_twice_as_long_as_in_a_roomy_cache(make: Make, company: Company) -> None:
    """It took 52 to 227 s beside each of them when any small request took its room: 102 preemptions by one stream."""
    roomy_s = await long_completion_s(make, company, ROOMY)
    tight_s = await long_completion_s(make, company)
    print(f"{tight_s:.1f} s, in a roomy cache {roomy_s:.1f} s")
    assert tight_s <= 2.05 * roomy_s


@CLAIM
async def test_large_requests_at_all_times_delay_few_prompts_of_another_key(make: Make) -> None:
    """Four requests for the whole cache always wait; one first token in twenty may come after a turn of them."""
    engine = crowded(make)
    alone_s = await first_token_s(engine)
    ends = asyncio.Event()

    async def attack(number: int) -> None:
        while not ends.is_set():
            await engine.submit(request("attacker", [3 + number] * 800, 190)).whole()

    attacks = [asyncio.create_task(attack(number)) for number in range(4)]
    await asyncio.sleep(1.0)
    waits_s = sorted([await first_token_s(engine) for _ in range(60)])
    ends.set()
    await asyncio.gather(*attacks)
    assert waits_s[56] <= 1.25 * alone_s + PASS_S
    assert waits_s[-1] <= 800 * 0.002 + 190 * PASS_S + 2 * alone_s, "for a whole request of the other key at most"


@CLAIM
async def test_a_short_completion_waits_no_longer_than_before_in_the_median(make: Make) -> None:
    """One stream of 200 tokens at a time beside long completions of another key; 0.384 s is what it took when any small
    request took the room of a large one."""
    engine = crowded(make)
    async with beside(engine, Company(1, 1, 60, 200)) as others:
        await asyncio.sleep(0.5)
        for number in range(4):
            tokens, _ = await engine.submit(request("victim", LONG[number:], LENGTH)).whole()
            assert tokens == plain_greedy(LONG[number:], LENGTH)
    print([round(wait_s, 2) for wait_s in others.first_tokens_s])
    assert statistics.median(others.first_tokens_s) <= 1.25 * 0.384
