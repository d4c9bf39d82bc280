"""Chooses the layers of `local_draft.layers`, with which the target drafts for itself, by greedy search.

The target writes completions. From all layers, the one is left out again and again without which the others choose the
target's own token most often; of the candidates, those that were best before are tried first. What is shown was
measured on completions of prompts that were held back from the search.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from cloud_gateway.parts.torch_engine.forward import Forward, Part, SlotKv
from cloud_gateway.parts.torch_engine.llama_forward import LlamaForward, is_plain_llama
from cloud_gateway.parts.torch_engine.target import TorchTarget
from edgespec.core.errors import ConfigError, ModelError
from edgespec_lab import options, verbs
from edgespec_lab.demo import read_prompts
from edgespec_lab.train.text import add_target, ends_of, load, rendered, split, write

MAX_K = 8
"""Longest chain whose gain is compared."""
HELD_BACK = 4
TOGETHER = 16
"""One prompt of so many is kept for measuring; so many completions are written at once."""
REPEATS = 7
"""Passes of each kind that are timed."""
Texts = Sequence[tuple[list[int], int]]
"""Prompts with their completions, and how many tokens the completion has."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Layers kept, and how often their choice is the target's on the completions searched with."""

    layers: list[int]
    match: float


@torch.inference_mode()
def match_rate(target: TorchTarget, forward: Forward, texts: Texts) -> float:
    """Share of the completions' tokens that this pass, given all before, would choose too."""
    parts = []
    for tokens, _ in texts:
        kv = SlotKv(forward.shapes, forward.kv_dtype, target.device, target.context)
        parts.append(Part.chain(kv, tokens[:-1], target.device))
    right = 0
    for (tokens, count), logits in zip(texts, forward(parts), strict=True):
        chosen = logits[-count:].float().argmax(-1).tolist()
        right += sum(a == b for a, b in zip(chosen, tokens[-count:], strict=True))

    return right / sum(count for _, count in texts)


def search(target: TorchTarget, texts: Texts, least: int, tries: int) -> Iterator[Choice]:
    """The best found for each number of layers, from all but one down to `least`.

    `tries`: candidates to leave out that are measured at each number, those first that did least harm when they were
    measured last.
    """
    assert isinstance(target.forward, LlamaForward)
    kept = list(range(len(target.forward.shapes)))
    last = dict.fromkeys(kept, 1.0)
    while len(kept) > least:
        found: dict[int, float] = {}
        unknown = [layer for layer in kept if last[layer] == 1.0]
        for layer in unknown or sorted(kept, key=lambda layer: -last[layer])[:tries]:
            without = [other for other in kept if other != layer]
            found[layer] = last[layer] = match_rate(target, target.forward.keeping(without), texts)
            if last[layer] == 1.0:
                last[layer] -= 1e-9  # measured
        best = max(found, key=lambda layer: found[layer])
        kept.remove(best)
        yield Choice(list(kept), found[best])


@torch.inference_mode()
def step_cost(target: TorchTarget, forward: Forward) -> float:
    """The time of this pass over one row, in passes of the target: the least of a few of each, in turns."""
    times: dict[int, list[float]] = {0: [], 1: []}
    for _ in range(REPEATS):
        for number, one in enumerate((target.forward, forward)):
            kv = SlotKv(one.shapes, one.kv_dtype, target.device, target.context)
            began = time.perf_counter()
            one([Part.chain(kv, [0], target.device)])
            times[number].append(time.perf_counter() - began)

    return min(times[1]) / min(times[0])


def gain(match: float, step: float) -> tuple[float, int]:
    """Tokens in the time of one pass by a chain of the best length, and that length; `step`: in passes."""
    speeds = [(sum(match**i for i in range(k + 1)) / (1 + k * step), k) for k in range(1, MAX_K + 1)]
    return max(speeds)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m edgespec_lab.train layers`."""
    add_target(parser)
    parser.add_argument("--limit", type=options.number(int, 4, 10_000), default=16, help="prompts to use")
    parser.add_argument("--max-tokens", type=options.number(int, 2, 4096), default=48, help="of each completion")
    parser.add_argument("--least", type=options.number(int, 1, 1000), default=8, help="layers at which it ends")
    parser.add_argument("--tries", type=options.number(int, 1, 1000), default=5, help="layers tried at each number")


def run(args: argparse.Namespace) -> int:
    """Prints a table and the recommended setting. Raises EdgespecError."""
    began = time.perf_counter()
    loaded = load(args)
    model = loaded.model
    if not is_plain_llama(model):
        raise ModelError(f"{args.target} is not of the Llama family, so that it cannot draft with some of its layers.")

    ends = ends_of(model)
    prompts = rendered(loaded, read_prompts(args.prompts, args.limit, args.seed))
    if len(prompts) < HELD_BACK:
        raise ConfigError(f"{args.prompts} gives {len(prompts)} prompts; {HELD_BACK} or more are needed.")

    texts, unseen = (
        [one for some in part for one in write(model, some, args.max_tokens, ends).sequences()]
        for part in split(prompts, len(prompts) // HELD_BACK, TOGETHER, args.seed)
    )
    target = TorchTarget(model, slots=1, threads=torch.get_num_threads())
    assert isinstance(target.forward, LlamaForward)
    rows: list[dict[str, Any]] = []
    for choice in search(target, texts, args.least, args.tries):
        forward = target.forward.keeping(choice.layers)
        match = match_rate(target, forward, unseen)
        cost = step_cost(target, forward)
        speed, k = gain(match, cost)
        found = {"layers": len(choice.layers), "right in search": round(choice.match, 3), "right": round(match, 3)}
        rows.append(
            found | {"step / pass": round(cost, 3), "best k": k, "speed": round(speed, 3), "kept": choice.layers}
        )
        print(f"{len(choice.layers)} layers: {match:.3f} right on held-back prompts", file=sys.stderr)
    best = max(rows, key=lambda row: row["speed"])
    verbs.console().print(verbs.table([{name: cell for name, cell in row.items() if name != "kept"} for row in rows]))
    layers = best["kept"]
    print(f"local_draft.layers = {layers}" + ("" if best["speed"] > 1 else "  # no number of layers pays here"))
    print(f"{time.perf_counter() - began:.0f} s in all")
    verbs.write_json(args.json, {"rows": rows, "layers": layers})
    return 0
