"""The arms of the demo's table, and running them prompt by prompt, in turns, each under equal conditions.

If the worker shares a machine with the target, its drafting slows the target's passes (docs/policies.md). So arms
without a worker run beside a neighbour that drafts for nobody, on the worker's core.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar

from edgespec_lab.rig import Rig, cpu_time_s, machine_time_s, waited_s
from edgespec_lab.rig.neighbour import Neighbour

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
COMPARED = ("colocated",)
"""Policies of parts among those of the arms."""
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
        times = self.usage["timings_ms"]
        before = int(self.usage["tokens_before_worker"])
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
        if self.clean:
            return len(self.disturbed)
        return 0

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


@dataclass(slots=True)
class Bench:
    """A rig whose worker is linked, and a neighbour if there is a core for one."""

    rig: Rig
    neighbour: Neighbour | None = None

    def run(self, prompt: str, max_tokens: int, arm: str) -> Run:
        """One completion; an arm without a worker runs beside the neighbour."""
        return self.timed(prompt, max_tokens, ARMS[arm], beside=arm in LOCAL)

    def timed(self, prompt: str, max_tokens: int, asks: Mapping[str, Any], *, beside: bool, key: str = "") -> Run:
        """One completion with this extension of the request, `beside` the neighbour or without it."""
        pids = [*self.rig.pids(), *(self.neighbour.pids() if self.neighbour else ()), os.getpid()]
        with self.neighbour.drafting() if beside and self.neighbour else nullcontext():
            ours = cpu_time_s(pids)
            everyone = machine_time_s()
            began = time.monotonic()
            waited = waited_s(self.rig.pids())
            answer = self.rig.chat(prompt, max_tokens, key=key, **asks)
            seconds = max(time.monotonic() - began, 0.01)
            others = (machine_time_s() - everyone) - (cpu_time_s(pids) - ours)
            waited = waited_s(self.rig.pids()) - waited
        usage = answer["usage"]
        text = answer["choices"][0]["message"]["content"]
        return Run(text, usage["completion_tokens"], usage["edgespec"], others / seconds, waited / seconds)


T = TypeVar("T")


def rotated(these: Sequence[T], by: int) -> list[T]:
    """The same, beginning with another one for each `by`."""
    by %= max(len(these), 1)
    return [*these[by:], *these[:by]]


def measure(bench: Bench, prompts: Sequence[str], max_tokens: int) -> Iterator[tuple[int, Table]]:
    """Runs the arms on every prompt, beginning with another one each time; yields after each prompt."""
    table = Table()
    for number, prompt in enumerate(prompts):
        table.add({arm: bench.run(prompt, max_tokens, arm) for arm in rotated(list(ARMS), number)})
        yield number + 1, table
