"""What the map assumes of its machines, with the source of each number, and one cell of it as a setting.

| number | value | source |
| --- | --- | --- |
| target pass, draft step | 10.34, 3.73 ms | SwiftSpec, table 7, serial: Qwen2-72B, 1.5B, 8 H800; WANSpec 5.1 |
| rows of a pass at the compute limit | 74 | H800 data sheet: 989 TFLOP/s (bf16, dense) ÷ 3.35 TB/s; weights of 4 bits |
| the same, weights of 16 bits | 295 | likewise |
| leaves of a worker's step | 16, at the time of one | assumed, as of a small model on a GPU |

A pass takes the same time up to the compute limit and grows with its rows beyond it, of the target as of the draft.
Left out: the KV cache that a pass reads, prompts, sampling.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from cloud_gateway.core.policies.settings import PolicySettings
from edgespec_lab.sim.live.setting import Setting

TARGET_MS = 10.34
DRAFT_MS = 3.73
LIMIT_ROWS = 74
LIMIT_ROWS_16_BITS = 295
MAX_ROWS = 4096
LEAVES = 16
SPREAD: dict[str, Any] = {"spread": 2.2, "entropy_match": 0.3, "entropy_miss": 1.2}
"""Of the synthetic tokens."""
RATIOS = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Round trip ÷ target pass."""
ACCEPTANCE = (0.5, 0.75, 0.95)
LOADS = (1, 4, 16, 32, 64)
GAMMAS = range(1, 9)
"""Of co-located speculation, of which the best one counts."""


@dataclass(frozen=True, slots=True)
class Place:
    """One cell of the map."""

    rtt_ms: float
    acceptance: float
    clients: int
    target_ms: float = TARGET_MS
    draft_ms: float = DRAFT_MS
    limit: int = LIMIT_ROWS
    """Rows of a pass at the compute limit."""
    leaves: int = LEAVES
    """Of each request in a worker's step: a worker of LEAVES drafts for LEAVES / `leaves` requests."""

    def pass_ms(self, rows: float) -> float:
        """A pass of the target."""
        return self.target_ms * max(rows / self.limit, 1.0)

    def step_ms(self, rows: float) -> float:
        """A step of the gateway's own draft."""
        return self.draft_ms * max(rows / self.limit, 1.0)

    @property
    def workers(self) -> int:
        """Of LEAVES each, for all clients."""
        return math.ceil(self.clients * self.leaves / LEAVES)

    def setting(self, policy: PolicySettings, tokens: int, scale: float = 1.0) -> Setting:
        """For engines that sleep; every time is `scale` times as long."""

        def curve(one_ms: float) -> dict[int, float]:
            return {1: one_ms * scale, self.limit: one_ms * scale, MAX_ROWS: one_ms * scale * MAX_ROWS / self.limit}

        return Setting(
            curve(self.target_ms), curve(self.draft_ms), {"match": self.acceptance, **SPREAD}, "", tokens,
            rtt_ms=self.rtt_ms * scale, policy=policy, rule="bestfirst", branching=4, sequences=self.leaves,
            workers=self.clients,
        )  # fmt: skip
