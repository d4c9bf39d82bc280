"""Runs the arms prompt by prompt, in turns: each under equal conditions, and those without a worker also alone.

If the worker shares a machine with the target, its drafting slows the target's passes (docs/policies.md). So arms
without a worker run beside a neighbour that drafts for nobody, on the worker's core, and again without it.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from edgespec.lab.demo.arms import ALONE, ARMS, BASE, CONTROL, KS, LOCAL, REMOTE, Run, Table
from edgespec.lab.rig import Rig, cpu_time_s, machine_time_s, waited_s
from edgespec.lab.rig.neighbour import Neighbour

SEARCHED = 2
"""Prompts on which every k is measured before a few are kept."""
KEPT = 3
"""The fastest k that are kept after those prompts, besides 1 (for the match rate) and 2 (the reference)."""
FACTOR_PROMPT = "Count from one to thirty in words."
FACTOR_TOKENS = 16
FACTOR_TURNS = 4
"""Short plain completions alone and beside the neighbour, in turns: about 130 passes."""


@dataclass(slots=True)
class Bench:
    """A rig whose worker is linked, and a neighbour if there is a core for one."""

    rig: Rig
    neighbour: Neighbour | None = None

    def run(self, prompt: str, max_tokens: int, arm: str) -> Run:
        """One completion; an arm without a worker runs beside the neighbour, unless its name ends in ALONE."""
        return self.timed(prompt, max_tokens, ARMS[arm.removesuffix(ALONE)], beside=arm in LOCAL)

    def timed(self, prompt: str, max_tokens: int, asks: Mapping[str, Any], *, beside: bool, key: str = "") -> Run:
        """One completion with this extension of the request, `beside` the neighbour or without it."""
        pids = [*self.rig.pids(), *(self.neighbour.pids() if self.neighbour else ()), os.getpid()]
        with self.neighbour.drafting() if beside and self.neighbour else nullcontext():
            ours, everyone, began = cpu_time_s(pids), machine_time_s(), time.monotonic()
            waited = waited_s(self.rig.pids())
            answer = self.rig.chat(prompt, max_tokens, key=key, **asks)
            seconds = max(time.monotonic() - began, 0.01)
            others = (machine_time_s() - everyone) - (cpu_time_s(pids) - ours)
            waited = waited_s(self.rig.pids()) - waited
        usage, text = answer["usage"], answer["choices"][0]["message"]["content"]
        return Run(text, usage["completion_tokens"], usage["edgespec"], others / seconds, waited / seconds)


def neighbour_factor(bench: Bench) -> dict[str, Any]:
    """How much longer a plain pass takes while the neighbour drafts; nothing if there is none."""
    if bench.neighbour is None:
        return {}
    times: dict[str, list[float]] = {"plain" + ALONE: [], "plain": []}
    for _ in range(FACTOR_TURNS):
        for arm, found in times.items():
            found.append(bench.run(FACTOR_PROMPT, FACTOR_TOKENS, arm).ms_per_token)
    alone, beside = (statistics.median(found) for found in times.values())
    times_ms = {"alone_ms": round(alone, 3), "beside_ms": round(beside, 3)}
    return times_ms | {"factor": round(beside / alone, 4), "draft_steps": bench.neighbour.steps}


def measure(bench: Bench, prompts: Sequence[str], max_tokens: int) -> Iterator[tuple[int, Table]]:
    """Runs the arms on every prompt, beginning with another one each time; yields after each prompt.

    All of KS on the first SEARCHED prompts, then the KEPT fastest of them, 1 and 2.
    """
    table, ks = Table(), list(KS)
    for number, prompt in enumerate(prompts):
        if number == SEARCHED:
            ks = kept(table)
            _complete(bench, prompts[:SEARCHED], max_tokens, ks, table)
        arms = ["plain", *(f"colocated_k{k}" for k in ks), CONTROL, *REMOTE]
        if bench.neighbour:
            alone = arms if len(ks) < len(KS) else ["plain", BASE]
            arms += [arm + ALONE for arm in alone if arm in LOCAL]
        shift = number % len(arms)
        runs = {arm: bench.run(prompt, max_tokens, arm) for arm in [*arms[shift:], *arms[:shift]]}
        table.add(runs)
        if number + 1 == len(prompts) <= SEARCHED:
            _complete(bench, prompts, max_tokens, [table.best_k()], table)
        yield number + 1, table


def kept(table: Table) -> list[int]:
    """The k that are measured on the other prompts."""
    fastest = sorted(KS, key=lambda k: table.median(f"colocated_k{k}", lambda run: run.ms_per_token))
    return sorted({1, 2, *fastest[:KEPT]})


def _complete(bench: Bench, prompts: Sequence[str], max_tokens: int, ks: Sequence[int], table: Table) -> None:
    """Measures the kept k without the neighbour on the prompts that chose them."""
    if bench.neighbour is None:
        return
    for prompt, runs in zip(prompts, table.every, strict=True):
        for arm in (f"colocated_k{k}{ALONE}" for k in ks):
            if arm not in runs:
                runs[arm] = bench.run(prompt, max_tokens, arm)
