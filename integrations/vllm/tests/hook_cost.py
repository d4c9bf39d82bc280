"""`PYTHONPATH=integrations/vllm python -m integrations.vllm.tests.hook_cost`: what the hook costs in vLLM's step.

Each request has a worker: before each step a chain of DRAFTS candidates comes for it, of which two are new, and all are
drafted; then one is accepted, and the target adds one. The link process is a socket of this program; only the hook's
calls are timed. Prints microseconds a request and step: the least and the median of all steps after the first ones.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from edgespec_vllm.board import Board
from edgespec_vllm.hook import Hook
from edgespec_vllm.line import Line
from edgespec_vllm.messages import Chain, Want
from edgespec_vllm.price import AGAIN, BatchLimits

from integrations.vllm.tests.boards import VOCAB, Link, request

DRAFTS = 4
STEPS = 200
SETTLED = 10
"""Steps until all drafts are taken."""
COUNTS = (1, 16, 64, 128)
"""More would not fit into the socket at once."""


def steps_us(count: int, folder: Path) -> list[float]:
    """Microseconds of the hook in each step, divided by the requests."""
    link = Link(folder)
    board = Board(Line(link.path), 0, VOCAB, DRAFTS)

    limits = BatchLimits(None, DRAFTS)
    steps_of_50_ms = itertools.count(0.0, 0.05).__next__  # so that all drafts pay
    hook = Hook(
        board, vocab_size=VOCAB, max_len=10_000, sampled=True, grammar=lambda *_: [], limits=limits,
        clock=steps_of_50_ms,
    )  # fmt: skip
    running = [request([1, 2, 3], str(number), max_tokens=10_000) for number in range(count)]
    for one in running:
        hook.opened(one)
    hook.committed()
    link.received()
    link.send(*[Want(number + 1, 3) for number in range(count)])

    took: list[float] = []
    for step in range(STEPS):
        for number, one in enumerate(running):
            start = len(one.all_token_ids)
            link.send(Chain(number + 1, start, [(2 * step + ahead) % VOCAB for ahead in range(DRAFTS)], [50] * DRAFTS))
        began = time.perf_counter()
        hook.draft(running)
        drafted = time.perf_counter() - began

        output = scheduled(running)
        for one in running:
            one.all_token_ids += [2 * step % VOCAB, (2 * step + 1) % VOCAB]
            one.num_computed_tokens += 2

        began = time.perf_counter()

        hook.took(output)
        hook.committed()
        took.append(1e6 * (drafted + time.perf_counter() - began) / count)
        link.received()
        if step > SETTLED and step % AGAIN:
            assert all(len(one.spec_token_ids) == DRAFTS for one in running)
    return took[SETTLED:]


def scheduled(running: list[Any]) -> Any:
    """vLLM's `SchedulerOutput`, as far as the hook reads it."""
    drafts = {one.request_id: one.spec_token_ids for one in running if one.spec_token_ids}
    return SimpleNamespace(
        num_scheduled_tokens={one.request_id: 1 + len(one.spec_token_ids) for one in running},
        scheduled_spec_decode_tokens=drafts,
        total_num_scheduled_tokens=len(running) + sum(map(len, drafts.values())),
    )


def main() -> int:
    """Prints a line for each number of requests."""
    print(f"{'requests':>8} {'least':>8} {'median':>8}   us a request and step")
    for count in COUNTS:
        with tempfile.TemporaryDirectory() as folder:
            took = steps_us(count, Path(folder))
        print(f"{count:>8} {min(took):>8.1f} {statistics.median(took):>8.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
