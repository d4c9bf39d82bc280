"""The child process of `trial.py`; its arguments: the model, its layers on a GPU, tokens.

It evaluates some tokens one at a time, and the same tokens in several sequences as one batch. Standard output gets a
dot at each sign of progress, and at the end a line of JSON: the largest difference between a row's logits in both (root
mean square, in standard deviations of the row's logits), and the likeliest token after each.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from edgespec.core.errors import EdgespecError
from edgespec.llamacpp.context import Context, Row

SEQUENCES = 7
"""In the batch: with five tokens each 35 rows, which are two whole tiles of 16 and a part of one; with eight, 56."""
TOKENS = 5
_EVERY_S = 0.5


class Dots:
    """Progress as llama.cpp reports it: with each part of the model loaded, and each operation of a pass."""

    def __init__(self) -> None:
        self._last_s = 0.0

    def __call__(self) -> None:
        """Writes a dot unless one was written within half a second."""
        now = time.monotonic()
        if now >= self._last_s + _EVERY_S:
            self._last_s = now
            os.write(1, b".")


def compare(path: Path, gpu_layers: int, tokens: Sequence[int], progress: Dots) -> tuple[float, list[int]]:
    """The largest difference (NaN if any is), and the likeliest token after each of `tokens`. Raises ModelError."""
    context = Context(
        path, cells=256, sequences=SEQUENCES, batch=64, threads=1, outputs=64, gpu_layers=gpu_layers,
        progress=progress,
    )  # fmt: skip
    tokens = tokens or [(1 + 397 * number) % context.vocab_size for number in range(TOKENS)]

    single = np.empty((len(tokens), context.vocab_size), np.float32)
    for position, token in enumerate(tokens):
        context.decode([Row(token, position, [0], wants_logits=True)])
        single[position] = context.logits(0)
    context.trim(0, 0)

    rows = []
    for sequence in range(SEQUENCES):
        for position, token in enumerate(tokens):
            rows.append(Row(token, position, [sequence], wants_logits=True))
    context.decode(rows)
    batch = context.all_logits(len(rows)).reshape(SEQUENCES, len(tokens), -1)

    root_mean_square = np.sqrt(np.square(batch - single).mean(axis=2))
    spread = np.maximum(single.std(axis=1), 1e-6)
    likeliest = [int(row.argmax()) for row in single]
    return float((root_mean_square / spread).max()), likeliest


def main() -> int:
    """Runs the comparison; returns the exit code of an error that the program itself would meet too."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # the parent has ended
    progress = Dots()
    progress()

    path, gpu_layers, *tokens = sys.argv[1:]
    try:
        worst, after = compare(Path(path), int(gpu_layers), list(map(int, tokens)), progress)
    except EdgespecError as error:
        return error.exit_code

    print(f"\n{json.dumps({'difference': worst, 'after': after})}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
