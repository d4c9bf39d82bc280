"""Tokenizers as a gateway may send them (`TokenizerFile`): some end llama.cpp's process, and some take long."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from edgespec.parts.text_translation.tokenizer_file import TokenizerFile
from tests.support.tiny_tokenizer import byte_alphabet

NORMAL = 1
UNKNOWN = 2
CONTROL = 3
USER_DEFINED = 4
BYTE = 6
WORDS = [b"\xe2\x96\x81the", b"\xe2\x96\x81a", b"t", b"h", b"e", b"a", b"th", b"\xe2\x96\x81"]


def sentencepiece(bytes_: Sequence[int] = range(256), *, extra: Sequence[bytes] = (), kind: int = BYTE) -> bytes:
    """A SentencePiece model with tokens for these bytes; the `extra` entries are of this kind."""
    fallback = [f"<0x{byte:02X}>".encode() for byte in bytes_]
    tokens = [b"<unk>", b"<s>", b"</s>", *fallback, *WORDS, *extra]
    kinds = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * len(fallback), *[NORMAL] * len(WORDS), *[kind] * len(extra)]
    scores = [-float(number) for number in range(len(tokens))]
    return encoded(model="llama", tokens=tokens, token_type=kinds, scores=scores, unknown_token_id=0)


def byte_level(pre: str = "gpt-2", *, extra: Sequence[bytes] = (), kind: int = NORMAL, bytes_: int = 256) -> bytes:
    """A byte-level model with tokens for the first `bytes_` bytes."""
    alphabet = [text.encode() for _, text in sorted(byte_alphabet().items())][:bytes_]
    tokens = [*alphabet, "\u0120a".encode(), b"ab", b"<s>", *extra]
    kinds = [*[NORMAL] * (len(tokens) - len(extra) - 1), CONTROL, *[kind] * len(extra)]
    return encoded(model="gpt2", tokens=tokens, token_type=kinds, merges=["\u0120 a".encode(), b"a b"], pre=pre)


def unigram(unknown: int | None = 2, *, extra: Sequence[bytes] = ()) -> bytes:
    """A Unigram model, which has no token for most characters."""
    tokens = [b"<pad>", b"</s>", b"<unk>", *WORDS, *extra]
    kinds = [CONTROL, CONTROL, UNKNOWN, *[NORMAL] * (len(tokens) - 3)]
    scores = [-float(number) for number in range(len(tokens))]
    more = {} if unknown is None else {"unknown_token_id": unknown}
    return encoded(model="t5", tokens=tokens, token_type=kinds, scores=scores, **more)


def encoded(**fields: Any) -> bytes:
    """The file as it is on the wire; not checked."""
    return msgspec.msgpack.encode(fields)


def without(data: bytes, *tokens: bytes) -> bytes:
    """The same tokenizer without these entries."""
    file = msgspec.msgpack.decode(data, type=TokenizerFile)
    kept = [number for number, token in enumerate(file.tokens) if token not in tokens]
    scores = None if file.scores is None else [file.scores[number] for number in kept]
    entries = [file.tokens[number] for number in kept]
    kinds = [file.token_type[number] for number in kept]
    return msgspec.msgpack.encode(msgspec.structs.replace(file, tokens=entries, token_type=kinds, scores=scores))
