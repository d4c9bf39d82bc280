"""What is trained: labels and losses of heads, a pruned target, the GGUF file of a draft, and their measures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cloud_gateway.core.sources.heads import Level
from cloud_gateway.models.drafts.medusa import Heads
from edgespec.core.errors import ConfigError, ModelError
from edgespec.llamacpp.context import Context
from edgespec.shared.vocabfiles import gguf_tokenizer_digest
from tests.support.family_gguf import write_gguf
from tests.support.tiny_gguf import make_tiny_gguf
from tests.support.tiny_target import load_tiny, make_tiny_target, plain_logits
from tools.deep_check import _llama_logits
from tools.train import eagle, measure, medusa
from tools.train.draft import checked, kept_layers, loss, pruned, right, trained
from tools.train.export import export
from tools.train.medusa import IGNORED, fresh, labels
from tools.train.text import Pairs, lesson, write

WIDTH = 4
TOKENS = list(range(8, 40))


def test_a_label_is_the_token_further_on_in_the_same_completion() -> None:
    heads = fresh(torch.zeros(9, WIDTH), torch.tensor([5, 6, 8]), 2, 2)
    found = labels(heads, torch.tensor([5, 6, 8, 7, -1, 6, 5]))
    assert found.tolist() == [
        [1, 2],
        [2, IGNORED],
        [IGNORED] * 2,
        [IGNORED] * 2,
        [IGNORED] * 2,
        [0, IGNORED],
        [IGNORED] * 2,
    ]


def test_heads_that_begin_expect_the_targets_next_token() -> None:
    embedding = torch.eye(WIDTH)
    heads = fresh(embedding, torch.tensor([0, 1]), 2, 2)
    assert heads(embedding[1]).argmax(-1).tolist() == [1, 1]


def test_only_right_tokens_of_the_same_completion_count() -> None:
    tokens = torch.tensor([0, 1, 1, -1, 2, 2])
    heads = Heads(torch.zeros(1, WIDTH, 1), torch.zeros(1, 1, WIDTH), torch.eye(WIDTH), torch.arange(WIDTH))
    expecting = torch.eye(WIDTH)[[1, 0, 3, 3, 2, 3]]
    expecting[1, 1] = 0.5
    (row,) = medusa.measure(heads, Pairs(expecting, tokens, tokens == tokens))
    assert row == {"head": 0, "places": 3, "right": pytest.approx(2 / 3, abs=1e-3), "in 3": 1.0}


def test_an_eagle_head_is_measured_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that expects 1, 2, 3, ... after 0 is right until the text goes another way."""

    class Counting:
        next_place = 0

        def __init__(self, *_: object) -> None:
            self.number = 0

        def add(self, states: torch.Tensor) -> None: ...

        def read(self, tokens: list[int]) -> None:
            self.number = tokens[-1]

        def ahead(self) -> list[Level]:
            return [Level([self.number + step, 9], [0.5, 0.1], [step, -1]) for step in (1, 2, 3)]

    monkeypatch.setattr(eagle, "Line", Counting)
    tokens = torch.tensor([7, 0, 1, 2, 4, -1, 3, 3, -1])
    text = Pairs(torch.zeros(9, WIDTH), tokens, torch.tensor([False] + [True] * 5 + [False] + [True] * 2))
    assert eagle.measure(None, torch.zeros(1), text) == [  # type: ignore[arg-type]
        {"step": 0, "places": 5, "right": 0.4},
        {"step": 1, "places": 2, "right": 0.5},
        {"step": 2, "places": 1, "right": 0.0},
    ]


def test_kept_layers_are_the_first_two_and_the_rest_evenly() -> None:
    assert kept_layers(10, 30) == (0, 1, 5, 8, 12, 15, 19, 22, 26, 29)
    assert kept_layers(3, 30) == (0, 1, 29)
    assert kept_layers(2, 30) == (0, 1)
    assert kept_layers(1, 30) == (0,)
    for total in range(2, 40):
        for count in range(1, total):
            kept = kept_layers(count, total)
            assert len(kept) == count
            assert checked(kept, total) == kept


