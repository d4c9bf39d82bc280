"""Whether a depth-expanded target computes the same function: greedy tokens and float32 logits, prompt by prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

PROMPTS = (
    "Name three uses of a paper clip, and say which one you like best.",
    "What is 17 times 23? Explain each step.",
    "Write two lines of a poem about rain in March.",
)
TOKENS = 24
"""Greedy tokens of each prompt."""
MAX_ROWS = 64
"""Rows of one llama.cpp decode that the check asks logits of."""
Logits = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Comparison:
    """What was compared, and how far apart the logits were at most."""

    tokens: int
    equal_tokens: int
    max_difference: float
    """Largest absolute difference of a float32 logit in torch."""
    gguf_max_difference: float
    """The same in llama.cpp, on the formats of the file."""
    same_tokenizer: bool

    @property
    def same(self) -> bool:
        """Every token and the tokenizer's digest."""
        return self.tokens == self.equal_tokens and self.same_tokenizer


def compare(plain_gguf: Path, plain: Path, deep_gguf: Path, deep: Path) -> Comparison:
    """Greedy completions of PROMPTS by both, in torch (folders, float32) and llama.cpp (GGUF files)."""
    from edgespec.shared.hf_vocabulary import hf_tokenizer_digest
    from edgespec.shared.vocabfiles import gguf_tokenizer_digest

    digests = {gguf_tokenizer_digest(plain_gguf), gguf_tokenizer_digest(deep_gguf), hf_tokenizer_digest(deep)}
    expected, prompts = _greedy(plain, None)
    found, _ = _greedy(deep, expected)
    rows = [[*prompt, *(int(np.argmax(row)) for row in logits)][:MAX_ROWS] for prompt, logits in zip(prompts, expected)]
    ggufs = [_llama_logits(path, rows) for path in (plain_gguf, deep_gguf)]
    pairs = list(zip(_flat(expected), _flat(found), strict=True)) + list(zip(_flat(ggufs[0]), _flat(ggufs[1])))
    return Comparison(
        tokens=len(pairs),
        equal_tokens=sum(int(np.argmax(a)) == int(np.argmax(b)) for a, b in pairs),
        max_difference=_difference(expected, found),
        gguf_max_difference=_difference(*ggufs),
        same_tokenizer=len(digests) == 1,
    )


def _greedy(folder: Path, follow: Sequence[Logits] | None) -> tuple[list[Logits], list[list[int]]]:
    """Logits after each emitted token, [TOKENS, vocab] for each prompt, one token a pass; and the prompts' tokens.

    With `follow`, the tokens taken are those of these logits, so that one difference does not change all that follow.
    """
    import torch

    from cloud_gateway.models.target_model.load import load
    from cloud_gateway.models.text import Text

    loaded = load(folder, "float32", "cpu")
    text = Text(loaded.tokenizer)
    prompts = [text.render_chat([{"role": "user", "content": prompt}]) for prompt in PROMPTS]
    for weight in loaded.model.parameters():  # a mapped file's weights lie at odd addresses, where sums are split
        weight.data = weight.data.clone()  # differently, in the last bits; so do several threads
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode():
            followed: list[Logits | None] = list(follow) if follow else [None] * len(prompts)
            return [_one(loaded.model, *one) for one in zip(prompts, followed, strict=True)], prompts
    finally:
        torch.set_num_threads(threads)


def _one(model: Any, prompt: list[int], follow: Logits | None) -> Logits:
    import torch

    rows, cache, tokens = [], None, prompt
    for step in range(TOKENS):
        out = model(torch.tensor([tokens]), past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        rows.append(out.logits[0, -1].numpy())
        tokens = [int(np.argmax(rows[-1] if follow is None else follow[step]))]
    return np.stack(rows)


def _llama_logits(path: Path, prompts: Sequence[Sequence[int]]) -> list[Logits]:
    """Logits after each token of each sequence, in llama.cpp."""
    from edgespec.llamacpp.context import Context, Row

    context = Context(path, cells=MAX_ROWS, sequences=MAX_ROWS, batch=MAX_ROWS, threads=1)
    found = []
    for tokens in prompts:
        context.trim(0, 0)
        context.decode([Row(token, place, (0,), wants_logits=True) for place, token in enumerate(tokens)])
        found.append(np.stack([context.logits(i).copy() for i in range(len(tokens))]))
    context.close()
    return found


def _flat(logits: Sequence[Logits]) -> list[Logits]:
    return [row for one in logits for row in one]


def _difference(one: Sequence[Logits], other: Sequence[Logits]) -> float:
    return max(float(np.max(np.abs(a - b))) for a, b in zip(one, other, strict=True))
