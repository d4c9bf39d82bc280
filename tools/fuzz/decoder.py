"""A decoder of bytes from outside, as the fuzz gate sees it, and what one input leads to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tools.fuzz.mutate import Codec


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
        return f"{type(error).__name__} {label}" if label else type(error).__name__
    return f"value {type(value).__name__}"
