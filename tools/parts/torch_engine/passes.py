"""`python -m tools.parts.torch_engine.passes`: verify times by rows and requests, and whether trees change the text.

The target has random weights, drawn on the device, so nothing is loaded; shapes are those of public models. Times say
what a pass costs, not what a model says. `--device cuda` needs a GPU.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from cloud_gateway.core.verify.accept import FlatTree, walk
from cloud_gateway.models.target_model import Work
from cloud_gateway.parts.torch_engine.target import TorchTarget
from edgespec_lab import verbs

SHAPES = {
    # layers, hidden, intermediate, heads, kv heads, vocabulary
    "135m": (30, 576, 1536, 9, 3, 49152),  # SmolLM2-135M
    "1b": (16, 2048, 8192, 32, 8, 128256),  # Llama 3.2 1B
    "8b": (32, 4096, 14336, 32, 8, 128256),  # Llama 3.1 8B
}
WARM_UP = 3
"""Passes before timing: lazy initialisation and memory pools."""
Cell = dict[str, float]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("--shape", choices=SHAPES, default="135m")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--requests", type=int, nargs="+", default=[1])
    parser.add_argument("--context", type=int, default=128, help="committed tokens of each request (default: 128)")
    parser.add_argument("--exact", choices=("yes", "no", "both"), default="yes", help="the bits of plain decoding")
    parser.add_argument("--identity", type=int, default=64, metavar="N", help="tokens of the comparison with trees")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="OUT")


def run(options: argparse.Namespace) -> int:
    """Prints the table; returns 1 where decoding with trees differs from plain decoding in float32."""
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        print("CUDA was asked for and torch finds no GPU; use --device cpu.", file=sys.stderr)
        return 1

    ways = [exact for exact in (True, False) if options.exact in ("both", "yes" if exact else "no")]
    targets = {exact: make_target(options, max(2, *options.requests), exact) for exact in ways}
    slots = {
        exact: [fill(target, options.context, seed) for seed in range(max(options.requests))]
        for exact, target in targets.items()
    }
    cells = []
    for requests, rows, exact in itertools.product(options.requests, options.rows, ways):
        cell = measure(targets[exact], slots[exact][:requests], rows, options.repeats) | {"exact": exact}
        cells.append(cell)
        times = f"{cell['pass_ms']:8.2f} ms (launched after {cell['launch_ms']:.2f})"
        print(f"{requests:3} requests x {rows:3} rows{'' if exact else ', not exact'}: {times}", flush=True)
    for exact, target in targets.items():
        for slot in slots[exact]:
            target.close(slot)
    target = targets[ways[0]]
    same, count, passes = identity(target, options.context, options.identity)
    print(f"greedy with trees equals plain decoding for {same} of {count} tokens, in {passes} passes")
    found = {"shape": options.shape, "device": device_name(target), "dtype": options.dtype, "cells": cells}
    verbs.write_json(options.json, found | {"same": same, "of": count, "passes": passes})
    return int(same < count and options.dtype == "float32")


def make_target(options: argparse.Namespace, slots: int, exact: bool = True) -> TorchTarget:
    """A Llama of the shape with random weights, on the device."""
    import transformers

    layers, hidden, intermediate, heads, kv_heads, vocabulary = SHAPES[options.shape]
    config = transformers.LlamaConfig(
        num_hidden_layers=layers,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        vocab_size=vocabulary,
        max_position_embeddings=8192,
        attn_implementation="sdpa",
    )
    torch.manual_seed(0)
    dtype = getattr(torch, options.dtype)
    with torch.device(options.device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).eval()

    return TorchTarget(
        model,
        slots=slots,
        context=options.context + options.identity + 128,
        threads=options.threads,
        exact=exact,
    )


def fill(target: TorchTarget, context: int, seed: int) -> int:
    """Opens a slot and reads a prompt of random tokens; returns the slot."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, target.vocab_size, (context + 1,), generator=generator).tolist()
    slot, _ = target.open(tokens)
    for start in range(0, context, 512):
        target.prefill(slot, tokens[start : min(start + 512, context)])
    return slot


