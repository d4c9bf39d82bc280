"""Target engines behind one Protocol; nothing outside this folder knows which one runs (design section 8)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cloud_gateway.core.flatten import FlatTree


class Verified(Protocol):
    """What one verify pass says of a tree of n rows. Small arrays are ready; full rows are fetched only when asked."""

    @property
    def argmax(self) -> Sequence[int]:
        """The target's most probable token after each row, n of them."""

    def entropy(self, row: int) -> float:
        """Entropy in nats of the target's distribution (temperature 1) after one row; computed when asked for."""

    def logits(self, row: int) -> NDArray[np.float32]:
        """Raw logits after one row, shape [vocab_size]."""


@dataclass(frozen=True, slots=True)
class Work:
    """One request's share of a pass: its slot and its tree."""

    slot: int
    tree: FlatTree


@dataclass(frozen=True, slots=True)
class Pass:
    """One forward pass of the model, as it was measured."""

    rows: int
    seconds: float


class Target(Protocol):
    """A target model with KV slots. Owned by one thread; no method is safe to call from two.

    A slot holds the keys and values of the request's committed tokens except the last one, which is row 0
    of the next `verify`.
    """

    vocab_size: int
    context: int
    """Most tokens that one slot can hold, prompt and answer together."""
    slots: int
    eos: frozenset[int]

    @property
    def passes(self) -> Sequence[Pass]:
        """The forward passes of the last `verify`: one for each request, or one for several, as the engine can."""

    def open(self, tokens: Sequence[int], scope: bytes = b"") -> tuple[int, int]:
        """Claims a free slot for a prompt; returns (slot, reused): KV of the first `reused` tokens is there already.

        Only what a prompt of the same `scope` left is reused, and nothing where it is empty. Raises IndexError when
        no slot is free.
        """

    def prefill(self, slot: int, tokens: Sequence[int]) -> None:
        """Appends these committed tokens' keys and values; the caller cuts long prompts into chunks."""

    def verify(self, batch: Sequence[Work]) -> Sequence[Verified]:
        """Runs the model over the trees of several requests, in as few passes as it can, and leaves what those passes
        cost in `passes`. The trees' KV entries stay until `keep`."""

    def keep(self, slot: int, rows: Sequence[int]) -> None:
        """After `verify`: keeps these rows' entries (row 0 first, one path) and drops the tree's others."""

    def close(self, slot: int) -> None:
        """Frees the slot; its entries may serve a later `open` of the same scope with the same beginning."""
