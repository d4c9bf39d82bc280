"""Slots of a target, with a prompt in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from cloud_gateway.core.verify.accept import FlatTree
from cloud_gateway.models.target_model import Target

SCOPE = b"scope"


def begin(target: Target, tokens: Sequence[int], chunk: int = 1000, scope: bytes = SCOPE) -> int:
    """Opens a slot and prefills all but the last token."""
    slot, reused = target.open(tokens, scope)
    for start in range(reused, len(tokens) - 1, chunk):
        target.prefill(slot, tokens[start : min(start + chunk, len(tokens) - 1)])
    return slot


@contextmanager
def opened(target: Target, tokens: Sequence[int], chunk: int = 1000) -> Iterator[int]:
    """A slot of these tokens, closed at the end, also after an error."""
    slot = begin(target, tokens, chunk)
    try:
        yield slot
    finally:
        target.close(slot)


def chain(*tokens: int) -> FlatTree:
    return FlatTree(tokens, range(-1, len(tokens) - 1), range(len(tokens)))
