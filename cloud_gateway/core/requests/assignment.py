"""Giving a request to a worker: who has it since when, and the messages that tell it the whole prefix."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from edgespec.core.protocol.messages import MAX_TOKENS_PER_FRAME, Commit, Open, Sampling
from edgespec.core.protocol.prefix import Prefix

OPEN_TOKENS = 4096
"""Token ids sent in the `Open` itself; the rest of a long prompt follows in `Commit`s."""


@dataclass(slots=True)
class Assignment:
    """The worker that drafts for a request, and since which epoch."""

    worker: str
    epoch: int
    name: str
    """The worker's, for people."""
    ready: bool = False
    """It has sent a candidate, so it has read the prompt."""
    frames: int = 0
    """Frames that brought candidates."""


def opening(request: int, epoch: int, prefix: Prefix, sampling: Sampling, scope: bytes) -> Iterator[Open | Commit]:
    """The messages in their order; `scope` is that of the worker's prefix cache."""
    length = len(prefix)
    yield Open(request, epoch, length, prefix.tokens[:OPEN_TOKENS], sampling, scope)
    for start in range(OPEN_TOKENS, length, MAX_TOKENS_PER_FRAME):
        end = min(start + MAX_TOKENS_PER_FRAME, length)
        yield Commit(request, epoch, start, prefix.tokens[start:end], prefix.digest_at(end))
