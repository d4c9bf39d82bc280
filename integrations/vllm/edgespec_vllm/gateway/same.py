"""Whether a vLLM that was started elsewhere serves `target.model`: token ids go to it, which another one misreads."""

from __future__ import annotations

from typing import Any

from edgespec.core.errors import ModelError
from edgespec_vllm.gateway.server import Server

TEXTS = (
    "Hello, world! It's 12:34, isn't it?", "  def f(x):\n\treturn x ** 2  # 3.14159", "1234567890 0x7f\r\n\r\n",
    "Übergröße, 東京タワー, 🚀 e\u0301, Привет",
)  # fmt: skip
PIECE = 2_000
"""Tokens whose text is compared at once; all of the vocabulary are."""


async def check_same(server: Server, name: str, tokenizer: Any, vocab_size: int) -> None:
    """Compares what vLLM makes of texts and of each token, and the first token id that it refuses. Raises ModelError.

    `name`: the model's at vLLM.
    """
    for text in TEXTS:
        found = await _said(server, "/tokenize", {"model": name, "prompt": text, "add_special_tokens": False}, "tokens")
        if found != tokenizer.encode(text, add_special_tokens=False):
            raise ModelError(_differs("another tokenizer"))
    for start in range(0, len(tokenizer), PIECE):
        tokens = list(range(start, min(start + PIECE, len(tokenizer))))
        found = await _said(server, "/detokenize", {"model": name, "tokens": tokens}, "prompt")
        if found != tokenizer.decode(tokens):
            raise ModelError(_differs("another tokenizer"))
    size = max(vocab_size, len(tokenizer))
    for token, wanted in ((size - 1, 200), (size, 400)):
        status, _ = await server.ask("/v1/completions", {"model": name, "prompt": [token], "max_tokens": 1})
        if status != wanted:
            raise ModelError(_differs(f"another vocabulary (status {status} for token {token})"))


async def _said(server: Server, path: str, body: dict[str, Any], field: str) -> Any:
    """A field of the response. Raises ModelError."""
    status, found = await server.ask(path, body)
    if status != 200 or not isinstance(found, dict):
        raise ModelError(f"vLLM does not answer {path} as expected (status {status}).")
    return found.get(field)


def _differs(what: str) -> str:
    return f"The model that vLLM serves has {what} than `target.model`: name the folder that it serves."
