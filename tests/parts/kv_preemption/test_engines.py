"""Room in steps with the engines of the target: none exceeds it, and texts are those of solo runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloud_gateway.engine.loop import Engine
from cloud_gateway.parts.kv_preemption import PART, cells
from cloud_gateway.process.config import GatewaySettings, schema
from cloud_gateway.process.loading import engine_settings, load_models
from edgespec.shared.settings import overridden
from tests.support.rooms import seven_requests_keep_within
from tests.support.tiny_gguf import make_tiny_gguf
from tests.support.torch_targets import torch_settings

ROOM = 510
"""With the two cells that `exact` takes in llama.cpp, all that are there: it rounds to 256."""


def settings_of(engine: str, folder: Path) -> GatewaySettings:
    model = make_tiny_gguf(folder / "tiny.gguf")
    draft = make_tiny_gguf(folder / "draft.gguf", unlike=0.05)
    target = {"model": str(model), "exact": "yes", "context": 256, "threads": 1, "slots": 6, "kv_tokens": ROOM}
    values = {f"target.{key}": value for key, value in target.items()}
    drafted = {"local_draft.model": str(draft), "local_draft.threads": 1, "policy.name": "wanspec"}
    if engine == "torch":
        return torch_settings({**values, **drafted})
    return overridden(schema([PART])(), {**values, **drafted, "target.engine": engine})


@pytest.mark.parametrize("engine", ["llamacpp", "torch"])
async def test_requests_of_two_keys_keep_within_the_room_and_change_no_token(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cells, "STEP", 16)
    settings = settings_of(engine, tmp_path)
    models = load_models(settings)  # llama.cpp refuses rows for which it has no cells
    assert models.target.kv_tokens == ROOM

    running = Engine(models.target, models.local, engine_settings(settings))
    await seven_requests_keep_within(running)
    assert running.stats.preemptions > 0
