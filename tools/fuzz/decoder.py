"""A decoder of bytes from outside, as the fuzz gate sees it, and what one input leads to.

Inputs for a decoder: valid ones with a few mutations, rarely an unchanged one or arbitrary bytes.
"""

from __future__ import annotations

import functools
import random
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

MAX_BYTES = 64 * 1024
WRONG: Sequence[Any] = (None, True, -1, 0, 2**63, 1e308, 0.5, "", "x", [], [[]], {}, {"a": None})
TOKENS: Sequence[bytes] = (
    b"\x00", b"\xff", b"\xc1", b"\xe2\x80\xae", b"\\q", b"\\ud800", b"\r\n", b" ", b'"', b"-", b"=", b"[[",
    b"0", b"-1", b"1e999", b"NaN", b"null", b"true", b"9" * 5000, b"0x" + b"f" * 5000, b"\x1b[2J",
    b"[" * 3000, b'{"a":' * 2000, b"\x91" * 3000, b"\x81\xa1a" * 2000, b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff",
    *(value.to_bytes(size, order) for size in (2, 4, 8) for value in (0, 1, 2**(8 * size - 1) - 1, 2**(8 * size) - 1)
      for order in ("big", "little")),
    struct.pack(">d", float("nan")), struct.pack(">d", float("inf")),
)  # fmt: skip
"""What decoders often get wrong: bad UTF-8, numbers that are too long or none, lengths, and deep nesting in JSON, TOML
and msgpack."""


class Codec(NamedTuple):
    """A format whose values can be changed as values."""

    load: Callable[[bytes], Any]
    dump: Callable[[Any], bytes]


class Stored(NamedTuple):
    """A file that a part reads: its name, what reads it, valid contents, what it raises for others, and the format."""

    name: str
    read: Callable[[Path], object]
    samples: list[bytes]
    refuses: type[Exception] | tuple[()] = ()
    codec: Codec | None = None


MSGPACK = Codec(msgspec.msgpack.decode, msgspec.msgpack.encode)
JSON = Codec(msgspec.json.decode, msgspec.json.encode)


def mutated(rng: random.Random, samples: Sequence[bytes], codec: Codec | None = None) -> bytes:
    """An input of at most `MAX_BYTES` made from valid ones."""
    data = _one(rng, samples)
    kind = rng.random()
    if kind < 0.02:
        return data
    if kind < 0.06:
        return rng.randbytes(int(rng.random() ** 3 * 300))

    if codec is not None and kind < 0.45:
        data = codec.dump(spoiled(_loaded(codec, data), rng))
        if kind < 0.35:
            return data[:MAX_BYTES]
    while True:
        data = _altered(rng, data, samples)[:MAX_BYTES]
        if rng.random() < 0.7:
            return data


def spoiled(value: Any, rng: random.Random, wrong: Sequence[Any] = WRONG) -> Any:
    """The value with one part, at any depth, of another kind, missing, or beside one that is unknown."""
    if not isinstance(value, dict | list) or not value or rng.random() < 0.2:
        return _one(rng, wrong)

    key = _one(rng, list(value) if isinstance(value, dict) else range(len(value)))
    if rng.random() < 0.3:
        if isinstance(value, list):
            if rng.random() < 0.5:
                return [*value[:key], *value[key + 1 :]]
            return [*value, value[key]]
        return {name: one for name, one in value.items() if name != key} | ({"?": 1} if rng.random() < 0.5 else {})

    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    copy[key] = spoiled(value[key], rng, wrong)
    return copy


def _altered(rng: random.Random, data: bytes, samples: Sequence[bytes]) -> bytes:
    """One mutation: a span of the bytes is replaced."""
    size = len(data)
    start = int(rng.random() * (size + 1))
    end = min(size, start + 1 + int(rng.random() ** 4 * size))
    match int(rng.random() * 8):
        case 0 | 1:
            middle = bytes([data[start] ^ 1 << int(rng.random() * 8)]) if start < size else b"\x80"
            end = start + 1
        case 2:
            return data[:start]
        case 3:
            middle = b""
        case 4:
            middle = data[start:end] * int(2 + rng.random() ** 8 * 3000)
        case 5:
            middle = rng.randbytes(end - start)
        case 6:
            middle = _one(rng, TOKENS)
            end = start if rng.random() < 0.5 else start + len(middle)
        case _:
            other = _one(rng, samples)
            middle = other[start if rng.random() < 0.5 else int(rng.random() * len(other)) :]
            end = size if rng.random() < 0.5 else end
    return data[:start] + middle + data[end:]


@functools.lru_cache(maxsize=1024)
def _loaded(codec: Codec, data: bytes) -> Any:
    return codec.load(data)


def _one(rng: random.Random, of: Sequence[Any]) -> Any:
    return of[int(rng.random() * len(of))]  # `choice` takes several times as long


class Decoder(NamedTuple):
    """Any bytes give a value or the error `refuses`: no other exception, no warning, bounded time and memory."""

    decode: Callable[[bytes], object]
    """With all that is done with the value before it is trusted."""
    samples: Sequence[bytes]
    """Inputs that are mutated; the first one is valid."""
    refuses: type[Exception] | tuple[()] = ()
    codec: Codec | None = None
    """The format of its inputs, where their values are to be changed as well as their bytes."""
    cost: int = 1
    """How many times fewer inputs it gets, since each takes longer."""


def outcome(decoder: Decoder, data: bytes) -> str:
    """The kind of value or refusal; lets any other exception through, with the input."""
    try:
        value = decoder.decode(data)
    except Exception as error:
        if not decoder.refuses or not isinstance(error, decoder.refuses):
            error.add_note(f"input: {data!r}")
            raise
        label = getattr(error, "reason", None) or getattr(error, "code", None)
        if label:
            return f"{type(error).__name__} {label}"
        return type(error).__name__

    return f"value {type(value).__name__}"
