"""The tokenizer of a GGUF file in llama.cpp; no weights are read."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llama_cpp as llama

from edgespec.core.drafting.translation import Translator
from edgespec.core.errors import ModelError
from edgespec.llamacpp.context import quiet
from edgespec.shared.vocabfiles import gguf_metadata, vocabulary_in

_LONGEST = 1024
"""Bytes of a vocabulary entry; the longest in use have about 100."""
_KINDS = ("gpt2", "llama")
"""Byte-level BPE and SentencePiece, which cut text as drafting/borders.py supposes."""


class GgufTokenizer:
    """`Tokenizer` of drafting/translation.py."""

    def __init__(self, path: Path, metadata: Mapping[str, Any] | None = None) -> None:
        """`metadata`: the file's, if it is read already.

        Raises ModelError: no usable file, or a tokenizer that borders do not hold for.
        """
        metadata = gguf_metadata(path) if metadata is None else metadata
        found = vocabulary_in(metadata, path)
        self.tokenizer_digest, self.vocab_size = found.digest, len(found.entries)
        kind = metadata.get("tokenizer.ggml.model")
        if kind not in _KINDS:
            raise ModelError(f"{path} has a tokenizer of the kind {kind!r}, which is not translated: choose another")
        quiet()
        params = llama.llama_model_default_params()
        params.vocab_only = True
        model = llama.llama_model_load_from_file(str(path).encode(), params)
        if not model:
            raise ModelError(f"llama.cpp cannot read the tokenizer of {path}: fetch the file again")
        self._vocab = llama.llama_model_get_vocab(model)
        self._space_before = kind == "llama" and bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
        self.pieces, self.controls = self._read()

    def _read(self) -> tuple[Sequence[bytes | None], Mapping[int, bytes]]:
        buffer = ctypes.create_string_buffer(_LONGEST)
        pieces: list[bytes | None] = []
        controls: dict[int, bytes] = {}
        for token in range(llama.llama_vocab_n_tokens(self._vocab)):
            size = max(llama.llama_token_to_piece(self._vocab, token, buffer, _LONGEST, 0, True), 0)
            if llama.llama_vocab_is_control(self._vocab, token):
                controls[token] = buffer.raw[:size]
                pieces.append(None)
            else:
                pieces.append(buffer.raw[:size])
        return pieces, controls

    def encode(self, text: bytes) -> list[int]:
        """As of `Tokenizer`. A tokenizer that puts a space before a text gets one without its first space; a text
        without a space to take away begins with another token there."""
        if self._space_before and text[:1] == b" ":
            text = text[1:]
        room = len(text) + 8
        tokens = (llama.llama_token * room)()
        count = llama.llama_tokenize(self._vocab, text, len(text), tokens, room, False, False)
        return tokens[: max(count, 0)]


@dataclass(frozen=True, slots=True)
class Translation:
    """The target's tokenizer, and the translator from the draft's."""

    tokenizer: GgufTokenizer
    translator: Translator


def translation(target: Path, draft: Path, drafts_digest: bytes) -> Translation | None:
    """Between two GGUF files' tokenizers; None if they are one. `drafts_digest`: of the draft's tokenizer.

    Raises ModelError: a file without a tokenizer that is translated.
    """
    metadata = gguf_metadata(target)
    if vocabulary_in(metadata, target).digest == drafts_digest:
        return None
    tokenizer = GgufTokenizer(target, metadata)
    return Translation(tokenizer, Translator(tokenizer, GgufTokenizer(draft)))
