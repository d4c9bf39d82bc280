"""Giving a request to a worker: who has it since when, and the messages that tell it the whole prefix."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import exp

from cloud_gateway.core.requests.steps import Released
from cloud_gateway.core.verify.accept import Walk
from cloud_gateway.core.verify.flatten import FlatTree
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
    audited: bool
    """Whether its candidates are compared with what they claim. Under a constraint they are not: it refutes candidates
    for reasons that no worker can know."""
    ready: bool = False
    """It has sent a candidate, so it has read the prompt."""
    frames: int = 0
    """Frames that brought candidates."""
    claimed: float = 0.0
    """Sum of the probabilities that it stated for candidates among which the target then chose."""
    accepted: int = 0
    """How many of those candidates the target chose."""

    def released(self, why: str) -> Released:
        """What is reported of it at its end."""
        return Released(self.worker, self.name, why, self.frames, self.claimed, self.accepted)

    def verified(self, flat: FlatTree, taken: Walk) -> None:
        """Compares its candidates at each row where the target chose with the choice."""
        if not self.audited:
            return
        chosen = dict(zip(taken.rows, taken.tokens, strict=True))
        for node, row in zip(flat.nodes, flat.parents[1:], strict=True):
            if node.owner == self.worker and row in chosen and node.parent is not None:
                self.claimed += min(1.0, exp(node.parent.cost - node.cost))
                self.accepted += chosen[row] == node.token


def opening(request: int, epoch: int, prefix: Prefix, sampling: Sampling, scope: bytes) -> Iterator[Open | Commit]:
    """The messages in their order; `scope` is that of the worker's prefix cache."""
    length = len(prefix)
    yield Open(request, epoch, length, prefix.tokens[:OPEN_TOKENS], sampling, scope)
    for start in range(OPEN_TOKENS, length, MAX_TOKENS_PER_FRAME):
        end = min(start + MAX_TOKENS_PER_FRAME, length)
        yield Commit(request, epoch, start, prefix.tokens[start:end], prefix.digest_at(end))
