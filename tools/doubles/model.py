"""Models without weights: logits are a function of the tokens before, so any misplaced token changes the completion."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cloud_gateway.core.verify.accept import FlatTree

Logits = NDArray[np.float32]

VOCAB = 32
EOS = 0


class Model(Protocol):
    """What the doubles of target and draft ask."""

    @property
    def vocab_size(self) -> int:
        """Length of a row of logits."""

    def logits(self, tokens: Sequence[int]) -> Logits:
        """Raw logits after these tokens, shape [vocab_size]."""

    def argmax(self, tokens: Sequence[int]) -> int:
        """The largest of them; of equals the lowest."""

    def entropy(self, tokens: Sequence[int]) -> float:
        """Entropy of their distribution, in nats."""


class HashModel:
    """Logits from a hash of all tokens. With `right` < 1 a draft of it, wrong on a share 1 - `right` of places."""

    def __init__(self, vocab_size: int = VOCAB, right: float = 1.0) -> None:
        self.vocab_size = vocab_size
        self.right = right

    def row(self, tokens: Sequence[int]) -> Logits:
        """The target's logits after these tokens."""
        return next_logits(tokens, self.vocab_size)

    def logits(self, tokens: Sequence[int]) -> Logits:
        """As `Model` says; at a wrong place the best token has moved back to the third place."""
        logits = self.row(tokens)
        digest = hashlib.sha256(bytes(int(t) % 256 for t in tokens[-9:])).digest()
        if int.from_bytes(digest[:4], "little") / 2**32 > self.right:
            best = np.argsort(-logits)[:3]
            logits[np.roll(best, -1)] = logits[best]
        return logits

    def argmax(self, tokens: Sequence[int]) -> int:
        """As `Model` says."""
        return int(self.logits(tokens).argmax())

    def entropy(self, tokens: Sequence[int]) -> float:
        """As `Model` says."""
        logits = self.logits(tokens)
        p = np.exp(logits - logits.max())
        p = p[p > 0] / p.sum()
        return float(-(p * np.log(p)).sum())


class ShortMemory(HashModel):
    """The same of the last token alone, so that the completion soon repeats itself."""

    def row(self, tokens: Sequence[int]) -> Logits:
        """The target's logits after these tokens."""
        return super().row(tokens[-1:])


HASH = HashModel()


def next_logits(tokens: Sequence[int], vocab_size: int = VOCAB) -> Logits:
    """`HashModel`'s logits after these tokens."""
    return _hashed(np.asarray(tokens, dtype=np.int64).tobytes(), vocab_size).copy()


@functools.lru_cache(maxsize=1 << 14)  # in most tests the same few hundred contexts come again and again
def _hashed(tokens: bytes, vocab_size: int) -> Logits:
    seed = int.from_bytes(hashlib.sha256(tokens).digest()[:8], "little")
    return np.random.default_rng(seed).normal(0, 2.5, vocab_size).astype(np.float32)


def plain_greedy(prompt: Sequence[int], count: int, *, ignore_eos: bool = True) -> list[int]:
    """The slow twin of a greedy completion: one token at a time, at the latest `count`, EOS included."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(HASH.argmax(tokens))
        if tokens[-1] == EOS and not ignore_eos:
            break
    return tokens[len(prompt) :]


class Rows:
    """What a model says of one tree; `committed` ends with the tree's row 0."""

    def __init__(self, model: Model, committed: Sequence[int], tree: FlatTree) -> None:
        self._model = model
        self._paths = [list(committed)]
        for parent, token in zip(tree.parents[1:], tree.tokens[1:]):
            self._paths.append([*self._paths[parent], token])

    @functools.cached_property
    def argmax(self) -> list[int]:
        """The most probable token after each row."""
        return [self._model.argmax(path) for path in self._paths]

    def entropy(self, row: int) -> float:
        """In nats, after one row."""
        return self._model.entropy(self._paths[row])

    def logits(self, row: int) -> Logits:
        """Raw logits after one row."""
        return self._model.logits(self._paths[row])
