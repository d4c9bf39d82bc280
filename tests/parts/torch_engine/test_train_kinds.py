"""What is trained: labels and losses of heads, a pruned target, the GGUF file of a draft, and their measures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cloud_gateway.core.sources.heads import Level
from edgespec.shared.vocabfiles import gguf_vocabulary
from edgespec_lab.deep_target import _llama_logits
from edgespec_lab.train import eagle
from edgespec_lab.train.draft import export, loss, pruned, right, trained
from edgespec_lab.train.medusa import IGNORED, fresh, labels
from edgespec_lab.train.text import Pairs, lesson, write
from tests.support.families import write_gguf
from tests.support.tiny_target import load_tiny, make_tiny_target, plain_logits

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
    assert eagle.measure(None, torch.zeros(1), text) == [
        {"step": 0, "places": 5, "right": 0.4},
        {"step": 1, "places": 2, "right": 0.5},
        {"step": 2, "places": 1, "right": 0.0},
    ]


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
        assert gguf_vocabulary(out).digest == gguf_vocabulary(source).digest
    untrained = plain_logits(pruned(target, (0, 2, 3)), TOKENS).numpy()
    assert np.linalg.norm(untrained - expected) > 0.05 * np.linalg.norm(expected)
