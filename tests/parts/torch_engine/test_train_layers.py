"""The search for the layers of a self-draft, on tiny random models."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cloud_gateway.parts.torch_engine.llama_forward import LlamaForward
from cloud_gateway.parts.torch_engine.target import TorchTarget
from edgespec_lab.train.layers import match_rate, search
from edgespec_lab.train.text import write
from tests.support.tiny_target import load_tiny, make_tiny_target

PROMPTS = [[5, 9, 2], [7, 7, 30, 11], [1, 2, 3]]
IDLE = 2
"""The layer that has no effect."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = make_tiny_target(tmp_path_factory.mktemp("model"), layers=4)
    model = load_tiny(path)
    for module in (model.model.layers[IDLE].self_attn.o_proj, model.model.layers[IDLE].mlp.down_proj):
        torch.nn.init.zeros_(module.weight)
    model.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def target(folder: Path) -> TorchTarget:
    return TorchTarget(load_tiny(folder), slots=2, threads=1)


def test_the_layer_without_effect_is_left_out_first(folder: Path, target: TorchTarget) -> None:
    texts = list(write(load_tiny(folder), PROMPTS, 12, frozenset()).sequences())
    first, second = search(target, texts, least=2, tries=2)
    assert first.layers == [layer for layer in range(4) if layer != IDLE] and first.match == 1.0
    assert len(second.layers) == 2 and set(second.layers) < set(first.layers) and second.match < 1.0
    assert isinstance(target.forward, LlamaForward)
    assert match_rate(target, target.forward.keeping(second.layers), texts) == second.match
    wrong = [([*tokens[:-count], (tokens[-count] + 1) % 64], 1) for tokens, count in texts]
    assert match_rate(target, target.forward.keeping(first.layers), wrong) == 0
