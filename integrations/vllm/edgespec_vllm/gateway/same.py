"""Whether a vLLM that was started elsewhere serves `target.model`: token ids go to it, which another one misreads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from edgespec.core.errors import ModelError
from edgespec_vllm.gateway.server import Server

TEXTS = (
    "Hello, world! It's 12:34, isn't it?", "  def f(x):\n\treturn x ** 2  # 3.14159", "1234567890 0x7f\r\n\r\n",
    "Übergröße, 東京タワー, 🚀 e\u0301, Привет",
)  # fmt: skip
SPREAD = 1_000
"""Tokens of the vocabulary whose texts are compared too, at equal distances."""
PIECE = 50


def samples(tokenizer: Any) -> Iterator[str]:
    """Texts in which tokenizers differ."""
    yield from TEXTS
    ids = list(range(0, len(tokenizer), max(1, len(tokenizer) // SPREAD)))
    for start in range(0, len(ids), PIECE):
        yield tokenizer.decode(ids[start : start + PIECE])


async def check_same(server: Server, name: str, tokenizer: Any, vocab_size: int) -> None:
    """Compares what vLLM makes of texts, and the first token id that it refuses. Raises ModelError.

    `name`: the model's at vLLM.
    """
    for text in samples(tokenizer):
        asked = {"model": name, "prompt": text, "add_special_tokens": False}
        status, found = await server.ask("/tokenize", asked)
        if status != 200 or not isinstance(found, dict):
            raise ModelError(f"vLLM does not answer /tokenize as expected (status {status}).")
        if found.get("tokens") != tokenizer.encode(text, add_special_tokens=False):
            raise ModelError(_differs("another tokenizer"))
    size = max(vocab_size, len(tokenizer))
    for token, wanted in ((size - 1, 200), (size, 400)):
        status, _ = await server.ask("/v1/completions", {"model": name, "prompt": [token], "max_tokens": 1})
        if status != wanted:
            raise ModelError(_differs(f"another vocabulary (status {status} for token {token})"))


def _differs(what: str) -> str:
    return f"The model that vLLM serves has {what} than `target.model`: name the folder that it serves."