def chain(rows: int, vocabulary: int) -> FlatTree:
    """A path of so many rows."""
    return FlatTree([(7 + 31 * i) % vocabulary for i in range(rows)], [i - 1 for i in range(rows)], list(range(rows)))


def measure(target: TorchTarget, slots: Sequence[int], rows: int, repeats: int) -> Cell:
    """Median milliseconds of a pass over `rows` rows of each slot, choices and entropies fetched, nothing kept."""
    works = [Work(slot, chain(rows, target.vocab_size)) for slot in slots]
    times = []
    launches = []
    for repeat in range(repeats + WARM_UP):
        synchronise(target)
        began = time.perf_counter()
        results = target.verify(works)
        launches.append(time.perf_counter() - began)
        assert all(len(result.argmax) == rows for result in results)
        synchronise(target)
        times.append(time.perf_counter() - began)
        if repeat < WARM_UP:
            times = []
            launches = []

    return {
        "requests": len(slots),
        "rows": rows,
        "pass_ms": statistics.median(times) * 1e3,
        "launch_ms": statistics.median(launches) * 1e3,
    }


def identity(target: TorchTarget, context: int, count: int) -> tuple[int, int, int]:
    """Greedy decoding with trees that hold the right token 7 times of 10, against plain decoding of the same prompt.

    Returns the tokens that agree from the start, `count`, and the passes that the trees took.
    """
    plain = decode(target, fill(target, context, seed=0), count, lambda tokens: [])
    rng = random.Random(0)
    tree_passes = 0

    def propose(tokens: list[int]) -> list[int]:
        nonlocal tree_passes
        tree_passes += 1
        ahead = plain[len(tokens) : len(tokens) + 6]
        return [token if rng.random() < 0.7 else rng.randrange(target.vocab_size) for token in ahead]

    drafted = decode(target, fill(target, context, seed=0), count, propose)
    same = next((i for i, (a, b) in enumerate(zip(plain, drafted)) if a != b), count)
    return same, count, tree_passes


def decode(target: TorchTarget, slot: int, count: int, propose: Callable[[list[int]], list[int]]) -> list[int]:
    """`count` greedy tokens; a pass also verifies the proposed path and a wrong sibling beside each of its tokens."""
    tokens: list[int] = []
    last = 1
    while len(tokens) < count:
        path = propose(tokens)
        flat = beside_wrong_siblings(last, path, target.vocab_size)
        result = target.verify([Work(slot, flat)])[0]
        taken = walk(flat, result.argmax.__getitem__, limit=count - len(tokens))
        target.keep(slot, taken.rows)
        tokens += taken.tokens
        last = tokens[-1]

    return tokens


def beside_wrong_siblings(last: int, path: Sequence[int], vocabulary: int) -> FlatTree:
    """The path as a tree in which every node has a sibling that is laid out before it."""
    rows = [last]
    parents = [-1]
    depths = [0]
    parent = 0
    for depth, token in enumerate(path, 1):
        rows += [(token + 1) % vocabulary, token]
        parents += [parent, parent]
        depths += [depth, depth]
        parent = len(rows) - 1

    return FlatTree(rows, parents, depths)


def synchronise(target: TorchTarget) -> None:
    """Waits for the device."""
    if target.device.type == "cuda":
        torch.cuda.synchronize(target.device)


def device_name(target: TorchTarget) -> str:
    """What the figures are of."""
    if target.device.type == "cuda":
        return torch.cuda.get_device_name(target.device)
    return "cpu"


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.parts.torch_engine.passes", description=__doc__)
    add_arguments(parser)
    parser.set_defaults(run=run)
    return verbs.run(parser, arguments)


if __name__ == "__main__":
    sys.exit(main())
