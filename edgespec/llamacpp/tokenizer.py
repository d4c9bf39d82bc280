"""The tokenizer of a GGUF file in llama.cpp; no weights are read."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from pathlib import Path

import llama_cpp as llama

from edgespec.core.drafting.translation import Translator
from edgespec.core.errors import ModelError
from edgespec.llamacpp.context import quiet
from edgespec.shared.vocabfiles import gguf_metadata, gguf_vocabulary

_LONGEST = 1024
"""Bytes of a vocabulary entry; the longest in use have about 100."""
_KINDS = ("gpt2", "llama")
"""Byte-level BPE and SentencePiece, which cut text as drafting/borders.py supposes."""


class GgufTokenizer:
    """`Tokenizer` of drafting/translation.py."""

    def __init__(self, path: Path) -> None:
        """Raises ModelError: no usable file, or a tokenizer that borders do not hold for."""
        found, metadata = gguf_vocabulary(path), gguf_metadata(path)
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
        self._model, self._vocab = model, llama.llama_model_get_vocab(model)
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

    def close(self) -> None:
        """Frees the vocabulary; no other method may be called afterwards."""
        if self._model is not None:
            llama.llama_model_free(self._model)
            self._model = self._vocab = None


class Translation:
    """Both tokenizers of a pair, and the translator between them."""

    def __init__(self, target: Path, draft: Path) -> None:
        """Raises ModelError: a file without a tokenizer that is translated."""
        self.same = gguf_vocabulary(target).digest == gguf_vocabulary(draft).digest
        """One tokenizer: nothing is to be translated, and `translator` does not exist."""
        if not self.same:
            self.tokenizer = GgufTokenizer(target)
            self.translator = Translator(self.tokenizer, GgufTokenizer(draft))
