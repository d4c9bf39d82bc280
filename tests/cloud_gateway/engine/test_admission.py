"""Admission by room in the KV cache: requests wait for it, none exceeds it, and texts are those of solo runs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cloud_gateway.core.requests.request import GenerationRequest
from cloud_gateway.engine.exchange import Waiting
from cloud_gateway.engine.loop import Engine
from cloud_gateway.process.config import GatewaySettings
from cloud_gateway.process.loading import engine_settings, load_models
from edgespec.core.errors import ClientError
from edgespec.shared.settings import overridden
from tests.support.engines import Make, complete
from tests.support.engines import engine_settings as settings_with
from tests.support.rooms import PROMPT, request, seven_requests_keep_within
from tests.support.tiny_gguf import make_tiny_gguf
from tools.doubles.engines import TableDraft, TableTarget
from tools.doubles.model import plain_greedy

NODES = 16
ROOM = 510
"""With the two cells that `exact` takes in llama.cpp, all that are there: it rounds to 256."""


@pytest.mark.driven
async def test_more_requests_than_have_room_all_end_with_their_own_texts(make: Make) -> None:
    target = TableTarget(slots=8, kv_tokens=3 * (9 + 20 + 1 + NODES))  # it fails if its slots exceed that
    engine = make(local=TableDraft(leaves=4), target=target, policy="local-tree", verify_nodes=NODES)
    streams = [asyncio.create_task(complete(engine, request(number))) for number in range(10)]
    seen = set()
    while not all(stream.done() for stream in streams):
        seen.add(len(target.held))
        await asyncio.sleep(0.001)
    assert max(seen) == 3
    for number, stream in enumerate(streams):
        assert stream.result()[0] == plain_greedy([*PROMPT, number], 20)


async def test_a_request_that_can_never_fit_is_refused_in_one_sentence() -> None:
    engine = Engine(TableTarget(kv_tokens=100), None, settings_with(policy="plain", verify_nodes=NODES))
    engine.use_loop(asyncio.get_running_loop())
    with pytest.raises(ClientError, match=r"may take 101 tokens of KV cache, and this gateway has 100; .*") as caught:
        engine.submit(request(0, 100 - 9 - NODES))
    assert (caught.value.status, caught.value.code) == (400, "context_length_exceeded")
    engine.submit(request(0, 100 - 9 - NODES - 1))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("models")
    return make_tiny_gguf(folder / "tiny.gguf"), make_tiny_gguf(folder / "draft.gguf", unlike=0.05)


def settings_of(files: tuple[Path, Path], **target: str) -> GatewaySettings:
    options = {"engine": "llamacpp", "exact": "yes", "context": "256", "threads": "1", "slots": "6"}
    found = overridden(GatewaySettings(), {"policy.name": "wanspec"})
    for key, value in {"model": str(files[0]), **options, **target}.items():
        found = overridden(found, {f"target.{key}": value})
    return overridden(found, {"local_draft.model": str(files[1]), "local_draft.threads": "1"})


async def test_llama_cpp_keeps_within_the_room_and_changes_no_token(files: tuple[Path, Path]) -> None:
    settings = settings_of(files, kv_tokens=str(ROOM))
    models = load_models(settings)  # llama.cpp refuses rows for which it has no cells
    assert models.target.kv_tokens == ROOM
    engine = Engine(models.target, models.local, engine_settings(settings))
    await seven_requests_keep_within(engine)
    assert engine.stats.preemptions == 0, "each had all its room before it began"


class Asking:
    """A request that waits, as far as `Waiting` reads it."""

    def __init__(self, key: str) -> None:
        self.request = GenerationRequest(PROMPT, 1, key=key)


def test_a_full_queue_refuses_a_key_that_waits_and_no_other() -> None:
    waiting = Waiting[Asking](2)
    waiting.add(Asking("alice"))
    waiting.add(Asking("alice"))

    with pytest.raises(ClientError, match="queue of 2 requests is full") as refused:
        waiting.add(Asking("alice"))
    assert (refused.value.status, refused.value.code) == (429, "queue_full")

    waiting.add(Asking("bob"))
    with pytest.raises(ClientError):
        waiting.add(Asking("bob"))
    assert [asking.request.key for asking in waiting.all()].count("bob") == 1
