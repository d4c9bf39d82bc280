"""A series: many arms on the same prompts, in turns, each with its worker, and saved after every prompt.

A worker has a link, an API key and so a calibration of its own: what the gateway carries from completion to completion
is of one link and one preference. Texts are kept as digests, for the comparison only.
"""

from __future__ import annotations

import hashlib
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from edgespec_lab.demo.arms import LOCAL, Bench, Run, rotated


@dataclass(frozen=True, slots=True)
class Place:
    """A row of the table: the link."""

    rtt_ms: float

    def arm(self, name: str) -> str:
        """The name of an arm with a worker here; also that of the worker, and of its group."""
        return f"{name}-{self.rtt_ms:g}"


ALONE = "_alone"
"""Ends the name of an arm that was measured without the neighbour."""
HIGH = 0.9
"""The quantile over prompts that is shown beside the median."""
FACTOR_PROMPT = "Count from one to thirty in words."
FACTOR_TOKENS = 16
FACTOR_TURNS = 4
"""Short plain completions alone and beside the neighbour, in turns: about 130 passes."""
Runs = dict[str, Run]
"""Of one prompt, by arm."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One arm of a series."""

    name: str
    asks: Mapping[str, Any]
    """The request's extension."""
    worker: str = ""
    """Whose API key it uses; "": an arm without a worker."""
    beside: bool = True
    """Whether the neighbour drafts meanwhile; it rests where there is a worker."""


@dataclass(slots=True)
class Series:
    """The rig's arms; `keys` has the API key of each worker."""

    bench: Bench
    keys: Mapping[str, str]

    def prompt(self, number: int, prompt: str, max_tokens: int, arms: Sequence[Asked]) -> Runs:
        """All arms on one prompt, each prompt beginning with another one."""
        runs: Runs = {}
        for arm in rotated(arms, number):
            runs[arm.name] = self.run(prompt, max_tokens, arm)
        return {arm.name: runs[arm.name] for arm in arms}

    def run(self, prompt: str, max_tokens: int, arm: Asked) -> Run:
        """One completion; its text is replaced by a digest."""
        key = self.keys[arm.worker] if arm.worker else ""
        run = self.bench.timed(prompt, max_tokens, arm.asks, beside=arm.beside and not arm.worker, key=key)
        run.text = hashlib.sha256(run.text.encode()).hexdigest()[:16]
        return run

    def warm_up(self, prompt: str, max_tokens: int, arms: Sequence[Asked]) -> None:
        """A completion that does not count for each arm with a worker, whose calibration then stands on something."""
        for arm in arms:
            if arm.worker:
                self.run(prompt, max_tokens, arm)


def neighbour_factor(bench: Bench) -> dict[str, Any]:
    """How much longer a plain pass takes while the neighbour drafts; nothing if there is none."""
    if bench.neighbour is None:
        return {}

    times: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(FACTOR_TURNS):
        for beside, found in times.items():
            found.append(bench.timed(FACTOR_PROMPT, FACTOR_TOKENS, LOCAL["plain"], beside=beside).ms_per_token)
    alone, beside_ms = (statistics.median(found) for found in times.values())
    times_ms = {"alone_ms": round(alone, 3), "beside_ms": round(beside_ms, 3)}
    return times_ms | {"factor": round(beside_ms / alone, 4), "draft_steps": bench.neighbour.steps}


def high(values: Sequence[float]) -> float:
    """The HIGH quantile, linear between the ordered values."""
    return float(np.quantile(values, HIGH))


def measured(
    series: Series, prompts: Sequence[str], max_tokens: int, arms: Callable[[int], Sequence[Asked]],
    until: float, console: Console,
) -> Iterator[list[Runs]]:  # fmt: skip
    """Yields all runs so far after each prompt.

    Ends before a prompt that would end after `until` (on the monotonic clock), at the pace so far.
    """
    every = list[Runs]()
    began = time.monotonic()
    for number, prompt in enumerate(prompts):
        every.append(series.prompt(number, prompt, max_tokens, arms(number)))
        yield every
        now = time.monotonic()
        each_s = (now - began) / len(every)
        left = len(prompts) - len(every)
        console.print(
            f"prompt {len(every)} of {len(prompts)}: {each_s:.0f} s each, about {each_s * left / 60:.1f} min left",
            highlight=False,
        )
        if left and now + each_s > until:
            console.print("The time is up: the table has fewer prompts than asked for.")
            return


def save(path: Path | None, setting: Mapping[str, Any], every: Sequence[Runs], **figures: Any) -> None:
    """Writes all runs with what they were measured with, in one step: an interruption leaves a whole file."""
    if path is None:
        return
    runs = [{name: run.figures() | {"digest": run.text} for name, run in prompt.items()} for prompt in every]
    draft = path.with_name(path.name + ".part")
    draft.write_text(json.dumps({"setting": setting, **figures, "runs": runs}, ensure_ascii=False) + "\n")
    draft.replace(path)
