"""What a target writes for its drafts: the text that it would write alone, and what is held back from training."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.support.tiny_target import load_tiny, make_tiny_target, plain_logits
from tools.target_text import RANKS, split, write


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


def test_a_completion_ends_with_its_end_token_and_is_padding_from_there(tmp_path: Path) -> None:
    model = load_tiny(make_tiny_target(tmp_path / "target"))
    tokens, _ = next(write(model, [[9, 10]], 10, frozenset()).sequences())
    batch = write(model, [[9, 10], [20, 21]], 10, frozenset({tokens[4]}))
    stopped, count = next(batch.sequences())
    assert stopped[2:] == tokens[2 : 2 + count]
    assert stopped[-1] == tokens[4]
    assert not batch.written[0, count:].any()
