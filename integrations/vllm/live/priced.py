"""`bash integrations/vllm/live/priced.sh .vllm`: what drafts in company cost and bring in a real vLLM (10 minutes).

Each request has all drafts in each step, each token of them right with a probability. A window is steady: a request
that ends is followed by another one. Only vLLM's steps are timed. Arms: no drafts, all drafts, and as many as the hook
takes by what steps took. Exit status 1 if a text differs, or if the hook's way is slower than LEAST of no drafts.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgespec_vllm.hook import BOARD, CONSENT
from edgespec_vllm.messages import Chain
from edgespec_vllm.price import RowPrice

from integrations.vllm.live.conftest import DRAFTS, Engine, Oracle

LEAST = 0.97
LENGTH = 64
"""Tokens of a completion, at most. Each ends elsewhere, so that in no arm prompts are read together."""
SHORTEST = 24
WARM_UP = 24
"""Steps before a window."""
Texts = Mapping[tuple[int, ...], Sequence[int]]


class AllDrafts(RowPrice):
    """The control: every draft is taken."""

    def allowed(self, requests: int, survivals: Sequence[Sequence[float]]) -> list[int]:
        return [len(survival) for survival in survivals]


def drafting(texts: Texts, right: float, choices: random.Random) -> Any:
    """What the link process answers: the target's next tokens, each replaced by another one if it is not right."""

    def answer(number: int, tokens: list[int]) -> list[Chain]:
        for prompt, text in texts.items():
            if tuple(tokens[: len(prompt)]) == prompt:
                rest = text[len(tokens) - len(prompt) :][:DRAFTS]
                drafts = [token if choices.random() < right else token + 1 for token in rest]
                return [Chain(number, len(tokens), drafts, [10] * len(drafts))] if drafts else []
        return []

    return answer


class Window:
    """A number of clients with one engine; each has a next request when one ends."""

    def __init__(self, engine: Engine, texts: Texts, clients: int, *, offload: bool) -> None:
        self._engine = engine
        self._texts = texts
        self._offload = offload
        self._asked: dict[str, tuple[int, ...]] = {}
        self._lengths = random.Random(clients)
        self._prompts = list(texts)
        self._next = 0
        self.differ = 0
        for _ in range(clients):
            self._ask()

    def _ask(self) -> None:
        from vllm import SamplingParams

        prompt = self._prompts[self._next % len(self._prompts)]
        self._next += 1
        name = f"{id(self)}-{self._next}"
        extra = {CONSENT: "default"} if self._offload else None
        length = self._lengths.randint(SHORTEST, LENGTH)
        params = SamplingParams(max_tokens=length, temperature=0.0, ignore_eos=True, extra_args=extra)
        self._engine.vllm.add_request(name, {"prompt_token_ids": list(prompt)}, params)
        self._asked[name] = prompt

    def step(self, *, more: bool = True) -> tuple[int, float]:
        """One step of vLLM: tokens that requests got in it, and its seconds."""
        running = [(one, one.num_output_tokens) for one in self._engine.scheduler.running]
        began = time.perf_counter()
        outputs = self._engine.vllm.step()
        seconds = time.perf_counter() - began

        tokens = sum(one.num_output_tokens - before for one, before in running)
        for output in outputs:
            if output.finished:
                prompt = self._asked.pop(output.request_id)
                text = list(output.outputs[0].token_ids)
                self.differ += text != list(self._texts[prompt][: len(text)])
                if more:
                    self._ask()
        if self._offload:
            self._engine.oracle.pump()
        return tokens, seconds

    def rate(self, seconds: float) -> float:
        """Tokens a second of a window of about so many seconds, after WARM_UP steps."""
        for _ in range(WARM_UP):
            self.step()

        tokens = 0
        took_s = 0.0
        while took_s < seconds:
            made, step_s = self.step()
            tokens += made
            took_s += step_s

        while self._engine.vllm.has_unfinished_requests():
            self.step(more=False)
        return tokens / took_s


def main() -> int:
    """Prints a row for each number of clients and share of right tokens."""
    parser = argparse.ArgumentParser(prog="python -m integrations.vllm.live.priced", description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--right", type=float, nargs="+", default=[0.3, 0.6, 0.9])
    parser.add_argument("--seconds", type=float, default=10.0, help="of each window")
    options = parser.parse_args()
    choices = random.Random(3)
    folder = Path(tempfile.mkdtemp())
    oracle = Oracle(folder)
    os.environ[BOARD] = oracle.link.path
    engine = Engine(oracle)
    prompts = [tuple(choices.randrange(300, 40_000) for _ in range(12)) for _ in range(16)]
    alone = [engine.generate([list(prompt)], LENGTH, offload=False, ignore_eos=True)[0] for prompt in prompts]
    texts = dict(zip(prompts, alone))

    worst = math.inf
    differ = 0
    print(
        "| clients | right | none, tokens/s | all / none | priced / none | texts that differ |\n" + "| --- " * 6 + "|"
    )
    for clients in options.clients:
        for right in options.right:
            rates: list[float] = []
            wrong = 0
            for price in (None, AllDrafts(), RowPrice()):
                oracle.answer = drafting(texts, right, choices)
                engine.hook._price = price or RowPrice()
                window = Window(engine, texts, clients, offload=price is not None)
                rates.append(window.rate(options.seconds))
                wrong += window.differ
            none, everything, priced = rates
            worst = min(worst, priced / none)
            differ += wrong
            row = f"{none:.1f} | {everything / none:.2f} | {priced / none:.2f} | {wrong}"
            print(f"| {clients} | {right} | {row} |", flush=True)
    return int(differ > 0 or worst < LEAST)


if __name__ == "__main__":
    sys.exit(main())
