"""What a target writes for its drafts: the text that it would write alone, its states, and what is held back."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from edgespec_lab.train.text import RANKS, lesson, pairs, split, write
from tests.support.tiny_target import Architecture, load_tiny, make_tiny_target, plain_logits


def test_held_back_prompts_are_in_no_batch_to_train_on() -> None:
    prompts = [[number] * (1 + number % 5) for number in range(20)]
    train, held = split(prompts, 6, 4, seed=3)
    trained_on, kept_back = ([one for batch in some for one in batch] for some in (train, held))
    assert len(kept_back) == 6
    assert sorted(trained_on + kept_back) == sorted(prompts)
    assert split(prompts, 6, 4, seed=3) == (train, held)
    assert split(prompts, 6, 4, seed=4)[1] != held


def test_batched_text_is_what_the_target_writes_alone(tmp_path: Path) -> None:
    model = load_tiny(make_tiny_target(tmp_path / "target"))
    prompts = [[9, 10, 11, 12, 13], [20, 21], [30]]
    batch = write(model, prompts, 10, frozenset({2}))
    assert batch.ranked.shape == (3, 10, RANKS)
    for number, (tokens, count) in enumerate(batch.sequences()):
        start = len(tokens) - count
        assert tokens[:start] == prompts[number]
        logits = plain_logits(model, tokens)[start - 1 : -1]
        assert logits.argmax(-1).tolist() == tokens[start:]
        expected = logits.log_softmax(-1).topk(RANKS).values
        assert torch.allclose(expected, batch.log_probs[number, :count], atol=1e-4)


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "qwen2"])
def test_states_are_what_the_output_embedding_was_given(architecture: Architecture, tmp_path: Path) -> None:
    model = load_tiny(make_tiny_target(tmp_path / "target", architecture=architecture))
    prompts = [[9, 10, 11], [20]]
    text = pairs([lesson(model, prompts, 6, frozenset())])
    for prompt, (first, end) in zip(prompts, text.spans(), strict=True):
        tokens = [*prompt[:1], *text.tokens[first:end].tolist()]
        assert tokens[: len(prompt)] == prompt
        assert text.written[first : end + 1].tolist() == [False] * (len(prompt) - 1) + [True] * 7
        with torch.inference_mode():
            logits = model.get_output_embeddings()(text.states[first:end])
        torch.testing.assert_close(logits, plain_logits(model, tokens[:-1]), atol=0.3, rtol=0.05)
    assert text.completions().tokens.tolist() == [one for a, b in text.spans() for one in text.tokens[b - 6 : b + 1]]
