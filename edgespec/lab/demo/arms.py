"""The arms of the demo's table, and the runs of each: what was measured, by prompt and arm."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

PHI = 3.0
"""φ of `wanspec` for this small target: 81 % of its positions exceed the papers' 0.5 nats."""
BASE = "colocated_k2"
"""The papers' reference."""
CONTROL = "no_worker"
"""Of `adaptive`: the same policy, sources and local draft. Without a worker both preferences do the same."""
LOCAL: Mapping[str, Mapping[str, Any]] = {
    "plain": {"policy": "plain"},
    BASE: {"policy": "colocated", "k": 2},
    CONTROL: {"policy": "adaptive", "prefer": "balanced", "offload": "never"},
}
"""Arms without a worker: measured beside a neighbour that drafts."""
REMOTE: Mapping[str, Mapping[str, Any]] = {
    "remote": {"policy": "wanspec", "phi": PHI},
    "adaptive": {"policy": "adaptive", "prefer": "balanced"},
    "adaptive_latency": {"policy": "adaptive", "prefer": "latency"},
}
"""Those with a worker: WANSpec's Algorithm 1, and the policy that decides by expected time, as either preference."""
ARMS = {**LOCAL, **REMOTE}
DISTURBED = 0.15
"""A prompt is disturbed when other processes used more than this share of one core during one of its runs."""
MIN_MS = 0.01
"""A short completion may come out of its first pass whole, and then takes no time to decode."""


@dataclass(slots=True)
class Run:
    text: str
    tokens: int
    usage: dict[str, Any]
    others_share: float
    """Core time that other processes used meanwhile, over the time of the run."""
    waited_share: float = 0.0
    """Time for which threads of gateway and worker could run and waited for a core, over the time of the run."""

    @property
    def ms_per_token(self) -> float:
        """Decoding time per token after the prefill.

        It begins when target and co-located draft have read the prompt, so that the first pass and all of its tokens
        count. A worker's prefill ends with its first useful frame; tokens before that are left out with their time.
        """
        times, before = self.usage["timings_ms"], int(self.usage["tokens_before_worker"])
        return float(times["decode"] - times["before_worker"]) / max(self.tokens - before, 1)

    @property
    def total_ms_per_token(self) -> float:
        """Time of the whole completion, prefill included, per token."""
        return float(self.usage["timings_ms"]["total"]) / max(self.tokens, 1)

    def figures(self) -> dict[str, Any]:
        """What JSON holds of a run: everything but its text."""
        return {
            "tokens": self.tokens,
            "ms_per_token": round(self.ms_per_token, 3),
            "total_ms_per_token": round(self.total_ms_per_token, 3),
            "others_share": round(self.others_share, 4),
            "waited_share": round(self.waited_share, 4),
            "usage": self.usage,
        }


Value = Callable[[Run], float]


@dataclass(slots=True)
class Table:
    """Runs by prompt and arm. Not every prompt need have every arm."""

    clean: list[dict[str, Run]] = field(default_factory=list)
    disturbed: list[dict[str, Run]] = field(default_factory=list)
    every: list[dict[str, Run]] = field(default_factory=list)
    """Both, in the order of the prompts."""

    def add(self, runs: dict[str, Run]) -> None:
        """Takes one prompt's runs; sets it apart when other processes used much of a core."""
        undisturbed = max(run.others_share for run in runs.values()) <= DISTURBED
        (self.clean if undisturbed else self.disturbed).append(runs)
        self.every.append(runs)

    @property
    def runs(self) -> list[dict[str, Run]]:
        """The undisturbed prompts, or all of them if there is no such prompt."""
        return self.clean or self.disturbed

    @property
    def dropped(self) -> int:
        return len(self.disturbed) if self.clean else 0

    def has(self, arm: str) -> bool:
        return any(arm in runs for runs in self.runs)

    def median(self, arm: str, value: Value) -> float:
        """Median over the prompts of one figure of one arm."""
        return statistics.median(self.values(arm, value))

    def ratio(self, arm: str, base: str, value: Value) -> float:
        """Median over the prompts of one figure of an arm over another arm's on the same prompt."""
        return statistics.median(self.ratios(arm, base, value))

    def values(self, arm: str, value: Value) -> list[float]:
        """One figure of one arm, prompt by prompt."""
        return [value(runs[arm]) for runs in self.runs if arm in runs]

    def ratios(self, arm: str, base: str, value: Value) -> list[float]:
        """One figure of an arm over another arm's, for each prompt that has both."""
        pairs = [(value(runs[arm]), value(runs[base])) for runs in self.runs if arm in runs and base in runs]
        return [one / max(other, MIN_MS) for one, other in pairs]

    def total(self, arm: str, value: Value) -> float:
        """Sum over the prompts of one figure of one arm."""
        return sum(self.values(arm, value))
