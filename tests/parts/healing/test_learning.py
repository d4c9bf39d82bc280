"""A worker's service that learns, linked to a gateway's links in this process: what it holds in memory and on disk."""

from __future__ import annotations

import asyncio
import gc
from array import array
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, MethodType, ModuleType

import pytest

from cloud_gateway.auth import KeyRing
from cloud_gateway.parts.healing.consents import MAX_KEYS, consenting, message, set_consent
from cloud_gateway.parts.healing.sender import Sender
from edgespec.core.errors import KeyStoreError
from edgespec.core.protocol.digests import prefix_hash
from edgespec.core.protocol.messages import Close, Commit, Extra, Open, Sampling
from edgespec.parts.healing import PART, LearnSection, store
from edgespec.parts.healing.consent import KIND, Consent, Learn, encode
from edgespec.parts.healing.learning import Learning
from edgespec.worker.part import RunningPart, WorkerPart, WorkerProcess
from tests.support.services import Running, serving_worker, until

CANARY = [31, 37, 41, 43, 47, 53]
"""The prompt; the completion is the same six tokens again and again."""


@dataclass
class Scene:
    """A linked worker that learns, and the gateway's half of it."""

    running: Running
    keys: KeyRing
    learning: Learning
    folder: Path

    async def complete(self, number: int, key: str, completion: list[int]) -> None:
        """The gateway gives the worker a request of a key, as the engine's thread does, and commits the completion."""
        (worker,) = self.running.gateway.links.workers()
        await asyncio.to_thread(self.sender.announce, worker.id, number, key)
        await asyncio.sleep(0)
        send = self.running.gateway.links.send
        send(worker.id, [Open(number, 1, len(CANARY), CANARY, Sampling())])
        tokens = [*CANARY]
        for token in completion:
            tokens.append(token)
            send(worker.id, [Commit(number, 1, len(tokens) - 1, [token], prefix_hash(tokens), 1000, 900, 0)])
        await until(lambda: self.running.service.daemon.stats.committed >= self.committed + len(completion))
        self.committed += len(completion)

    sender: Sender
    committed: int = 0

    async def close(self, number: int) -> None:
        (worker,) = self.running.gateway.links.workers()
        self.running.gateway.links.send(worker.id, [Close(number, 1, "stop")])
        await until(lambda: not self.running.service.daemon.open_requests)

    def in_memory(self) -> bool:
        """Whether anything that the part holds has the canary in it; the daemon, which drafts, is not the part's."""
        return any(has_canary(held) for held in objects_of(self.learning))


def objects_of(root: object) -> Iterator[object]:
    """All objects that can be reached from one, but not through functions, which reach the whole program."""
    found: dict[int, object] = {}
    waiting = [root]
    while waiting:
        held = waiting.pop()
        if id(held) in found or isinstance(held, ModuleType | type | FunctionType | MethodType | asyncio.Future):
            continue
        found[id(held)] = held
        yield held
        waiting += gc.get_referents(held)


def has_canary(held: object) -> bool:
    if isinstance(held, bytes | bytearray | array):
        return array("I", CANARY).tobytes() in bytes(held)
    return isinstance(held, list | tuple) and repr(CANARY)[1:-1] in repr(held)


@asynccontextmanager
async def learning_worker(tmp_path: Path) -> AsyncIterator[Scene]:
    started: list[Learning] = []

    def start(worker: WorkerProcess) -> RunningPart:
        started.append(Learning(LearnSection(enabled=True), worker))
        return started[0]

    keys = KeyRing(tmp_path / "keys")
    sender = Sender(keys)
    async with serving_worker(tmp_path, [WorkerPart("learns", start=start, handlers=PART.handlers)]) as running:
        await until(running.gateway.links.workers)
        sender.start(running.gateway.links.workers)
        yield Scene(running, keys, started[0], tmp_path / "state" / store.FOLDER, sender)
        sender.stop()


