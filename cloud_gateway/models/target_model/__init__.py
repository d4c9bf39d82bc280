"""Target models behind one Protocol; code outside this folder does not depend on which one runs.

Public, by module:

- `inside`: `DrawingTarget`, `LayersTarget`, `StateReader`, `StatesTarget`
- `llamacpp`: `LlamaCppTarget`
- `load`: `end_tokens`, `first_line`, `folder_digest`, `gguf_tokenizer`, `load_tokenizer`, `load_vocabulary`,
  `LoadedModel`, `made_once`, `naming_model`, `quiet_transformers`, `LoadedVocabulary`
- `slots`: `argmax_on_host`, `check_self_test`, `groups`, `HostEntropy`, `MIN_LOGIT`, `SELF_TEST_LIMIT`, `SlotTable`
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cloud_gateway.core.verify.accept import FlatTree


class Verified(Protocol):
    """The result of one verify pass over a tree of n rows. `argmax` is computed at once, the rest when called."""

    @property
    def argmax(self) -> Sequence[int]:
        """The target's most probable token after each row, n of them.

        NOT_COMPUTED after a row that it has not computed, which is never row 0; the walk ends before such a row.
        """

    def entropy(self, row: int) -> float:
        """Entropy in nats of the target's distribution (temperature 1) after one row."""

    def logits(self, row: int) -> NDArray[np.float32]:
        """Raw logits after one row, shape [vocab_size]."""


@dataclass(frozen=True, slots=True)
class Work:
    """One request's share of a pass: its slot and its tree."""

    slot: int
    tree: FlatTree


@dataclass(frozen=True, slots=True)
class Pass:
    """The size and measured time of one forward pass."""

    rows: int
    seconds: float


class Target(Protocol):
    """A target model with KV slots. Owned by one thread; no method is safe to call from two.

    A slot holds the keys and values of the request's committed tokens except the last one, which is row 0
    of the next `verify`.
    """

    vocab_size: int
    context: int
    """Maximum number of tokens in one slot, prompt and completion together."""
    slots: int
    kv_tokens: int
    """Entries of the KV cache for all slots together."""
    eos: frozenset[int]

    @property
    def passes(self) -> Sequence[Pass]:
        """The forward passes of the last `verify`: usually one over all rows; the cost curve is learnt from each."""

    def open(self, tokens: Sequence[int], scope: bytes = b"", room: int = 0) -> tuple[int, int]:
        """Claims a free slot for a prompt; returns (slot, reused): KV of the first `reused` tokens is in it already.

        `room`: entries that it may take, those of a tree included; 0 for an equal share of `kv_tokens`. Only entries
        of the same `scope` are reused, and none where it is empty. Raises IndexError when no slot is free, or the
        others leave too little room.
        """

    def resize(self, slot: int, room: int) -> None:
        """Changes the entries that a slot in use may take. Raises IndexError where the others leave too little room."""

    def prefill(self, slot: int, tokens: Sequence[int]) -> None:
        """Appends these committed tokens' keys and values; the caller cuts long prompts into chunks."""

    def verify(self, batch: Sequence[Work]) -> Sequence[Verified]:
        """Runs the model over the trees of several requests, in as few passes as it can, and sets `passes`.

        The trees' KV entries stay until `keep`.
        """

    def keep(self, slot: int, rows: Sequence[int]) -> None:
        """After `verify`: keeps these rows' entries (row 0 first, one path) and drops the other rows of the tree."""

    def close(self, slot: int) -> None:
        """Frees the slot; its entries may be reused by a later `open` of the same scope with the same beginning."""


class LoadedTarget(Target, Protocol):
    """A target as its engine loads it: it also uses the time in which no request waits."""

    @property
    def exact(self) -> bool:
        """Whether a tree's logits equal those of its paths alone, bit for bit: by design and in a test at the start."""

    def idle(self) -> None:
        """Called on the engine's thread if no request waits; it may try other numbers of threads for
        some milliseconds."""
