"""Token processes (`process`): synthetic ones, and recorded answers of a real target with what real
drafts would have proposed (recording.md).
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from cloud_gateway.core.policies.entropy import CENTRE
from edgespec.core.drafting.algorithm2 import Proposal
from edgespec.core.errors import ConfigError
from edgespec_lab.sim.process import LOOKAHEAD, OFF_PATH

WIDTH = 4
"""Tokens that a synthetic proposal names."""
FILLER = 1 << 20
"""Token ids from here stand for no real token."""


@dataclass(frozen=True, slots=True)
class Iid:
    """Independent positions (WANSpec 5.1), each with a confidence c of the draft.

    c follows a beta distribution with mean `match`. The draft's best token is right with probability
    `match + informative * (c - match)`; each rank after it takes `rank_decay` of what remains.
    """

    match: float = 0.8
    spread: float = 2.2
    """a + b of the beta distribution: the smaller, the more its confidences tell."""
    informative: float = 1.0
    persistence: float = 0.0
    """Share of positions that keep the confidence of the one before; 0 is i.i.d."""
    rank_decay: float = 0.5
    costs_by_rank: bool = False
    """Whether the draft reports the same costs everywhere, by rank alone, instead of its confidences."""
    entropy_match: float = 0.3
    """Mean entropy (nats, exponential) of the target where the draft's best token is right."""
    entropy_miss: float = 1.2
    tail_tokens: int = 30
    """Tokens that share what lies behind the ranks named."""
    wrong: bool = False
    """Whether no token that it names is right. Its confidences have the mean `match` all the same: it is wrong, and
    says what a draft would say that is right."""

    def make(self, seed: int, length: int) -> IidProcess:
        """One answer of this kind."""
        return IidProcess(self, seed, length)

    def beside(self, other: IidProcess, seed: int, length: int) -> IidProcess:
        """The same answer as `other`, as a draft of this kind proposes it; independent of what the other draft says."""
        return IidProcess(self, seed, length, targets_of=other)


class IidProcess:
    """See `Iid`."""

    def __init__(self, kind: Iid, seed: int, length: int, *, targets_of: IidProcess | None = None) -> None:
        rng = np.random.default_rng(seed if targets_of is None else [seed, 1])
        n = length + LOOKAHEAD
        confidence, ranks = _draw(kind, rng, n)
        means = np.where(ranks == 0, kind.entropy_match, kind.entropy_miss)
        self.targets: Sequence[int] = rng.integers(0, FILLER, n).tolist()
        self.target_entropies: Sequence[float] = rng.exponential(means).tolist()
        if targets_of is not None:
            self.targets = targets_of.targets
            self.target_entropies = targets_of.target_entropies
        self.off_path = _off_path(kind)
        self._proposals = [
            _proposal(kind, c, rank, target) for c, rank, target in zip(confidence, ranks, self.targets, strict=True)
        ]

    def on_path(self, position: int) -> Proposal:
        """The draft's proposal for the next position."""
        return self._proposals[position + 1]


def _draw(kind: Iid, rng: np.random.Generator, n: int) -> tuple[list[float], NDArray[np.int64]]:
    """Confidences, and the rank that the target's token has with the draft (WIDTH: none of those named)."""
    c = np.clip(rng.beta(kind.match * kind.spread, (1 - kind.match) * kind.spread, n), 1e-6, 1 - 1e-6)
    if kind.persistence:
        kept = rng.random(n) < kind.persistence
        c = c[np.maximum.accumulate(np.where(kept, 0, np.arange(n)))]
    right = kind.match + kind.informative * (c - kind.match)
    u = rng.random(n)
    rest = np.clip((u - right) / (1 - right), 0.0, 1 - 1e-12)  # uniform where the best token is wrong
    behind = 1 + np.floor(np.log1p(-rest) / math.log(1 - kind.rank_decay))
    ranks = np.where(u < right, 0, np.minimum(behind, WIDTH)).astype(np.int64)
    if kind.wrong:
        ranks[:] = WIDTH
    return c.tolist(), ranks


def _proposal(kind: Iid, c: float, rank: int, target: int | None) -> Proposal:
    shares = _shares(c, kind.rank_decay)
    tail = 1 - sum(shares)
    entropy = -sum(p * math.log(p) for p in shares) - tail * math.log(tail / kind.tail_tokens)
    tokens = [FILLER + i for i in range(WIDTH)]
    if target is not None and rank < WIDTH:
        tokens[rank] = target
    reported = _shares(kind.match, kind.rank_decay) if kind.costs_by_rank else shares
    return Proposal(tokens, [-math.log(p) for p in reported], entropy)


def _shares(first: float, decay: float) -> list[float]:
    """Probabilities of the ranks: each takes `decay` of what those before it leave."""
    shares = [first]
    for _ in range(WIDTH - 1):
        shares.append((1 - sum(shares)) * decay)
    return shares


