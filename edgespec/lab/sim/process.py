"""Token processes: what the target says at every position, and what the draft says after any prefix.

A prefix is named by a state: 0 and up is "on the target's own path, up to this position", negative is "off it, by this
route". The worker and the gateway's own draft are one model, so they ask one process and hear the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from edgespec.core.drafting.algorithm2 import Proposal

OFF_PATH = 4096
"""Different proposals that off-path prefixes draw from."""
LOOKAHEAD = 96
"""Positions behind the answer's end at which a draft may still ask."""


class TokenProcess(Protocol):
    """One answer, as target and draft see it."""

    targets: Sequence[int]
    """The target's token at every position; position 0 is the prompt's last token."""
    target_entropies: Sequence[float]
    """Entropy (nats) of the target's distribution for that token."""
    off_path: Sequence[Proposal]

    def on_path(self, position: int) -> Proposal:
        """What the draft says after the target's tokens up to this position."""


def draft(process: TokenProcess, state: int) -> Proposal:
    """What the draft says after this prefix."""
    return process.on_path(state) if state >= 0 else process.off_path[-state % len(process.off_path)]


def child(process: TokenProcess, state: int, token: int) -> int:
    if state >= 0 and process.targets[state + 1] == token:
        return state + 1
    return -1 - (hash((state, token)) & 0xFFFFFFFFFFFF)  # integers hash alike in every Python process
