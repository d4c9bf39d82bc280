"""The campus store beside the real engine: same text, fewer passes; scopes, restarts, deletion, and what is on disk."""

from __future__ import annotations

import asyncio
import stat
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from cloud_gateway.auth import Key, KeyRing
from cloud_gateway.core.requests.request import DoneEvent, GenerationRequest, Speculation
from cloud_gateway.core.sources.asking import MAKERS
from cloud_gateway.parts.campus_store.disk import Disk, path_of
from cloud_gateway.parts.campus_store.source import StoreSource, Storing
from cloud_gateway.parts.campus_store.store import DAY_S, Store, StoreLimits
from tests.support.engines import complete, engines
from tests.support.until import until
from tools.doubles.engines import TableTarget
from tools.doubles.model import ShortMemory

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
COUNT = 40
VOCABULARY = 4096
Begin = Callable[..., Store]


@pytest.fixture
def ring(tmp_path: Path) -> KeyRing:
    return KeyRing(tmp_path / "keys")


@pytest.fixture
def begin(tmp_path: Path, ring: KeyRing) -> Iterator[Begin]:
    """Begins stores, as a gateway does at its start."""
    begun: list[Store] = []

    def make(*, days: int = 30, prompts: bool = False, memory_bytes: int = 2**20, later_s: float = 0) -> Store:
        disk = Disk(tmp_path / "campus_store", "model", VOCABULARY) if days else None
        limits = StoreLimits(memory_bytes, days, prompts)
        begun.append(Store(limits, ring, disk, lambda: time.time() + later_s))
        return begun[-1]

    yield make
    for store in begun:
        store.close()


def texts_of(store: Store, key: Key) -> int:
    return sum(int(str(row["texts"])) for row in store.rows() if row["key"] == key.id)


def request(key: Key, prompt: list[int] = PROMPT, scope: bytes | None = None) -> GenerationRequest:
    """Scopes of requests are secrets of a process; here they are the key's name."""
    group = key.cache_group or key.id
    return GenerationRequest(
        prompt,
        COUNT,
        ignore_eos=True,
        speculation=Speculation(policy="adaptive", sources=("store",)),
        cache_scope=group.encode() if scope is None else scope,
        key=key.id,
    )


async def completed(store: Store, *requests: GenerationRequest) -> list[tuple[list[int], DoneEvent]]:
    """One after the other, each after the one before is stored."""
    found: list[tuple[list[int], DoneEvent]] = []
    makers = {**MAKERS, "store": partial(StoreSource, store=store)}
    with engines() as started:
        target = TableTarget(pass_s=0, model=ShortMemory())
        engine = started(None, None, target, [Storing(store)], makers=makers)
        for one in requests:
            found.append(await complete(engine, one))
            await asyncio.to_thread(store.settle)
    return found


async def test_a_repeated_prompt_takes_few_passes_and_has_the_same_text(begin: Begin, ring: KeyRing) -> None:
    key, _ = ring.create("alice")
    (text, first), (again, second) = await completed(begin(), request(key), request(key))
    assert again == text and len(text) == COUNT
    assert first.usage.rounds > COUNT / 2 and second.usage.rounds <= COUNT / 5
    assert second.usage.sources["store"]["accepted"] == COUNT - second.usage.rounds


@pytest.mark.parametrize("prompts", [False, True])
async def test_other_prompts_find_the_same_passages(begin: Begin, ring: KeyRing, prompts: bool) -> None:
    key, _ = ring.create("alice")
    other = [7, *PROMPT]
    (text, _), (found, done) = await completed(begin(prompts=prompts), request(key), request(key, other))
    assert found == text, "this model has a short memory"
    assert done.usage.rounds < COUNT / 2


@pytest.mark.claim("a-key-drafts-from-its-own-completions-only")
async def test_a_scope_finds_its_own_texts_only(begin: Begin, ring: KeyRing) -> None:
    alice, bob = (ring.create(name)[0] for name in ("alice", "bob"))
    mates = [ring.create(name, cache_group="course")[0] for name in ("eve", "dan")]
    done = [end for _, end in await completed(begin(), *(request(key) for key in (alice, bob, *mates)))]
    proposed = [end.usage.sources["store"]["proposed"] for end in done]
    assert proposed[1] <= proposed[0] < COUNT, "of another key's completions nothing"
    assert done[0].usage.rounds == done[1].usage.rounds == done[2].usage.rounds
    assert done[3].usage.rounds <= COUNT / 5, "one cache group shares"


