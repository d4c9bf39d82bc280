"""Tokens a second through the gateway, over those of the server's own streams, for some streams at once."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from edgespec_lab.demo.scene import PROMPTS, read_prompts
from edgespec_lab.markdown import table
from edgespec_lab.rig.chat import ChatClient
from tools.parts.http_engine.system import (
    ALONE,
    WARM_UP,
    Answer,
    Body,
    add_common,
    answers,
    chat,
    client_of,
    gateway,
    vllm,
)

VLLM = "vLLM alone"
NONE = "no candidates"
RIGHT = "prediction, right"
WRONG = "prediction, wrong"
WORKER = "worker"
ARMS = (VLLM, NONE, RIGHT, WRONG, WORKER)
HEADS = ("streams", "arm", "tokens/s", "÷ vLLM alone", "tokens a round", "candidates right")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    add_common(parser)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--batches", type=int, default=4, help="batches of each arm with each number of streams")
    parser.add_argument("--max-tokens", type=int, default=96)


def run(options: argparse.Namespace) -> int:
    """Prints a row for each arm. A batch has as many completions at once as there are streams."""
    prompts = read_prompts(PROMPTS, max(options.streams) * options.batches, seed=1)
    rows: list[list[object]] = []
    with vllm(options) as server, gateway(server, options).linked() as rig:
        through = client_of(rig)
        for arm in ARMS:  # the engine measures what calls take
            measured(arm, server.client, through, [[WARM_UP]], options.max_tokens)
        print("warmed up", file=sys.stderr, flush=True)

        for streams in options.streams:
            batches = [prompts[at * streams : (at + 1) * streams] for at in range(options.batches)]
            plain = 0.0
            for arm in ARMS:
                figures = measured(arm, server.client, through, batches, options.max_tokens)
                plain = plain or figures.tokens_per_s
                rows.append([streams, arm, *figures.shown(plain)])
                print(rows[-1], flush=True)

    print("\n".join(table(HEADS, rows)))
    return 0


@dataclass(frozen=True)
class Figures:
    """All batches of one arm."""

    tokens: int
    seconds: float
    rounds: int
    """0 for vLLM alone."""
    accepted: int
    drafted: int

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds

    def shown(self, plain: float) -> list[str]:
        """The cells of a row. `plain`: tokens a second of vLLM alone."""
        ratio = f"{self.tokens_per_s / plain:.2f}"
        if not self.rounds:
            return [f"{self.tokens_per_s:.1f}", ratio, "", ""]
        return [
            f"{self.tokens_per_s:.1f}", ratio, f"{self.tokens / self.rounds:.2f}", f"{self.accepted} of {self.drafted}",
        ]  # fmt: skip


def measured(arm: str, own: ChatClient, through: ChatClient, batches: Sequence[Sequence[str]], tokens: int) -> Figures:
    """All batches, one after the other. No prompt is repeated: the server keeps what it computed of a prefix."""
    completions: list[Answer] = []
    seconds = 0.0
    for prompts in batches:
        named = [f"Task {ARMS.index(arm) + 1}: {prompt}" for prompt in prompts]
        client = through
        if arm == VLLM:
            client = own
        done, took_s = answers(client, bodies(arm, own, named, tokens))
        completions += done
        seconds += took_s

    figures = [completion.figures for completion in completions if completion.figures]
    return Figures(
        sum(completion.tokens for completion in completions),
        seconds,
        sum(usage["rounds"] for usage in figures),
        sum(completion.accepted for completion in completions),
        sum(sum(usage["drafted"].values()) for usage in figures),
    )


def bodies(arm: str, own: ChatClient, prompts: Sequence[str], tokens: int) -> list[Body]:
    """The requests of a batch. A prediction is made of the texts that the server itself completes, untimed."""
    if arm == VLLM:
        return [chat(prompt, tokens) for prompt in prompts]
    if arm == NONE:
        return [chat(prompt, tokens, ALONE) for prompt in prompts]
    if arm == WORKER:
        return [chat(prompt, tokens, {"sources": []}) for prompt in prompts]

    completions, _ = answers(own, [chat(prompt, tokens) for prompt in prompts])
    texts = [completion.text for completion in completions]
    if arm == WRONG:
        texts = [" ".join(reversed(text.split())) for text in texts]
    return [
        chat(prompt, tokens, ALONE, prediction={"type": "content", "content": text})
        for prompt, text in zip(prompts, texts, strict=True)
    ]
