"""The local draft's memory is too small for all requests: one key's long prompts do not take it from another's."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cloud_gateway.core.requests.request import GenerationRequest
from cloud_gateway.models.drafts.gguf import LocalDraft
from tests.support.engines import Make, complete
from tests.support.tiny_gguf import make_tiny_gguf
from tests.support.until import until
from tools.doubles.engines import TableTarget
from tools.doubles.model import VOCAB

LARGE = [1 + i % 30 for i in range(248)]


def request(key: str, prompt: list[int], count: int) -> GenerationRequest:
    return GenerationRequest(prompt, count, ignore_eos=True, key=key, cache_scope=key.encode())


@pytest.mark.claim("no-key-takes-the-drafts-memory-from-one-that-holds-less")
async def test_a_small_prompt_is_drafted_for_beside_three_large_ones(make: Make, tmp_path: Path) -> None:
    local = LocalDraft(make_tiny_gguf(tmp_path / "tiny.gguf"), context=768, requests=8, target_vocab_size=VOCAB)
    engine = make(None, local, TableTarget(slots=8), policy="colocated", k=2)
    before = asyncio.create_task(complete(engine, request("before", [7, 1, 8], 120)))
    await until(lambda: engine.stats.local_passes > 4)
    large = [asyncio.create_task(complete(engine, request("large", [n, *LARGE], 120))) for n in range(3)]
    await until(lambda: engine.active == 4 and engine.stats.tokens > 40)
    found = [await complete(engine, request("after", [9, 2, 8], 20)), await before]
    for _, done in found:
        assert done.usage.why_not_local is None
        assert done.usage.local_draft_passes > 0.5 * done.usage.rounds
    refused = [(await one)[1].usage.why_not_local for one in large]
    assert "the local draft has no room for this request" in refused, "the memory was too small for all"
    local.shutdown()