@pytest.mark.claim("a-key-drafts-from-its-own-completions-only")
async def test_without_a_scope_nothing_is_stored(begin: Begin, ring: KeyRing, tmp_path: Path) -> None:
    key, _ = ring.create("alice")
    store = begin()
    await completed(store, request(key, scope=b""))
    assert store.rows() == [] and not list((tmp_path / "campus_store").iterdir())


async def test_after_a_restart_the_texts_are_there(begin: Begin, ring: KeyRing, tmp_path: Path) -> None:
    key, _ = ring.create("alice")
    store = begin()
    await completed(store, request(key))
    store.close()
    path = path_of(tmp_path / "campus_store", key.id)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    after = begin()
    await until(lambda: texts_of(after, key) == 1)
    ((_, done),) = await completed(after, request(key))
    assert done.usage.rounds <= COUNT / 5


@pytest.mark.claim("completions-are-on-disk-only-if-the-operator-asks")
async def test_in_memory_alone_no_file_appears(begin: Begin, ring: KeyRing, tmp_path: Path) -> None:
    key, _ = ring.create("alice")
    store = begin(days=0)
    await completed(store, request(key), request(key, [7, 7]))
    assert texts_of(store, key) > 0 and not (tmp_path / "campus_store").exists()


@pytest.mark.claim("completions-are-on-disk-only-if-the-operator-asks")
async def test_prompts_are_stored_only_if_asked_for(begin: Begin, ring: KeyRing, tmp_path: Path) -> None:
    key, _ = ring.create("alice")
    canary = [4001, 4002, 4003, 4004]
    backwards = b"".join(token.to_bytes(4, "big") for token in reversed(canary))
    path = path_of(tmp_path / "campus_store", key.id)
    await completed(begin(), request(key, [*canary, *PROMPT]))
    assert backwards not in path.read_bytes()
    await completed(begin(prompts=True), request(key, [*canary, *PROMPT]))
    assert backwards in path.read_bytes()


@pytest.mark.claim("what-is-stored-of-a-key-can-be-deleted")
async def test_what_is_forgotten_is_gone_from_memory_and_disk(begin: Begin, ring: KeyRing, tmp_path: Path) -> None:
    mates = [ring.create(name, cache_group="course")[0] for name in ("eve", "dan")]
    store = begin()
    await completed(store, request(mates[0]), request(mates[1], [9, 9, 1, 2]))
    paths = [path_of(tmp_path / "campus_store", key.id) for key in mates]
    assert all(path.exists() for path in paths)
    assert store.forget(mates[0].id).result(10) == 1
    assert [texts_of(store, key) for key in mates] == [0, 1]
    assert [path.exists() for path in paths] == [False, True]


@pytest.mark.claim("what-is-stored-of-a-key-can-be-deleted")
async def test_a_revoked_key_leaves_nothing(
    begin: Begin, ring: KeyRing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloud_gateway.parts.campus_store.store.SWEEP_S", 0.01)
    alice, bob = (ring.create(name)[0] for name in ("alice", "bob"))
    store = begin()
    await completed(store, request(alice), request(bob))
    ring.revoke(alice.id)
    await until(lambda: not path_of(tmp_path / "campus_store", alice.id).exists())
    await until(lambda: texts_of(store, alice) == 0)
    assert texts_of(store, bob) == 1
    store.close()
    ring.revoke(bob.id)
    begin()
    await until(lambda: not path_of(tmp_path / "campus_store", bob.id).exists())


async def test_old_texts_leave_disk_and_memory(
    begin: Begin, ring: KeyRing, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("cloud_gateway.parts.campus_store.store.SWEEP_S", 0.01)
    key, _ = ring.create("alice")
    store = begin()
    await completed(store, request(key))
    store.close()
    size = path_of(tmp_path / "campus_store", key.id).stat().st_size
    await until(lambda: texts_of(begin(later_s=29 * DAY_S), key) == 1)
    later = begin(later_s=31 * DAY_S)
    await until(lambda: path_of(tmp_path / "campus_store", key.id).stat().st_size < size)
    assert texts_of(later, key) == 0


async def test_memory_and_disk_are_bounded_and_the_newest_stay(begin: Begin, ring: KeyRing, tmp_path: Path) -> None:
    key, _ = ring.create("alice")
    store = begin(memory_bytes=2**14)
    makers = [request(key, [number, number + 1]) for number in range(60)]
    found = await completed(store, *makers)
    (row,) = store.rows()
    assert 0 < int(str(row["memory_bytes"])) <= 2**12 and int(str(row["texts"])) < 12
    ((_, last),) = await completed(store, makers[-1])
    assert last.usage.rounds <= COUNT / 5 and len(found) == 60
