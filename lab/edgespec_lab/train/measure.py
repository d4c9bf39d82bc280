"""Measures drafts by what the target wrote to prompts held back: parameters, step time, how often each is right.

All answer the same places, so that drafts of a table compare; steps are timed in turns, ratios are to the first draft.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from edgespec.core.errors import ConfigError
from edgespec.llamacpp.context import Context, Row
from edgespec.models.drafts import block_count
from edgespec_lab import options, verbs
from edgespec_lab.train.folder import Folder
from edgespec_lab.train.text import Batch

TIMED_AFTER = 64
"""Tokens in the KV cache when steps are timed."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m edgespec_lab.train measure`."""
    parser.add_argument("folder", type=Path, help="folder of a training, whose held-back text is used")
    parser.add_argument("drafts", type=Path, nargs="+", metavar="GGUF", help="drafts; the first is the base of ratios")
    parser.add_argument("--steps", type=options.number(int, 1, 10_000), default=40, help="steps of each draft to time")
    parser.add_argument("--threads", type=options.number(int, 1, 512), default=1)
    parser.add_argument("--json", type=options.output, metavar="OUT", help="write all figures to this file")


def run(args: argparse.Namespace) -> int:
    """Prints a table; writes figures where asked. Raises ConfigError, ModelError."""
    for draft in args.drafts:
        if not draft.is_file():
            raise ConfigError(f"The draft {draft} does not exist; name a GGUF file.")
    sequences = [one for parts in Folder(args.folder).held_back() for one in Batch.of(parts).sequences()]
    rows = table(args.drafts, sequences, args.steps, args.threads)
    verbs.console().print(verbs.table(rows))
    verbs.write_json(args.json, rows)
    return 0


def table(
    drafts: Sequence[Path], sequences: Sequence[tuple[list[int], int]], steps: int, threads: int
) -> list[dict[str, Any]]:
    """A row for each draft. `sequences`: tokens, and how many of them, at the end, the target wrote."""
    longest = max(len(tokens) for tokens, _ in sequences)
    contexts = [
        Context(path, cells=longest + TIMED_AFTER + steps, sequences=1, batch=512, threads=threads, outputs=longest)
        for path in drafts
    ]
    taken = step_times(contexts, steps, sequences[0][0])
    rows = []
    for path, context, times in zip(drafts, contexts, taken, strict=True):
        first, among = right(context, sequences)
        rows.append({
            "draft": path.name, "layers": block_count(path), "M parameters": round(parameters(path) / 1e6, 1),
            "MB": round(path.stat().st_size / 1e6, 1), "step ms": round(1000 * median(times), 2),
            "/ first": round(median(a / b for a, b in zip(times, taken[0], strict=True)), 2),
            "right": round(first, 3), "in 4": round(among, 3), "tokens": sum(count for _, count in sequences),
        })  # fmt: skip
        context.close()

    return rows


def parameters(path: Path) -> int:
    """Weights of a GGUF file; an embedding that is also the head counts once."""
    import gguf

    return sum(int(tensor.n_elements) for tensor in gguf.GGUFReader(path).tensors)


def step_times(contexts: Sequence[Context], steps: int, tokens: Sequence[int]) -> list[list[float]]:
    """Seconds of each step of one token, the drafts in turns."""
    for context in contexts:
        context.trim(0, 0)
        context.decode([Row(tokens[place % len(tokens)], place, (0,), False) for place in range(TIMED_AFTER)])
    taken: list[list[float]] = [[] for _ in contexts]
    for number in range(steps):
        for context, times in zip(contexts, taken, strict=True):
            began = time.perf_counter()
            context.decode([Row(tokens[number % len(tokens)], TIMED_AFTER + number, (0,), True)])
            times.append(time.perf_counter() - began)

    return taken


def right(context: Context, sequences: Sequence[tuple[list[int], int]]) -> tuple[float, float]:
    """Shares of the target's tokens that are the draft's most probable one, and among its first four."""
    first = among = 0
    for tokens, count in sequences:
        context.trim(0, 0)
        start = len(tokens) - count
        rows = [Row(token, place, (0,), place >= start - 1) for place, token in enumerate(tokens[:-1])]
        context.decode(rows)
        best = np.argsort(-context.all_logits(count), axis=1)[:, :4]
        hits = best == np.array(tokens[start:])[:, None]
        first = first + int(hits[:, 0].sum())
        among = among + int(hits.sum())
    total = sum(count for _, count in sequences)
    return first / total, among / total