@pytest.mark.parametrize("kept", [[], [1, 1], [2, 1], [-1, 2], [0, 4]])
def test_named_layers_must_be_there_and_in_order(kept: list[int]) -> None:
    with pytest.raises(ConfigError, match="0 to 3 in rising order"):
        checked(kept, 4)


def test_what_lies_in_padding_changes_neither_loss_nor_share(tmp_path: Path) -> None:
    target = load_tiny(make_tiny_target(tmp_path / "target", layers=4))
    tokens, _ = next(write(target, [[9, 10]], 10, frozenset()).sequences())
    one = lesson(target, [[9, 10], [20, 21, 22]], 10, frozenset({tokens[4]}))
    batch = one.batch
    student = pruned(target, (0, 2))
    before = float(loss(student, one).detach()), right(student, [batch])
    batch.tokens[~batch.mask] = 63
    batch.ranked[~batch.written] = 5
    one.states[~batch.mask] = 7
    assert (float(loss(student, one).detach()), right(student, [batch])) == before
    one.states[0, int(batch.mask[0].int().argmax())] += 1
    assert float(loss(student, one).detach()) != before[0], "a state of a prompt is learnt"


def test_a_pruned_model_has_the_kept_layers_and_leaves_the_target_alone(tmp_path: Path) -> None:
    target = load_tiny(make_tiny_target(tmp_path / "target", layers=4))
    before = plain_logits(target, TOKENS)
    student = pruned(target, (0, 3))
    assert len(student.model.layers) == student.config.num_hidden_layers == 2
    assert torch.equal(student.model.layers[1].mlp.up_proj.weight, target.model.layers[3].mlp.up_proj.weight)
    weights = trained(student)
    assert not any("embed" in name or "lm_head" in name for name in weights)
    for weight in weights.values():
        weight.data.zero_()
    assert torch.equal(plain_logits(target, TOKENS), before)
    assert torch.equal(plain_logits(pruned(target, range(4)), TOKENS), before)


def test_a_family_that_cannot_be_pruned_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="choose llama"):
        pruned(load_tiny(make_tiny_target(tmp_path / "gpt2", architecture="gpt2")), (0,))


@pytest.mark.parametrize("architecture", ["llama", "llama-tied", "qwen2"])
def test_llama_cpp_computes_the_logits_of_the_trained_model(tmp_path: Path, architecture: Any) -> None:
    folder = make_tiny_target(tmp_path / "target", layers=4, architecture=architecture)
    target = load_tiny(folder)
    source = write_gguf(tmp_path / "source.gguf", target)
    student = pruned(target, (0, 2, 3))
    drawn = torch.Generator().manual_seed(1)
    for weight in trained(student).values():
        weight.data += 0.1 * weight.abs().mean() * torch.randn(weight.shape, generator=drawn)
    expected = plain_logits(student, TOKENS).numpy()
    for fmt, apart in (("f16", 0.01), ("q8_0", 0.15)):
        out = tmp_path / f"{fmt}.gguf"
        export(source, out, trained(student), (0, 2, 3), target.config, fmt)
        found = _llama_logits(out, [TOKENS])[0]
        assert np.linalg.norm(found - expected) < apart * np.linalg.norm(expected)
        assert gguf_tokenizer_digest(out) == gguf_tokenizer_digest(source)
    untrained = plain_logits(pruned(target, (0, 2, 3)), TOKENS).numpy()
    assert np.linalg.norm(untrained - expected) > 0.05 * np.linalg.norm(expected)


def test_right_counts_the_first_and_the_first_four(tmp_path: Path) -> None:
    source = make_tiny_gguf(tmp_path / "target.gguf", vocab=320, layers=4, sharpness=16)
    context = Context(source, cells=64, sequences=1, batch=64, threads=1, outputs=64)
    logits = _llama_logits(source, [TOKENS])[0]
    ranked = np.argsort(-logits, axis=1)
    third, best = int(ranked[19, 2]), int(ranked[19, 0])
    assert measure.right(context, [([*TOKENS[:20], best], 1)]) == (1.0, 1.0)
    assert measure.right(context, [([*TOKENS[:20], third], 1)]) == (0.0, 1.0)
    assert measure.right(context, [([*TOKENS[:20], int(ranked[19, 9])], 1)]) == (0.0, 0.0)
    context.close()
