"""The target's tokenizer as a gateway sends it to a worker whose draft model has another one.

It is what a GGUF file says of it under `tokenizer.ggml.`, in a closed msgpack map: neither a file that some library
reads as it came, nor a chat template, nor a table of characters for normalisation, which is a format of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from edgespec.core.errors import UNDECODABLE, ModelError
from edgespec.core.protocol.messages import MAX_TOKENIZER_BYTES

MAX_ENTRIES = 1 << 20
"""Four times as many as the largest vocabulary in use has."""
Entry = Annotated[bytes, Meta(max_length=1024)]
Entries = Annotated[list[Entry], Meta(max_length=MAX_ENTRIES)]
USUAL_UNKNOWN = 2
"""The unknown token of a Unigram model in llama.cpp, if the file names none."""
Id = Annotated[int, Meta(ge=0, lt=MAX_ENTRIES)]


class TokenizerFile(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Fields are named and mean as in the GGUF format."""

    model: Literal["gpt2", "llama", "t5"]
    tokens: Annotated[Entries, Meta(min_length=1)]
    token_type: Annotated[list[Annotated[int, Meta(ge=0, le=6)]], Meta(max_length=MAX_ENTRIES)]
    scores: Annotated[list[float], Meta(max_length=MAX_ENTRIES)] | None = None
    merges: Entries | None = None
    pre: Annotated[str, Meta(pattern=r"^[\w.-]{1,40}\Z")] | None = None
    bos_token_id: Id | None = None
    eos_token_id: Id | None = None
    unknown_token_id: Id | None = None
    add_bos_token: bool | None = None
    add_space_prefix: bool | None = None
    remove_extra_whitespaces: bool | None = None


def packed(metadata: Mapping[str, Any]) -> bytes:
    """The tokenizer of a GGUF file with this metadata; empty where it is of a kind that is not translated."""
    found = {name: metadata.get(f"tokenizer.ggml.{name}") for name in TokenizerFile.__struct_fields__}
    data = msgspec.msgpack.encode({name: value for name, value in found.items() if value is not None})
    try:
        unpacked(data)
    except ModelError:
        return b""

    return data


def unpacked(data: bytes) -> TokenizerFile:
    """Raises ModelError for anything but a tokenizer whose parts fit each other."""
    try:
        if len(data) <= MAX_TOKENIZER_BYTES:
            file = msgspec.msgpack.decode(data, type=TokenizerFile)
        else:
            file = None
    except UNDECODABLE:
        file = None
    size = len(file.tokens) if file else 0
    if (
        file is None
        or len(file.token_type) != size
        or (file.scores is not None and (len(file.scores) != size or not all(map(math.isfinite, file.scores))))
        or (file.model != "gpt2" and file.scores is None)
        or (file.model == "gpt2" and file.merges is None)
        or any((one or 0) >= size for one in (file.bos_token_id, file.eos_token_id, file.unknown_token_id))
    ):
        raise ModelError("it is no tokenizer of a kind that is translated")

    if file.model == "llama" and (byte := missing_byte(file.tokens)) is not None:
        raise ModelError(f"its vocabulary has no token for the byte {byte:#04x}, on which llama.cpp ends")
    if file.model == "t5" and file.unknown_token_id is None and size <= USUAL_UNKNOWN:
        raise ModelError("its vocabulary has no token for what it cannot write")

    return file


def missing_byte(tokens: Sequence[bytes]) -> int | None:
    """The first byte that a SentencePiece vocabulary has no token for; None if it has all 256.

    llama.cpp writes a character without a token by its bytes, `<0xE2>` or the byte itself, and ends its process if it
    has neither. It reads an entry up to its first zero byte.
    """
    entries = frozenset(tokens)
    for byte in range(256):
        itself = bytes([byte]) in entries and byte != 0
        if not itself and f"<0x{byte:02X}>".encode() not in entries:
            return byte
    return None
