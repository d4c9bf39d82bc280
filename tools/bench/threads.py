"""Passes of a gateway and a worker beside busy loops, with the threads that they choose and with one (minutes).

The loops begin before both are started, or with `--later` once they run, so that each has to notice: then one pass of
each model may be held up. One client asks for one completion after the other. Each pass is compared with the median of
those with one thread over the same rows of the same model, measured in the same way afterwards.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from edgespec.lab.demo.scene import PROMPTS, read_prompts
from edgespec.lab.rig.stage import Rig
from edgespec.shared import models
from tools import options as checked
from tools import verbs

BOUND = 3.0
"""Of a pass's time to the median of those with one thread."""
MIN_PASSES = 8
"""With one thread over the same rows: fewer give no median to compare with."""
LINE = re.compile(r"pass of the (target|draft model): (\d+) rows, ([\d.]+) ms, threads: (\d+)")


class Pass(NamedTuple):
    """One line of a log."""

    model: str
    rows: int
    ms: float
    threads: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m tools.bench threads`."""
    parser.add_argument("--minutes", type=checked.number(float, 0.1, 600), default=10.0, help="beside the loops")
    parser.add_argument("--one-minutes", type=checked.number(float, 0.1, 600), default=3.0, help="with one thread each")
    parser.add_argument("--loops", type=checked.number(int, 0, 64), default=2)
    parser.add_argument("--later", action="store_true", help="the loops begin after gateway and worker")
    parser.add_argument("--engine", choices=("torch", "llamacpp"), default="llamacpp")
    parser.add_argument("--max-tokens", type=checked.number(int, 1, 1024), default=48)
    parser.add_argument("--json", type=checked.output, metavar="OUT")


def run(options: argparse.Namespace) -> int:
    """Prints the figures; 1 if a pass with more than one thread took more than BOUND, with `--later` a second one.

    Beside busy loops single passes of one thread take that long too, whenever the system lets the loops run first: how
    many of each stands in the figures.
    """
    chosen, texts = _passes(options, 0, options.minutes)
    one, _ = _passes(options, 1, options.one_minutes)
    by_model = compared(chosen, one)
    figures = {"completions": texts, "bound": BOUND, "models": by_model}
    verbs.print_json(figures, options.json)
    most = int(options.later)
    return int(any(found["above, with more than one thread"] > most for found in by_model.values()))


def compared(chosen: Mapping[str, Sequence[Pass]], one: Mapping[str, Sequence[Pass]]) -> dict[str, dict[str, Any]]:
    """By process and model: how often a pass took more than BOUND of the median of those with one thread."""
    found: dict[str, dict[str, Any]] = {}
    for name, passes in chosen.items():
        if not passes:
            continue
        by_rows = defaultdict[int, list[float]](list)
        for each in one[name]:
            by_rows[each.rows].append(each.ms)
        median = {rows: statistics.median(times) for rows, times in by_rows.items() if len(times) >= MIN_PASSES}
        ratios = sorted(each.ms / median[each.rows] for each in passes if each.rows in median)
        alone = sorted(each.ms / median[each.rows] for each in one[name] if each.rows in median)
        found[name] = {
            "passes": len(passes),
            "compared": len(ratios),
            "with more than one thread": sum(each.threads > 1 for each in passes),
            "ratio p50, p99, max": [round(_at(ratios, share), 2) for share in (0.5, 0.99, 1.0)],
            "above": sum(ratio > BOUND for ratio in ratios),
            "above, with more than one thread": sum(
                each.threads > 1 and each.ms > BOUND * median[each.rows] for each in passes if each.rows in median
            ),
            "one thread: ratio p99, max": [round(_at(alone, share), 2) for share in (0.99, 1.0)],
            "one thread: share above": round(sum(ratio > BOUND for ratio in alone) / max(len(alone), 1), 5),
            "longest, ms": round(max((each.ms for each in passes), default=0.0), 1),
        }
    return found


def _at(ordered: Sequence[float], share: float) -> float:
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else 0.0


def _passes(options: argparse.Namespace, threads: int, minutes: float) -> tuple[dict[str, list[Pass]], int]:
    """All passes beside the loops, by process and model, and the number of completions."""
    prompts = itertools.cycle(read_prompts(PROMPTS, 80, 1))
    target, draft = str(models.quantised()), str(models.requantised())
    given = {"daemon.log_level": "debug"}
    with tempfile.TemporaryDirectory() as folder:
        rig = Rig(
            Path(folder), target, draft, draft, engine=options.engine,
            gateway_options=given | {"target.threads": threads, "local_draft.threads": threads},
            worker_options=given | {"draft.threads": threads},
        )  # fmt: skip
        with contextlib.ExitStack() as running:
            if not options.later:
                running.enter_context(busy_loops(options.loops))
            running.enter_context(rig.linked())
            rig.chat(next(prompts), options.max_tokens)
            before = {name: len(rig.log(name)) for name in ("gateway", "worker")}
            until, done = time.monotonic() + 60 * minutes, 0
            if options.later:
                running.enter_context(busy_loops(options.loops))
            while time.monotonic() < until:
                rig.chat(next(prompts), options.max_tokens)
                done += 1
            return {
                f"{name}: {model}": [one for one in passes(rig.log(name)[start:]) if one.model == model]
                for name, start in before.items()
                for model in (("target", "draft model") if name == "gateway" else ("draft model",))
            }, done


def passes(log: str) -> list[Pass]:
    """Those that a log of the level debug has."""
    return [Pass(model, int(rows), float(ms), int(count)) for model, rows, ms, count in LINE.findall(log)]


@contextlib.contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """So many processes that use a core each, until the block is left."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
