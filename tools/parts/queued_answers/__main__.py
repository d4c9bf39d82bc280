"""`python -m tools.parts.queued_answers`: what queued answers save under load, with real models (two minutes).

A gateway with one slot gets prompts all at once, so that all but one wait. Each batch of prompts is sent twice, in
turns: with source `answers`, so that the local draft writes an answer to each prompt that waits, and without it. The
gateway is the same, with a linked worker and source `lookup` in both. It is exact, so that texts have to be equal: exit
status 1 if one is not. `whole` is the time from sending a batch to its last completion, and `decoding` is that of a
completion in its slot; ratios are to the batch without.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgespec.shared import models
from edgespec_lab.demo.scene import PROMPTS, make_rig, read_prompts
from edgespec_lab.markdown import table
from edgespec_lab.rig import Rig

ARMS: Mapping[str, Sequence[str]] = {"without": ["lookup"], "with": ["lookup", "answers"]}


@dataclass(frozen=True)
class Batch:
    """The completions of prompts that were sent at once."""

    seconds: float
    completions: Sequence[Mapping[str, Any]]

    @property
    def texts(self) -> list[str]:
        return [completion["choices"][0]["message"]["content"] for completion in self.completions]

    @property
    def decoding_ms(self) -> float:
        return sum(self._usage(number)["timings_ms"]["decode"] for number in range(len(self.completions)))

    @property
    def accepted(self) -> int:
        """Tokens out of queued answers."""
        numbers = range(len(self.completions))
        return sum(self._usage(number)["sources"].get("answers", {}).get("accepted", 0) for number in numbers)

    def _usage(self, number: int) -> Mapping[str, Any]:
        usage: Mapping[str, Any] = self.completions[number]["usage"]["edgespec"]
        return usage


def send(rig: Rig, prompts: Sequence[str], tokens: int, sources: Sequence[str]) -> Batch:
    """All prompts at once."""
    began = time.monotonic()
    with ThreadPoolExecutor(len(prompts)) as clients:
        waiting = [clients.submit(rig.chat, prompt, tokens, policy="adaptive", sources=sources) for prompt in prompts]
        completions = [sent.result() for sent in waiting]
    return Batch(time.monotonic() - began, completions)


def main() -> int:
    """Prints a row for each batch; returns 1 if texts differ."""
    parser = argparse.ArgumentParser(prog="python -m tools.parts.queued_answers")
    parser.add_argument("--clients", type=int, default=5, help="prompts that are sent at once")
    parser.add_argument("--batches", type=int, default=3, help="how many times, each with other prompts")
    parser.add_argument("--max-tokens", type=int, default=48, help="tokens of each completion")
    options = parser.parse_args()

    prompts = read_prompts(PROMPTS, options.clients * options.batches, seed=0)
    batches: list[dict[str, Batch]] = []
    with tempfile.TemporaryDirectory(prefix="edgespec-queue-") as scratch:
        rig = make_rig(Path(scratch), str(models.quantised()), str(models.requantised()), 5.0, exact=True)
        rig.gateway_options = {**rig.gateway_options, "target.slots": 1, "sources.queued_answers": 1}
        with rig.linked():
            for number in range(options.batches):
                part = prompts[number :: options.batches]
                order = list(ARMS) if number % 2 else list(ARMS)[::-1]
                batches.append({arm: send(rig, part, options.max_tokens, ARMS[arm]) for arm in order})

    heads = ["batch", "whole, s, without", "with", "ratio", "decoding, s, without", "with", "ratio", "of answers"]
    print("\n".join(table(heads, [[str(number + 1), *row(batch)] for number, batch in enumerate(batches)])))
    ratio = statistics.median(batch["with"].seconds / batch["without"].seconds for batch in batches)
    print(f"whole: median ratio {ratio:.2f}")
    return int(any(batch["with"].texts != batch["without"].texts for batch in batches))


def row(batch: Mapping[str, Batch]) -> list[str]:
    """Seconds of both arms, and accepted tokens of answers."""
    before = batch["without"]
    after = batch["with"]
    figures = (before.seconds, after.seconds, after.seconds / before.seconds)
    decoding = (before.decoding_ms / 1000, after.decoding_ms / 1000, after.decoding_ms / before.decoding_ms)
    return [*(f"{figure:.2f}" for figure in (*figures, *decoding)), str(after.accepted)]


if __name__ == "__main__":
    sys.exit(main())
