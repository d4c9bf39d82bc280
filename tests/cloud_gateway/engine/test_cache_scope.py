"""No key can find out another key's prompt or completion by what is in a prefix cache: counted, not timed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cloud_gateway.auth import SCOPE_BYTES, CacheScopes, Key
from cloud_gateway.core.requests.request import GenerationRequest
from cloud_gateway.engine.pool import scope_for
from cloud_gateway.models.target_model.llamacpp import LlamaCppTarget
from edgespec.core.protocol.messages import Open
from tests.support.engines import Make, complete
from tests.support.keyed import Keyed, keyed_gateway, tiny_settings
from tests.support.until import until
from tools.doubles.workers import LoopWorker

SECRET = [3 + (7 * i) % 50 for i in range(60)]
"""Alice's prompt."""
WRONG = [3 + (11 * i + 5) % 50 for i in range(60)]
HALF = [*SECRET[:30], *WRONG[30:]]


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> object:
    return tiny_settings(tmp_path_factory.mktemp("models"))


@pytest.fixture
async def gateway(tmp_path: Path, settings: object) -> AsyncIterator[Keyed]:
    async with keyed_gateway(tmp_path, settings) as running:
        yield running


@pytest.mark.claim("sending-anothers-prompt-costs-what-any-other-prompt-does")
async def test_sending_anothers_prompt_costs_what_any_other_prompt_does(gateway: Keyed) -> None:
    _, alice = gateway.keys.create("alice")
    await gateway.ask(alice, SECRET)
    # Each attempt by another key, since a key's own earlier prompts are reused, as they should be.
    costs = [await gateway.cost(gateway.keys.create("bob")[1], tried) for tried in (WRONG, HALF, SECRET)]
    assert costs == [costs[0]] * 3, "evaluated tokens (target, local draft) of a wrong, half right and right prompt"
    assert costs[0][0] == len(SECRET) - 1


@pytest.mark.claim("sending-anothers-prompt-costs-what-any-other-prompt-does")
async def test_sending_anothers_completion_costs_what_any_other_prompt_does(gateway: Keyed) -> None:
    (_, alice), (_, bob) = gateway.keys.create("alice"), gateway.keys.create("bob")
    await gateway.ask(alice, SECRET, max_tokens=24, edgespec={"ignore_eos": True})
    target = gateway.models.target
    assert isinstance(target, LlamaCppTarget)
    held = max((list(slot.tokens) for slot in target._table._slots), key=len)
    assert len(held) > len(SECRET) + 20, "the slot keeps the completion as well"
    right = [*held, 9]
    wrong = [*SECRET, *WRONG[: len(right) - len(SECRET)]]
    assert len(wrong) == len(right)
    assert await gateway.cost(bob, wrong[::-1]) == await gateway.cost(bob, right)


async def test_the_next_turn_of_ones_own_conversation_is_continued(gateway: Keyed) -> None:
    (_, alice), (_, bob) = gateway.keys.create("alice"), gateway.keys.create("bob")
    first = await gateway.cost(alice, SECRET)
    for number in range(12):
        await gateway.ask(bob, [5 + number, *WRONG])
    second = await gateway.cost(alice, [*SECRET, 5, 6, 7, 8])
    assert (first[0], second[0]) == (len(SECRET) - 1, 3)
    assert second[1] < first[1] / 2


async def test_keys_of_one_cache_group_share_on_purpose_and_no_other_does(gateway: Keyed) -> None:
    group = [gateway.keys.create(name, cache_group="support desk")[1] for name in ("ann", "ben")]
    await gateway.ask(group[0], SECRET)
    assert (await gateway.cost(group[1], SECRET))[0] == 0
    for name, other in (("carl", "sales desk"), ("support desk", "")):
        _, key = gateway.keys.create(name, cache_group=other)
        assert (await gateway.cost(key, SECRET))[0] == len(SECRET) - 1


@pytest.mark.claim("what-is-kept-of-a-prompt-serves-only-requests-of-its-scope")
def test_a_scope_depends_on_process_and_key_and_names_neither() -> None:
    scopes = CacheScopes()
    later = CacheScopes()
    alice, bob = (Key(name * 8, name, 0, "00", "0" * 64) for name in "ab")
    found = [scopes.of(alice), scopes.of(bob), later.of(alice)]
    assert len({*found}) == 3 and all(len(scope) == SCOPE_BYTES for scope in found)
    assert scopes.of(alice) == found[0]
    sent = [scope_for(worker, scope) for worker in ("w1", "w2") for scope in found]
    assert len({*sent, *found}) == 9, "no two workers are sent the same value, or the scope itself"
    assert scope_for("w1", b"") == b""


@pytest.mark.claim("what-is-kept-of-a-prompt-serves-only-requests-of-its-scope")
async def test_workers_are_sent_one_scope_for_each_key(make: Make) -> None:
    worker = LoopWorker()
    engine = make(worker)
    for scope in (b"alice", b"bob", b"alice", b""):
        await complete(engine, GenerationRequest([1, 2, 3], 2, ignore_eos=True, cache_scope=scope))
    await until(lambda: len([body for body in worker.seen if isinstance(body, Open)]) == 4)
    sent = [body.cache_scope for body in worker.seen if isinstance(body, Open)]
    assert sent == [scope_for("w", b"alice"), scope_for("w", b"bob"), scope_for("w", b"alice"), b""]
