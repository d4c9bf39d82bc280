"""Admission by room in the KV cache with the torch target: none exceeds it, and texts are those of solo runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from cloud_gateway.engine.loop import Engine
from cloud_gateway.models.target_model import Work
from cloud_gateway.parts.torch_engine import PART
from cloud_gateway.parts.torch_engine.target import TorchTarget, TorchVerified
from cloud_gateway.process.config import schema
from cloud_gateway.process.loading import engine_settings, load_models
from edgespec.shared.settings import overridden
from tests.support.rooms import seven_requests_keep_within
from tests.support.tiny_gguf import make_tiny_gguf

ROOM = 510


async def test_torch_keeps_within_the_room_and_changes_no_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"engine": "torch", "exact": "yes", "dtype": "float32", "context": 256, "threads": 1, "slots": 6}
    models = {"model": str(make_tiny_gguf(tmp_path / "tiny.gguf")), "kv_tokens": ROOM}
    values = {f"target.{key}": value for key, value in {**options, **models}.items()}
    draft = {"local_draft.model": str(make_tiny_gguf(tmp_path / "draft.gguf", unlike=0.05)), "local_draft.threads": 1}
    settings = overridden(schema([PART])(), {**values, **draft, "policy.name": "wanspec"})
    loaded = load_models(settings)
    target = loaded.target
    assert isinstance(target, TorchTarget) and target.kv_tokens == ROOM
    engine = Engine(target, loaded.local, engine_settings(settings))
    running: list[int] = []
    taken: list[int] = []
    verify = target.verify

    def counted(batch: Sequence[Work]) -> Sequence[TorchVerified]:
        running.append(engine.active)
        verified = verify(batch)
        taken.append(sum(kv.capacity for kv in target._kv))
        return verified

    monkeypatch.setattr(target, "verify", counted)
    await seven_requests_keep_within(engine)
    assert max(running) > 1
    assert max(taken) <= ROOM
