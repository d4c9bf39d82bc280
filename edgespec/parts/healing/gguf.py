"""Chats as tokens of a GGUF file's own tokenizer in llama.cpp; no weights are read."""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Iterable
from pathlib import Path

import llama_cpp as llama

from edgespec.core.errors import ModelError
from edgespec.llamacpp.context import quiet

_MAX_PIECE_BYTES = 1024
"""Of a vocabulary entry; the longest in use have about 100."""


class ChatTokens:
    """For text of this machine's own user: a control token that is spelled out in a prompt is taken as one."""

    def __init__(self, path: Path) -> None:
        """Raises ModelError for a file without a usable tokenizer."""
        quiet()
        params = llama.llama_model_default_params()
        params.vocab_only = True
        model = llama.llama_model_load_from_file(os.fsencode(path), params)
        if not model:
            raise ModelError(f"llama.cpp cannot read the tokenizer of {path}: fetch the file again")

        weakref.finalize(self, llama.llama_model_free, model).atexit = False
        self._vocab = llama.llama_model_get_vocab(model)

    def encode(self, text: str) -> list[int]:
        """The tokens of a rendered chat, its control tokens too."""
        data = text.encode()
        max_tokens = len(data) + 8
        tokens = (llama.llama_token * max_tokens)()

        add_special = False
        parse_special = True
        count = llama.llama_tokenize(
            self._vocab,
            data,
            len(data),
            tokens,
            max_tokens,
            add_special,
            parse_special,
        )
        return list(tokens[: max(count, 0)])

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of tokens; control tokens have none."""
        buffer = ctypes.create_string_buffer(_MAX_PIECE_BYTES)
        text = b""
        for token in tokens:
            size = llama.llama_token_to_piece(self._vocab, token, buffer, _MAX_PIECE_BYTES, 0, False)
            text += buffer.raw[: max(size, 0)]

        return text.decode(errors="ignore").strip()
