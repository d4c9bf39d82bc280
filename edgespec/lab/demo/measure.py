"""Runs the arms prompt by prompt, in turns, each under equal conditions.

If the worker shares a machine with the target, its drafting slows the target's passes (docs/policies.md). So arms
without a worker run beside a neighbour that drafts for nobody, on the worker's core.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from edgespec.lab.demo.arms import ARMS, LOCAL, Run, Table
from edgespec.lab.rig import Rig, cpu_time_s, machine_time_s, waited_s
from edgespec.lab.rig.neighbour import Neighbour


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
            ours, everyone, began = cpu_time_s(pids), machine_time_s(), time.monotonic()
            waited = waited_s(self.rig.pids())
            answer = self.rig.chat(prompt, max_tokens, key=key, **asks)
            seconds = max(time.monotonic() - began, 0.01)
            others = (machine_time_s() - everyone) - (cpu_time_s(pids) - ours)
            waited = waited_s(self.rig.pids()) - waited
        usage, text = answer["usage"], answer["choices"][0]["message"]["content"]
        return Run(text, usage["completion_tokens"], usage["edgespec"], others / seconds, waited / seconds)


def measure(bench: Bench, prompts: Sequence[str], max_tokens: int) -> Iterator[tuple[int, Table]]:
    """Runs the arms on every prompt, beginning with another one each time; yields after each prompt."""
    table = Table()
    for number, prompt in enumerate(prompts):
        arms = list(ARMS)
        shift = number % len(arms)
        table.add({arm: bench.run(prompt, max_tokens, arm) for arm in [*arms[shift:], *arms[:shift]]})
        yield number + 1, table
