"""Plain decoding steps of the llama.cpp engine, without and with `exact`, against a bare loop of `llama_decode`.

All three decode the same tokens after the same prompt, in turns, each in a context of its own with the same settings.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from cloud_gateway.core.verify.flatten import FlatTree
from cloud_gateway.models.target_model import Work
from cloud_gateway.models.target_model.llamacpp import LlamaCppTarget
from edgespec.llamacpp.context import Row
from edgespec.shared import models
from tools import options, verbs

CHUNK = 126
"""Tokens of a prompt read at once: twice the most rows that `exact` computes in a pass, so that none is a pass of its
own."""
SLOT = 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m tools.bench steps`."""
    parser.add_argument("--model", type=Path, help="GGUF file (default: the demo's)")
    parser.add_argument("--tokens", type=options.number(int, 8, 8192), nargs="+", default=[100, 1000], help="context")
    parser.add_argument("--steps", type=options.number(int, 4, 10_000), default=100)
    parser.add_argument("--threads", type=options.number(int, 1, 512), default=1)
    parser.add_argument("--json", type=options.output, metavar="OUT", help="write all figures to this file")


def run(args: argparse.Namespace) -> int:
    """Prints a table; writes figures where asked."""
    path = args.model or models.quantised()
    rows = [measure(path, int(tokens), args.steps, args.threads) for tokens in args.tokens]
    verbs.console().print(verbs.table(rows))
    verbs.write_json(args.json, rows)
    return 0


def measure(path: Path, tokens: int, steps: int, threads: int) -> dict[str, Any]:
    """Milliseconds of a step (tenth percentile, median) after so many tokens, and ratios to the bare loop's."""
    made = [_target(path, tokens + steps, threads, exact) for exact in (False, False, True)]
    prompt = np.random.default_rng(1).integers(made[0].vocab_size // 2, size=tokens).tolist()
    read_s = [_read(target, prompt, threads) for target in made[1:]]
    arms = {"bare": _bare(made[0], made[1], tokens), "engine": _ours(made[1]), "exact": _ours(made[2])}
    taken: dict[str, list[float]] = {name: [] for name in arms}
    for number in range(steps):
        for name, step in arms.items():
            began = time.perf_counter()
            step(prompt[number % tokens])
            taken[name].append(1000 * (time.perf_counter() - began))
    for one in made:
        one.shutdown()
    found: dict[str, Any] = {"context": tokens}
    for name, times in taken.items():
        p10, p50 = np.percentile(times, (10, 50))
        base = np.percentile(taken["bare"], 10)
        found |= {f"{name} p10": round(p10, 2), f"{name} p50": round(p50, 2), f"{name} / bare": round(p10 / base, 3)}
    return found | {"prompt: exact / engine": round(read_s[1] / read_s[0], 2)}


def _target(path: Path, context: int, threads: int, exact: bool) -> LlamaCppTarget:
    nodes = 16
    return LlamaCppTarget(
        path, eos=frozenset(), slots=1, context=context, tree_nodes=nodes, threads=threads, exact=exact
    )


def _read(target: LlamaCppTarget, prompt: list[int], threads: int) -> float:
    """Reads the prompt with a thread for each core; returns the seconds. A first chunk is not counted where more are
    to come: weights are read from the disk."""
    slot, _ = target.open(prompt)
    target._llama.use_threads(len(os.sched_getaffinity(0)))
    began = time.perf_counter()
    for start in range(0, len(prompt), CHUNK):
        target.prefill(slot, prompt[start : start + CHUNK])
        if start == 0 and len(prompt) > CHUNK:
            began = time.perf_counter()
    target._llama.use_threads(threads)
    return time.perf_counter() - began


def _ours(target: LlamaCppTarget) -> Callable[[int], object]:
    def step(token: int) -> None:
        (rows,) = target.verify([Work(SLOT, FlatTree([token], [-1], [0]))])
        assert rows.argmax
        target.keep(SLOT, [0])

    return step


def _bare(target: LlamaCppTarget, read: LlamaCppTarget, tokens: int) -> Callable[[int], object]:
    """llama.cpp's own calls, on a batch that is prepared once, behind the keys and values of `read`."""
    import llama_cpp as llama

    context, state, at = target._llama, read._llama._saved(SLOT), tokens
    assert llama.llama_state_seq_set_data(context._context, state, len(state), SLOT)
    context.decode([Row(0, at, (SLOT,), True)])
    batch = context._batch

    def step(token: int) -> None:
        nonlocal at
        at += 1
        context._tokens[0], context._positions[0] = token, at
        llama.llama_decode(context._context, batch)
        assert llama.llama_get_logits_ith(context._context, 0)

    return step