@pytest.mark.claim("without-consent-a-worker-keeps-nothing")
async def test_without_consent_nothing_is_held_in_memory_or_on_disk(tmp_path: Path) -> None:
    async with learning_worker(tmp_path) as scene:
        plain, _ = scene.keys.create("plain", offload=True)
        ann, _ = scene.keys.create("ann", offload=True, learn=True)
        await scene.complete(1, plain.id, [*CANARY, *CANARY])
        assert not scene.in_memory()
        await scene.close(1)

        await scene.complete(2, ann.id, [*CANARY, *CANARY])
        assert scene.in_memory(), "so the scan finds what is there"
        assert store.kept_rows(scene.folder) == []
        await scene.close(2)
        await until(lambda: store.kept_rows(scene.folder))
        assert [row.key for row in store.kept_rows(scene.folder)] == [ann.id]
        assert not scene.in_memory()


@pytest.mark.claim("a-consent-that-ends-deletes-what-workers-keep")
async def test_a_withdrawn_consent_drops_an_open_request_too(tmp_path: Path) -> None:
    async with learning_worker(tmp_path) as scene:
        ann, _ = scene.keys.create("ann", offload=True, learn=True)
        await scene.complete(1, ann.id, [*CANARY, *CANARY])
        await scene.close(1)
        await until(lambda: store.kept_rows(scene.folder))
        await scene.complete(2, ann.id, [*CANARY, *CANARY])
        set_consent(scene.keys, "ann", learn=False)
        await until(lambda: not store.kept_rows(scene.folder))
        assert not scene.in_memory()
        await scene.close(2)
        await scene.complete(3, ann.id, [*CANARY, *CANARY])
        assert not scene.in_memory()


async def test_a_message_of_another_kind_ends_the_link(tmp_path: Path) -> None:
    async with learning_worker(tmp_path) as scene:
        links = scene.running.gateway.links
        (worker,) = links.workers()
        for extra in (Extra("adapters", b""), Extra(KIND, encode(["learn", 1, "../../up"]))):
            worker.wire.send(extra)
            session = worker.session
            await until(lambda: links.workers() and links.workers()[0].session != session)  # noqa: B023
            (worker,) = links.workers()


async def test_announcements_without_consent_are_ignored(tmp_path: Path) -> None:
    async with learning_worker(tmp_path) as scene:
        (worker,) = scene.running.gateway.links.workers()
        worker.wire.send(Extra(KIND, encode(Learn(1, "Nobody00"))))
        scene.running.open(1, prompt=CANARY)
        await until(lambda: scene.running.service.daemon.open_requests)
        assert not scene.in_memory()


def test_only_offloaded_valid_keys_of_the_workers_groups_consent(tmp_path: Path) -> None:
    ring = KeyRing(tmp_path)
    good, _ = ring.create("good", offload=True, learn=True, groups=["physics"])
    ring.create("other", offload=True, learn=True, groups=["chemistry"])
    inside, _ = ring.create("inside", learn=True)
    assert not inside.learn, "no worker sees its prompts"
    gone, _ = ring.create("gone", offload=True, learn=True, groups=["physics"])
    ring.revoke(gone.id)
    assert consenting(ring.all(), frozenset({"physics"})) == [good]

    with pytest.raises(KeyStoreError, match="no worker may see the prompts"):
        set_consent(ring, "inside", learn=True)
    with pytest.raises(KeyStoreError, match="no valid API key 'gone'"):
        set_consent(ring, "gone", learn=True)
    assert set_consent(ring, good.id, learn=False).learn is False
    assert set_consent(ring, "good", learn=True).learn is True


def test_a_list_of_consents_has_the_latest_keys_and_fits(tmp_path: Path) -> None:
    key, _ = KeyRing(tmp_path).create("a", offload=True, learn=True, cache_group="g" * 100)
    listed = message(b"t" * 32, [key] * 1000)
    assert len(listed.keys) == MAX_KEYS
    assert listed.keys[0] == Consent(key.id, "g" * 100)
    assert len(encode(listed)) < 65_300
