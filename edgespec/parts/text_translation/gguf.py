"""The tokenizer of a GGUF file in llama.cpp; no weights are read.

llama.cpp ends its process, by an exception that nothing catches or by an overflow of the stack, on three kinds of text
that a gateway's tokens or a client's may make. `GgufTokenizer.encode` gives it none of them:

1. A byte that the vocabulary of a SentencePiece model has no token for: such a vocabulary is refused.
2. Four bytes that stand for a number beyond Unicode's last (byte-level models): each is replaced by an invalid byte,
   which llama.cpp reads as U+FFFD.
3. A long word: most of its patterns for words are compiled by `std::regex`, which takes a stack frame for each
   character, and 32 KB of letters fill a stack of 8 MB. Longer text is parted.
"""

from __future__ import annotations

import ctypes
import math
import re
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import llama_cpp as llama

from edgespec.core.errors import ModelError
from edgespec.llamacpp.context import quiet
from edgespec.parts.text_translation.tokenizer_file import missing_byte
from edgespec.parts.text_translation.translation import Translator
from edgespec.shared.vocabfiles import gguf_metadata, vocabulary_in

_LONGEST = 1024
"""Bytes of a vocabulary entry; the longest in use have about 100."""
_KINDS = ("gpt2", "llama", "t5")
"""Byte-level BPE, SentencePiece's BPE and Unigram, which cut text as drafting/borders.py supposes. WordPiece keeps no
spaces, so its tokens do not give the text back."""

_BEYOND_UNICODE = re.compile(rb"\xf4[\x90-\xbf][\x80-\xbf]{2}|[\xf5-\xf7][\x80-\xbf]{3}")
"""What llama.cpp decodes to a number above U+10FFFF."""
_INVALID = b"\xff"
"""A byte that no character of UTF-8 has."""
MAX_TEXT = 2048
"""Bytes of a text that llama.cpp gets at once: no pattern of it filled the stack with four times as much."""

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
        if metadata is None:
            metadata = gguf_metadata(path)
        found = vocabulary_in(metadata, path)
        self.tokenizer_digest = found.digest
        self.vocab_size = len(found.entries)
        kind = metadata.get("tokenizer.ggml.model")
        if kind not in _KINDS:
            raise ModelError(f"{path} has a tokenizer of the kind {kind!r}, which is not translated: choose another")

        byte = missing_byte(metadata["tokenizer.ggml.tokens"]) if kind == "llama" else None
        if byte is not None:
            raise ModelError(f"{path} has no token for the byte {byte:#04x}, on which llama.cpp ends: choose another")

        quiet()
        params = llama.llama_model_default_params()
        params.vocab_only = True
        model = llama.llama_model_load_from_file(str(path).encode(), params)
        if not model:
            raise ModelError(f"llama.cpp cannot read the tokenizer of {path}: fetch the file again")

        # llama.cpp's memory would outlive this object: 100 MB for the largest vocabularies.
        weakref.finalize(self, llama.llama_model_free, model).atexit = False
        self._vocab = llama.llama_model_get_vocab(model)
        prefix = metadata.get("tokenizer.ggml.add_space_prefix", kind == "llama")
        self._byte_level = kind == "gpt2"
        self._space_before = not self._byte_level and bool(prefix)
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
        if len(text) <= MAX_TEXT:
            return self._encode(text)
        return [token for part in _parts(text) for token in self._encode(part)]

    def _encode(self, text: bytes) -> list[int]:
        if self._space_before and text[:1] == b" ":
            text = text[1:]
        if self._merges and len(text) <= _SHORT and (merged := self._merges.encode(text)) is not None:
            return merged

        if self._byte_level:
            text = _BEYOND_UNICODE.sub(_INVALID, text)

        room = len(text) + 8
        tokens = (llama.llama_token * room)()
        count = llama.llama_tokenize(self._vocab, text, len(text), tokens, room, False, False)
        return tokens[: max(count, 0)]


def _parts(text: bytes) -> Iterator[bytes]:
    """The text in parts of at most MAX_TEXT bytes, cut before the last space of each if there is one, else before a
    character."""
    begin = 0
    while len(text) - begin > MAX_TEXT:
        end = begin + MAX_TEXT
        space = text.rfind(b" ", begin + 1, end)
        if space > 0:
            end = space
        else:
            # A character of UTF-8 has at most three bytes after its first.
            while end > begin + MAX_TEXT - 3 and text[end] & 0xC0 == 0x80:
                end -= 1
        yield text[begin:end]
        begin = end
    yield text[begin:]


class _Merges:
    """SentencePiece's BPE for short texts, as llama.cpp does it.

    Tokens that the model's maker defined part a text first. Those of one byte, repeated (white space), are found here.
    """

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        entries = metadata["tokenizer.ggml.tokens"]
        kinds = metadata.get("tokenizer.ggml.token_type", ())
        ids = {entry.decode(errors="replace"): token for token, entry in enumerate(entries)}
        scores: Sequence[float] = metadata["tokenizer.ggml.scores"]
        defined = {entry: token for token, (entry, kind) in enumerate(zip(entries, kinds)) if kind == _USER_DEFINED}
        self._runs = {entry: token for entry, token in defined.items() if len(set(entry)) == 1}
        self._run = _any_of(sorted(self._runs, key=len, reverse=True))
        self._other = _any_of({entry[:2] for entry in defined.keys() - self._runs.keys()})
        """How the others begin."""
        self._merged = lru_cache(_MAX_MERGED)(partial(_merge, ids, scores))

    def encode(self, text: bytes) -> list[int] | None:
        """The tokens; None if they cannot be found here."""
        if self._other.search(text):
            return None

        found = list[int]()
        begin = 0
        for run in self._run.finditer(text):
            found += [*self._merged(text[begin : run.start()]), self._runs[run[0]]]
            begin = run.end()
        found += self._merged(text[begin:])
        if -1 in found:
            return None
        return found


def _merge(ids: Mapping[str, int], scores: Sequence[float], text: bytes) -> tuple[int, ...]:
    """Merges the neighbours of the highest score, the first of equal ones; -1 for what is no entry then."""
    try:
        parts = list(text.decode().replace(" ", "\u2581"))
    except UnicodeDecodeError:
        return (-1,)

    def score(at: int) -> float:
        token = ids.get(parts[at] + parts[at + 1])
        if token is None:
            return -math.inf
        return scores[token]

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
