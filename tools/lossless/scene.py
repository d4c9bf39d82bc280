"""What is sampled from: a small target and its draft, whose logits are a table over the paths of an answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cloud_gateway.core.verify.accept import FlatTree
from cloud_gateway.core.verify.shared_noise import path_to
from edgespec.core.protocol.messages import Sampling

Path = tuple[int, ...]
Logits = NDArray[np.float32]

RULES = {
    "plain": Sampling(temperature=1.0),
    "nucleus": Sampling(temperature=0.7, top_p=0.95),
    "penalties": Sampling(
        temperature=1.2, top_k=8, min_p=0.01, repetition_penalty=1.3, presence_penalty=0.6, frequency_penalty=0.5
    ),
    "bias": Sampling(temperature=0.9, repetition_penalty=1.4, frequency_penalty=0.8, logit_bias={1: 1.5, 4: -2.0}),
    "real": Sampling(temperature=1.0, top_k=8, top_p=0.95),
    "real-penalties": Sampling(
        temperature=1.3, top_k=6, min_p=0.02, repetition_penalty=1.2, presence_penalty=1.0, frequency_penalty=0.5
    ),
}
"""The sampling parameters that the cases take in turns; those of the synthetic target come first."""
SYNTHETIC_RULES = [name for name in RULES if not name.startswith("real")]


@dataclass
class Scene:
    """A prompt, and the raw logits of target and draft after each path of the answer (both remembered)."""

    prompt: Sequence[int]
    length: int
    """Tokens of an answer."""
    target: Callable[[Path], Logits]
    draft: Callable[[Path], Logits]
    tokens: NDArray[np.int64]
    """The tokens that may occur, ascending: for a real model far fewer than its vocabulary."""
    plain: Scene | None = None
    """Where the exact distribution is taken from, if `target` comes from tree passes: plain decoding."""
    replayed: int = 2048
    """Answers of each shared-noise case that the gateway's own loop repeats, at most an eighth of all."""
    answers: dict[str, dict[Path, float]] = field(default_factory=dict)
    """By rule, the exact distribution of answers, once it is known."""
    _target: dict[Path, Logits] = field(default_factory=dict)
    _draft: dict[Path, Logits] = field(default_factory=dict)

    def logits(self, path: Path) -> Logits:
        """The target's raw logits after a path; shape [vocabulary]."""
        if path not in self._target:
            self._target[path] = self.target(path)
        return self._target[path]

    def draft_logits(self, path: Path) -> Logits:
        """The draft's raw logits after a path; shape [vocabulary]."""
        if path not in self._draft:
            self._draft[path] = self.draft(path)
        return self._draft[path]


def synthetic(vocab_size: int = 10, length: int = 3, seed: int = 0) -> Scene:
    """A target with random logits after every path, and a draft that is the target with errors of 0.7 nats."""

    def target(path: Path) -> Logits:
        return np.random.default_rng([seed, 1, *path]).normal(size=vocab_size).astype(np.float32) * 1.5

    def draft(path: Path) -> Logits:
        error = np.random.default_rng([seed, 2, *path]).normal(size=vocab_size)
        return (target(path) + 0.7 * error).astype(np.float32)

    return Scene([3, 1, 4, 1], length, target, draft, np.arange(vocab_size))


class PathRows:
    """Rows of a tree below a committed path, as `Chooser` reads them from a verify pass."""

    def __init__(self, scene: Scene, committed: Path, flat: FlatTree) -> None:
        self._scene = scene
        self._committed = committed
        self._flat = flat

    @property
    def argmax(self) -> Sequence[int]:
        """The most probable token after each row."""
        return [int(np.argmax(self.logits(row))) for row in range(len(self._flat))]

    def logits(self, row: int) -> Logits:
        """Raw logits after one row."""
        return self._scene.logits((*self._committed, *path_to(self._flat, row)))


ROOT = FlatTree([-1], [-1], [0])
"""A tree without candidates."""
