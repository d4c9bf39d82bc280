"""Recorded token processes: real targets' answers with what real drafts would have proposed (recording.md)."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from edgespec.core.drafting.algorithm2 import Proposal
from edgespec.core.errors import ConfigError
from edgespec.lab.sim.process import LOOKAHEAD, OFF_PATH

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
        raise ConfigError(f"{path} is no recording ({error}); tools/sim/recording.md says what one holds.") from error


@dataclass(frozen=True, slots=True)
class Recorded:
    """Answers of a recording in random order, cut to length; off the target's path the draft says what it said at some
    other position."""

    draft: str
    path: Path = SHIPPED
    shuffled: bool = False
    """Whether single positions are drawn instead of whole answers, which makes them i.i.d. (WANSpec section 5.1)."""

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
        self.target_entropies: Sequence[float] = recording.entropies[picked].astype(float).tolist()
        self.off_path = _off_path(kind.path, kind.draft)
        proposals = recording.drafts[kind.draft]
        self._proposals = [_proposal(proposals, i) for i in picked]

    def on_path(self, position: int) -> Proposal:
        """The draft's proposal for the next position."""
        return self._proposals[position + 1]


def _proposal(proposals: Proposals, i: int) -> Proposal:
    tokens, costs, entropies = proposals
    return Proposal(tokens[i].tolist(), np.maximum(costs[i].astype(float), 1e-4).tolist(), float(entropies[i]))


@functools.lru_cache(maxsize=8)
def _off_path(path: Path, draft: str) -> Sequence[Proposal]:
    recording = load(path)
    rng = random.Random(12345)
    return [_proposal(recording.drafts[draft], rng.randrange(len(recording.targets))) for _ in range(OFF_PATH)]
