"""Measures the arms prompt by prompt, in turns: plain, co-located k = 1..8, remote by two policies."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edgespec.lab.rig import Rig, cpu_time_s, machine_time_s

KS = range(1, 9)
ARMS: Mapping[str, Mapping[str, Any]] = {
    "plain": {"policy": "plain"},
    **{f"colocated_k{k}": {"policy": "colocated", "k": k} for k in KS},
    "remote": {"policy": "wanspec"},
    "adaptive": {"policy": "adaptive"},
}
REMOTE = ("remote", "adaptive")
"""Those with a worker: WANSpec's Algorithm 1, and the policy that decides by expected time."""
DISTURBED = 0.15
"""A prompt is disturbed when other processes used more than this share of one core during one of its runs."""


@dataclass(slots=True)
class Run:
    """One completion of one arm."""

    text: str
    tokens: int
    usage: dict[str, Any]
    others_share: float
    """Core time that other processes used meanwhile, over the time of the run."""

    @property
    def ms_per_token(self) -> float:
        """Decoding time per token after the prefill.

        The prefill of the target and of a co-located draft precedes the first token; a worker's ends with its first
        useful frame, so the tokens before that are left out with their time.
        """
        times, before = self.usage["timings_ms"], int(self.usage["tokens_before_worker"])
        return float(times["decode"] - times["before_worker"]) / max(self.tokens - max(before, 1), 1)

    @property
    def total_ms_per_token(self) -> float:
        """Time of the whole completion, prefill included, per token."""
        return float(self.usage["timings_ms"]["total"]) / max(self.tokens, 1)


@dataclass(slots=True)
class Table:
    """Runs by prompt and arm."""

    clean: list[dict[str, Run]] = field(default_factory=list)
    disturbed: list[dict[str, Run]] = field(default_factory=list)

    @property
    def runs(self) -> list[dict[str, Run]]:
        """The undisturbed prompts, or all of them where there is no such prompt."""
        return self.clean or self.disturbed

    @property
    def dropped(self) -> int:
        """Prompts that are left out."""
        return len(self.disturbed) if self.clean else 0

    def median(self, arm: str, value: Callable[[Run], float]) -> float:
        """Median over the prompts of one figure of one arm."""
        return statistics.median(value(runs[arm]) for runs in self.runs)

    def ratio(self, arm: str, base: str, value: Callable[[Run], float]) -> float:
        """Median over the prompts of one figure of an arm over another arm's on the same prompt."""
        return statistics.median(value(runs[arm]) / value(runs[base]) for runs in self.runs)

    def total(self, arm: str, value: Callable[[Run], float]) -> float:
        """Sum over the prompts of one figure of one arm."""
        return sum(value(runs[arm]) for runs in self.runs)


def measure(stage: Rig, prompts: Sequence[str], max_tokens: int, arms: Sequence[str]) -> Iterator[tuple[int, Table]]:
    """Runs every arm on every prompt, beginning with another arm each time; yields after each prompt.

    A prompt is set apart when a third process used much of a core during one of its runs.
    """
    table = Table()
    for number, prompt in enumerate(prompts):
        shift = number % len(arms)
        runs = {arm: _run(stage, prompt, max_tokens, arm) for arm in [*arms[shift:], *arms[:shift]]}
        undisturbed = max(run.others_share for run in runs.values()) <= DISTURBED
        (table.clean if undisturbed else table.disturbed).append(runs)
        yield number + 1, table


def answers(stage: Rig, prompts: Sequence[str], max_tokens: int, arm: str) -> Iterator[str]:
    """The text of one arm for every prompt."""
    for prompt in prompts:
        yield _run(stage, prompt, max_tokens, arm).text


def _run(stage: Rig, prompt: str, max_tokens: int, arm: str) -> Run:
    pids = [*stage.pids(), os.getpid()]
    ours, everyone, began = cpu_time_s(pids), machine_time_s(), time.monotonic()
    answer = stage.chat(prompt, max_tokens, **ARMS[arm])
    others = (machine_time_s() - everyone) - (cpu_time_s(pids) - ours)
    share = others / max(time.monotonic() - began, 0.01)
    usage = answer["usage"]
    return Run(answer["choices"][0]["message"]["content"], usage["completion_tokens"], usage["edgespec"], share)