@functools.lru_cache(maxsize=8)
def _off_path(kind: Iid) -> Sequence[Proposal]:
    confidence, _ = _draw(kind, np.random.default_rng(12345), OFF_PATH)
    return [_proposal(kind, c, WIDTH, None) for c in confidence]


RANKS = 8
"""Draft tokens kept per position."""
SHIPPED = Path(__file__).parent / "recording.npz"
"""Recorded from SmolLM2-135M-Instruct (Apache-2.0); see recording.md."""

Proposals = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]
"""Tokens [n, RANKS], costs (nats of -log q) [n, RANKS] and entropies (nats) [n]."""


@dataclass(frozen=True, slots=True)
class Recording:
    """Answers one after another; `starts` says where each begins."""

    targets: NDArray[Any]
    entropies: NDArray[Any]
    """Of the target's distribution for each token, nats."""
    starts: NDArray[Any]
    drafts: dict[str, Proposals]

    def match(self, draft: str, ranks: int) -> float:
        """How often the target's token is among the draft's best `ranks`."""
        hits = self.drafts[draft][0][:, :ranks] == self.targets[:, None]
        return float(hits.any(axis=1).mean())


@functools.lru_cache(maxsize=4)
def load(path: Path) -> Recording:
    """Reads a compressed NumPy archive. Raises ConfigError where there is no such file or it holds something else."""
    try:
        with np.load(path, allow_pickle=False) as data:
            names = sorted({key.rpartition("/")[0] for key in data.files if "/" in key})
            drafts = {n: (data[f"{n}/tokens"], data[f"{n}/costs"], data[f"{n}/entropies"]) for n in names}
            return Recording(data["targets"], data["entropies"], data["starts"], drafts)
    except (OSError, EOFError, ValueError, KeyError, BadZipFile) as error:
        raise ConfigError(
            f"{path} is no recording ({error}); recording.md beside this module says what one holds."
        ) from error


@dataclass(frozen=True, slots=True)
class Recorded:
    """Answers of a recording in random order, cut to length; off the target's path the draft says what it said at some
    other position."""

    draft: str
    path: Path = SHIPPED
    shuffled: bool = False
    """Whether single positions are drawn instead of whole answers, which makes them i.i.d. (WANSpec section 5.1)."""
    flat_entropy: bool = False
    """Whether the target's entropy is the same everywhere, so that it says nothing of the draft."""

    def make(self, seed: int, length: int) -> RecordedProcess:
        """One answer; long ones run on into the next. Nothing comes twice before all of the recording has come once.

        Raises ConfigError where the recording lacks this draft.
        """
        recording = load(self.path)
        if self.draft not in recording.drafts:
            raise ConfigError(f"{self.path} has no draft {self.draft!r}, only {', '.join(recording.drafts)}")

        ends = [*recording.starts[1:].tolist(), len(recording.targets)]
        parts = [range(start, end) for start, end in zip(recording.starts.tolist(), ends, strict=True)]
        if self.shuffled:
            parts = [range(i, i + 1) for i in range(len(recording.targets))]
        rng = random.Random(seed)
        picked: list[int] = []
        while len(picked) < length + LOOKAHEAD:
            rng.shuffle(parts)
            picked += [i for part in parts for i in part]

        return RecordedProcess(recording, self, picked[: length + LOOKAHEAD])


class RecordedProcess:
    """See `Recorded`."""

    def __init__(self, recording: Recording, kind: Recorded, picked: Sequence[int]) -> None:
        self.targets: Sequence[int] = recording.targets[picked].tolist()
        entropies: list[float] = recording.entropies[picked].astype(float).tolist()
        if kind.flat_entropy:
            entropies = [CENTRE] * len(entropies)
        self.target_entropies: Sequence[float] = entropies
        self.off_path = _recorded_off_path(kind.path, kind.draft)
        proposals = recording.drafts[kind.draft]
        self._proposals = [_recorded_proposal(proposals, i) for i in picked]

    def on_path(self, position: int) -> Proposal:
        """The draft's proposal for the next position."""
        return self._proposals[position + 1]


def _recorded_proposal(proposals: Proposals, i: int) -> Proposal:
    tokens, costs, entropies = proposals
    return Proposal(tokens[i].tolist(), np.maximum(costs[i].astype(float), 1e-4).tolist(), float(entropies[i]))


@functools.lru_cache(maxsize=8)
def _recorded_off_path(path: Path, draft: str) -> Sequence[Proposal]:
    recording = load(path)
    rng = random.Random(12345)
    return [_recorded_proposal(recording.drafts[draft], rng.randrange(len(recording.targets))) for _ in range(OFF_PATH)]
