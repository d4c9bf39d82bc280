"""AMUSD's table on real models: plain decoding, speculation at its best k, and draft and target at the same time.

Chats, code and dialogues about refactoring are completed by every arm, in turns. Plain decoding and speculation have
one core, and again both, which the paper lacks; the asynchronous arms have a core for the gateway and one for its own
worker (`local_draft.mode = "async-local"`). `python -m tools.sim amusd` has the table at the paper's step times.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from edgespec.lab import deep_target
from edgespec.lab.demo import DRAFTS
from edgespec.lab.pictures import bars, drawn
from edgespec.lab.rig.chat import Prompt
from tools import options as checked
from tools import verbs
from tools.bench.live import measured, scene_of, shower
from tools.bench.live.answers import Batch
from tools.bench.live.arms import ASYNC, WIDE, Arm
from tools.bench.live.report import Runs, decoding
from tools.bench.live.systems import started, warm_up
from tools.bench.source_prompts import DIALOGUES, TEXTS

KINDS: Mapping[str, Sequence[Prompt]] = {"code": TEXTS["code"], "chat": TEXTS["chat"], "refactoring": DIALOGUES}
PRINTED = {
    "code": ("HumanEval", 1.24, 1.57),
    "chat": ("MT-Bench", 1.06, 1.31),
    "refactoring": ("RefactorChat", 1.43, 1.96),
}
"""Table I: data, and the speed-ups of speculative decoding and AMUSD over plain decoding."""
GOAL = 1.29
"""The paper's mean gain over speculative decoding."""
CONTEXT = 2048
"""Tokens of the longest dialogue, with room."""
PLAIN, TOGETHER = "plain", ("amusd", "adaptive")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m tools.bench amusd`."""
    parser.add_argument("--text", choices=tuple(KINDS), nargs="+", default=list(KINDS), help="kinds of prompts")
    parser.add_argument("--limit", type=checked.number(int, 1, 3), default=2, help="prompts of each kind")
    parser.add_argument("--k", type=checked.number(int, 1, 16), nargs="+", default=[1, 2, 4, 8], help="of speculation")
    parser.add_argument("--engine", choices=("torch", "llamacpp"), default="torch")
    parser.add_argument("--target", choices=("plain", "deep"), default="deep", help="deep: a pass costs several times")
    parser.add_argument("--blocks", type=checked.number(int, deep_target.MIN_BLOCKS, deep_target.MAX_BLOCKS), default=4)
    parser.add_argument("--model", type=Path, help="another GGUF target")
    parser.add_argument("--draft", default="requantised", help=f"{', '.join(DRAFTS)}, or a GGUF file")
    parser.add_argument("--max-tokens", type=checked.number(int, 2, 1024), default=96, help="tokens of each completion")
    parser.add_argument("--minutes", type=float, default=240.0, help="begin no prompt later")
    parser.add_argument("--no-neighbour", action="store_true", help="no drafting neighbour beside arms on one core")
    parser.add_argument("--json", type=checked.output, metavar="OUT", help="write all figures, and OUT.png, OUT.svg")
    parser.set_defaults(format="as-is", rtt_ms=0.0, clients=[1])


def run(options: argparse.Namespace) -> int:
    """Prints tables; writes figures and a plot where asked. Raises ConfigError, ModelError, RigError."""
    console, wanted = verbs.console(), arms(sorted(set(options.k)))
    scene = scene_of(options, False, console)
    scene = replace(scene, context=CONTEXT + options.max_tokens)
    asked = [
        (kind, KINDS[kind][number])
        for number in range(options.limit)
        for kind in options.text
        if number < len(KINDS[kind])
    ]
    with (
        tempfile.TemporaryDirectory(prefix="edgespec-amusd-") as folder,
        started(scene, wanted, Path(folder)) as systems,
    ):
        warm_up(systems, wanted, [1], options.max_tokens)
        work = [(1, [prompt]) for _, prompt in asked]
        *_, found = measured(
            systems, wanted, work, options.max_tokens, shower(console, len(work) * len(wanted)), options.minutes * 60
        )
    report = summary(wanted, found, [kind for kind, _ in asked])
    console.print(verbs.table(report["rows"]))
    console.print(verbs.table(report["gains"]))
    verbs.write_json(options.json, report | {"batches": [batch.figures() for batch in found]})
    if options.json is not None:
        plot(report["rows"], options.json)
    return 0


def arms(ks: Sequence[int]) -> list[Arm]:
    """On one core and on both; and the asynchronous ones."""
    alone: dict[str, dict[str, Any]] = {PLAIN: {"policy": "plain"}}
    alone |= {f"k = {k}": {"policy": "colocated", "k": k} for k in ks}
    one = [Arm(name, ASYNC, asks=asks) for name, asks in alone.items()]
    two = [Arm(_wide(name), WIDE, 2, asks=asks) for name, asks in alone.items()]
    return [*one, *two, *(Arm(name, ASYNC, worker=True, asks={"policy": name}) for name in TOGETHER)]


def _wide(name: str) -> str:
    return f"{name}, 2 cores"


def summary(wanted: Sequence[Arm], batches: Sequence[Batch], kinds: Sequence[str]) -> dict[str, Any]:
    """Rows and gains; `kinds`: of each prompt, by its number."""
    rows: list[dict[str, Any]] = []
    gains: list[dict[str, Any]] = []
    for kind in dict.fromkeys(kinds):
        runs = Runs(wanted, [one for one in batches if kinds[one.number] == kind])
        chosen = _methods(runs)
        rows += [_row(kind, method, arm, runs) for method, arm in chosen.items()]
        gains += [_gain(kind, name, chosen, runs) for name in TOGETHER]
    for name in TOGETHER:
        own = [gain for gain in gains if gain["method"] == name]
        means = {base: _mean([gain[base] for gain in own]) for base in ("/ speculative", "/ best on 2 cores")}
        gains.append(
            {"text": "geometric mean", "method": name} | means | {"printed": GOAL if name == "amusd" else None}
        )
    return {"rows": rows, "gains": gains}


def _methods(runs: Runs) -> dict[str, str]:
    """The paper's methods, and the arm that stands for each: speculation with its best k, found afterwards."""
    names = [arm.name for arm in runs.arms if arm.name.startswith("k = ")]
    wide = [name for name in names if name.endswith("cores")]
    best = runs.best([name for name in names if name not in wide], decoding)
    best_wide = runs.best(wide, decoding)
    assert best is not None and best_wide is not None  # there is a k
    found = {PLAIN: PLAIN, _wide(PLAIN): _wide(PLAIN), "speculative": best, _wide("speculative"): best_wide}
    return found | {name: name for name in TOGETHER}


def _row(kind: str, method: str, arm: str, runs: Runs) -> dict[str, Any]:
    faster = runs.ratio(PLAIN, arm, decoding)
    own = list(runs.of(arm).values())
    tokens = sum(batch.tokens for batch in own)
    passes = sum(one.passes or 0 for batch in own for one in batch.answers)
    spent = sum(batch.target_core_s + batch.worker_core_s for batch in own)
    _, speculative, amusd = PRINTED[kind]
    return {
        "text": kind,
        "method": method,
        "arm": arm,
        "ms / token": round(runs.median(arm, decoding), 1),
        "speed-up": faster and round(faster[0], 2),
        "printed": {"speculative": speculative, "amusd": amusd}.get(method),
        "tokens / pass": round(tokens / max(passes, 1), 2),
        "CPU ms / token": round(1000 * spent / max(tokens, 1), 1),
        "same text": runs.same(arm, PLAIN),
    }


def _gain(kind: str, method: str, chosen: Mapping[str, str], runs: Runs) -> dict[str, Any]:
    """Times of speculation, and of the faster of both arms on two cores, over those of this method."""
    wide = runs.best([chosen[_wide(PLAIN)], chosen[_wide("speculative")]], decoding)
    assert wide is not None
    _, speculative, amusd = PRINTED[kind]
    return {
        "text": kind,
        "method": method,
        "/ speculative": _ratio(runs, chosen["speculative"], method),
        "/ best on 2 cores": _ratio(runs, wide, method),
        "printed": round(amusd / speculative, 2) if method == "amusd" else None,
    }


def _ratio(runs: Runs, base: str, arm: str) -> float | None:
    found = runs.ratio(base, arm, decoding)
    return None if found is None else round(found[0], 3)


def _mean(values: Sequence[float | None]) -> float | None:
    """Geometric; None where one is missing."""
    known = [value for value in values if value is not None]
    return round(math.prod(known) ** (1 / len(known)), 3) if len(known) == len(values) else None


def plot(rows: Sequence[Mapping[str, Any]], out: Path) -> list[Path]:
    """Speed-ups with those of the paper, and what they cost, beside OUT."""
    return drawn(out, (9, 4), partial(_draw, rows))


def _draw(rows: Sequence[Mapping[str, Any]], figure: Any) -> None:
    speed, cost = figure.subplots(1, 2)
    middles = bars(speed, rows, "text", "method", "speed-up")
    printed = [(middle, row["printed"]) for middle, row in zip(middles, rows, strict=True) if row["printed"]]
    speed.plot([middle for middle, _ in printed], [value for _, value in printed], "k_")
    bars(cost, rows, "text", "method", "CPU ms / token")
    speed.set_ylabel("speed-up over plain decoding (–: printed)")
    cost.set_ylabel("CPU ms per token")
    figure.legend(*speed.get_legend_handles_labels(), loc="outside lower center", ncols=5, fontsize=7)
