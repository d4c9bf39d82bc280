"""Checks of the settings of heads, before a model is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from cloud_gateway.models.headers import Need
from cloud_gateway.parts.draft_heads import PART, heads_need
from cloud_gateway.process.config import schema
from cloud_gateway.process.targets import LlamaCppEngine, check_models, need_of
from edgespec.core.errors import ModelError
from edgespec.shared.settings import overridden, parse
from tests.support.tiny_gguf import make_tiny_gguf


def test_heads_are_counted_as_weights_and_an_eagle_head_with_every_token(tmp_path: Path) -> None:
    eagle = tmp_path / "eagle"
    medusa = tmp_path / "medusa"
    save_file({"qkv": torch.zeros(3, 2, 16, 32), "norm_1": torch.zeros(32)}, eagle)
    save_file({"down": torch.zeros(3, 32, 8)}, medusa)
    assert heads_need(medusa) == Need(4 * 3 * 32 * 8, 0)
    assert heads_need(eagle) == Need(4 * (3 * 2 * 16 * 32 + 32), 4 * (2 * 2 * 16 + 32))

    model = make_tiny_gguf(tmp_path / "tiny.gguf")
    engine = LlamaCppEngine()
    settings = overridden(schema([PART])(), {"sources.heads": [str(eagle), str(medusa)]})
    needed = need_of(settings, engine, model)
    assert needed == engine.need(model, settings) + heads_need(eagle) + heads_need(medusa)


def test_a_target_that_shows_no_states_is_refused(tmp_path: Path) -> None:
    values = {"target.model": str(make_tiny_gguf(tmp_path / "tiny.gguf")), "target.engine": "llamacpp"}
    settings = overridden(schema([PART])(), {**values, "sources.heads": ["heads"], "local_draft.model": ""})
    with pytest.raises(ModelError, match="`sources.heads` needs the engine torch"):
        check_models(settings)


def test_heads_of_earlier_settings_are_named_in_one_list() -> None:
    settings = parse('[sources]\nmedusa = ""\n[policy]\nsources = ["medusa", "eagle"]', schema([PART]), "gateway.toml")
    assert settings.policy.sources == ("medusa", "eagle")
