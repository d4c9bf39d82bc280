"""The tokenizer of a GGUF file in llama.cpp; no weights are read."""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import llama_cpp as llama

from edgespec.core.drafting.translation import Translator
from edgespec.core.errors import ModelError
from edgespec.llamacpp.context import quiet
from edgespec.shared.vocabfiles import gguf_metadata, vocabulary_in

_LONGEST = 1024
"""Bytes of a vocabulary entry; the longest in use have about 100."""
_KINDS = ("gpt2", "llama", "t5")
"""Byte-level BPE, SentencePiece's BPE and Unigram, which cut text as drafting/borders.py supposes. WordPiece keeps no
spaces, so its tokens do not give the text back."""

_USER_DEFINED = 4
_SHORT = 64
"""Bytes of a text that is merged here: llama.cpp looks for each of Gemma's 6,414 special tokens in a text first, which
takes 0.1 ms between two passes of a model, and merging a word 0.02 ms."""
_MAX_MERGED = 1 << 12
"""Words whose tokens are kept."""


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
        prefix = metadata.get("tokenizer.ggml.add_space_prefix", kind == "llama")
        self._space_before = kind != "gpt2" and bool(prefix)
        self.begin = [] if found.bos is None else [found.bos]
        self.pieces, self.controls = self._read()
        self._merges = _Merges(metadata) if kind == "llama" and not self._space_before else None

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
        if self._merges and len(text) <= _SHORT and (merged := self._merges.encode(text)) is not None:
            return merged
        room = len(text) + 8
        tokens = (llama.llama_token * room)()
        count = llama.llama_tokenize(self._vocab, text, len(text), tokens, room, False, False)
        return tokens[: max(count, 0)]


class _Merges:
    """SentencePiece's BPE for short texts, as llama.cpp does it.

    Tokens that the model's maker defined part a text first. Those of one byte, repeated (white space), are found here.
    """

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        entries, kinds = metadata["tokenizer.ggml.tokens"], metadata.get("tokenizer.ggml.token_type", ())
        self._ids = {entry.decode(errors="replace"): token for token, entry in enumerate(entries)}
        self._scores: Sequence[float] = metadata["tokenizer.ggml.scores"]
        defined = {entry: token for token, (entry, kind) in enumerate(zip(entries, kinds)) if kind == _USER_DEFINED}
        self._runs = {entry: token for entry, token in defined.items() if len(set(entry)) == 1}
        self._run = _any_of(sorted(self._runs, key=len, reverse=True))
        self._other = _any_of({entry[:2] for entry in defined.keys() - self._runs.keys()})
        """How the others begin."""
        self._merged = lru_cache(_MAX_MERGED)(self._merge)

    def encode(self, text: bytes) -> list[int] | None:
        """The tokens; None if they cannot be found here."""
        if self._other.search(text):
            return None
        found, begin = list[int](), 0
        for run in self._run.finditer(text):
            found += [*self._merged(text[begin : run.start()]), self._runs[run[0]]]
            begin = run.end()
        found += self._merged(text[begin:])
        return None if -1 in found else found

    def _merge(self, text: bytes) -> tuple[int, ...]:
        """Merges the neighbours of the highest score, the first of equal ones; -1 for what is no entry then."""
        try:
            parts = list(text.decode().replace(" ", "\u2581"))
        except UnicodeDecodeError:
            return (-1,)
        ids, scores = self._ids, self._scores

        def score(at: int) -> float:
            token = ids.get(parts[at] + parts[at + 1])
            return -math.inf if token is None else scores[token]

        pairs = [score(at) for at in range(len(parts) - 1)]
        while pairs and (best := max(pairs)) > -math.inf:
            at = pairs.index(best)
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
            del pairs[at]
            if at:
                pairs[at - 1] = score(at - 1)
            if at < len(pairs):
                pairs[at] = score(at)
        return tuple(ids.get(part, -1) for part in parts)


def _any_of(texts: Iterable[bytes]) -> re.Pattern[bytes]:
    """The first of these texts; never found if there are none."""
    return re.compile(b"|".join(map(re.escape, texts)) or b"(?!)")


def translation(target: Path, draft: Path, drafts_digest: bytes) -> Translator | None:
    """Between two GGUF files' tokenizers; None if they are one. `drafts_digest`: of the draft's tokenizer.

    Raises ModelError: a file without a tokenizer that is translated.
    """
    metadata = gguf_metadata(target)
    if vocabulary_in(metadata, target).digest == drafts_digest:
        return None
    return Translator(GgufTokenizer(target, metadata), GgufTokenizer(draft))
