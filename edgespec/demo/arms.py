"""Measures the arms on the same prompts: plain, co-located k = 1..8, remote. One run, in turns, prompt by prompt."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgespec.demo.stage import Stage

KS = range(1, 9)
ARMS: Mapping[str, Mapping[str, Any]] = {
    "plain": {"policy": "plain"},
    **{f"colocated_k{k}": {"policy": "colocated", "k": k} for k in KS},
    "remote": {"policy": "wanspec"},
}
BUSY = 0.05
"""A run is contaminated when its processes waited for a core for more than this share of its time."""


@dataclass(slots=True)
class Run:
    """One answer of one arm."""

    text: str
    tokens: int
    usage: dict[str, Any]
    waited_share: float
    """Time that gateway and worker were ready to run and had no core, over the time of the run."""

    @property
    def ms_per_token(self) -> float:
        """The time to generate the whole answer, prompt included, over its tokens (as WANSpec section 5.4 measures)."""
        return float(self.usage["timings_ms"]["total"]) / max(self.tokens, 1)

    @property
    def decode_ms_per_token(self) -> float:
        """From the first token to the last: what each further token took."""
        return float(self.usage["timings_ms"]["decode"]) / max(self.tokens - 1, 1)


@dataclass(slots=True)
class Table:
    """Runs by prompt and arm."""

    runs: list[dict[str, Run]] = field(default_factory=list)
    dropped: int = 0

    def median(self, arm: str, value: Callable[[Run], float]) -> float:
        """Median over the prompts of one figure of one arm."""
        return statistics.median(value(runs[arm]) for runs in self.runs)

    def ratio(self, arm: str, base: str, value: Callable[[Run], float]) -> float:
        """Median over the prompts of one figure of an arm over another arm's on the same prompt."""
        return statistics.median(value(runs[arm]) / value(runs[base]) for runs in self.runs)

    def total(self, arm: str, value: Callable[[Run], float]) -> float:
        """Sum over the prompts of one figure of one arm."""
        return sum(value(runs[arm]) for runs in self.runs)


def measure(stage: Stage, prompts: Sequence[str], max_tokens: int, arms: Sequence[str]) -> Iterator[tuple[int, Table]]:
    """Runs every arm on every prompt, beginning with another arm each time; yields after each prompt.

    A prompt is dropped from the table when a third process held up gateway or worker on one of its runs.
    """
    table = Table()
    for number, prompt in enumerate(prompts):
        shift = number % len(arms)
        runs = {arm: _run(stage, prompt, max_tokens, arm) for arm in [*arms[shift:], *arms[:shift]]}
        if max(run.waited_share for run in runs.values()) > BUSY:
            table.dropped += 1
        else:
            table.runs.append(runs)
        yield number + 1, table


def answers(stage: Stage, prompts: Sequence[str], max_tokens: int, arm: str) -> Iterator[str]:
    """The text of one arm for every prompt."""
    for prompt in prompts:
        yield _run(stage, prompt, max_tokens, arm).text


def _run(stage: Stage, prompt: str, max_tokens: int, arm: str) -> Run:
    pids = [stage.pid("gateway"), stage.pid("worker")]
    waited, began = run_queue_delay_s(pids), _uptime_s()
    answer = stage.chat(prompt, max_tokens, **ARMS[arm])
    lasted = _uptime_s() - began
    usage = answer["usage"]
    share = (run_queue_delay_s(pids) - waited) / max(lasted, 0.01)
    return Run(answer["choices"][0]["message"]["content"], usage["completion_tokens"], usage["edgespec"], share)


def run_queue_delay_s(pids: Sequence[int]) -> float:
    """Seconds that these processes' threads were runnable without a core (Linux schedstat, second figure)."""
    total = 0
    for pid in pids:
        for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            total += int(path.read_text().split()[1])
    return total / 1e9


def _uptime_s() -> float:
    return float(Path("/proc/uptime").read_text().split()[0])
