"""How often speculation's tokens differ from plain decoding's, and at what gaps.

Each way of computing the target answers prompts by plain decoding, one token a pass. The same answers are then verified
in chains and trees, as the engine does it: keys and values come from those passes too. Every position is compared once:
the token that the gateway chooses there, given plain decoding's tokens before it, against plain decoding's own. Where
they differ the round ends, and the next one begins at plain decoding's token, so that one divergence is one.

A tree's candidates are plain decoding's own best tokens; at a share of the positions (`--wrong`) the right one is left
out, and what follows in the tree is then wrong too. What was proposed cannot matter to the other rows, only where they
lie. Figures are written after each temperature of each way, so that a run that is cut short is not lost.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cloud_gateway.core.verify.flatten import FlatTree
from cloud_gateway.core.verify.shared_noise import Chooser
from cloud_gateway.models.target_model import Target, Verified, Work
from edgespec.core.drafting.proposals import largest
from edgespec.core.errors import ConfigError
from edgespec.core.protocol.messages import Sampling
from tools import options, verbs
from tools.lossless.divergence_report import draw, figures, table

CHUNK = 128
"""Prompt tokens of one pass, as in the shipped configuration."""


@dataclass(frozen=True, slots=True)
class Way:
    """How the target is computed. `kernels` as in TorchTarget, `transformers` (the model's own code) or `llamacpp`."""

    dtype: str
    kernels: str
    exact: bool


WAYS = {
    "packed": Way("bfloat16", "packed", True),
    "plain": Way("bfloat16", "plain", True),
    "packed-inexact": Way("bfloat16", "packed", False),
    "plain-inexact": Way("bfloat16", "plain", False),
    "transformers": Way("bfloat16", "transformers", False),
    "fp32-packed": Way("float32", "packed", True),
    "fp32-transformers": Way("float32", "transformers", False),
    "llamacpp": Way("as in the file", "llamacpp", False),
    "llamacpp-exact": Way("as in the file", "llamacpp", True),
}
ENGINES = {
    engine: [name for name, way in WAYS.items() if (way.kernels == "llamacpp") == (engine == "llamacpp")]
    for engine in ("torch", "llamacpp")
}
"""The first two are what the gateway ships; the inexact ones and transformers' are what another engine would do."""


@dataclass(frozen=True, slots=True)
class Shape:
    """`depth` levels of `width` candidates, one of which is extended: 1 wide is a chain."""

    width: int
    depth: int

    @property
    def name(self) -> str:
        return f"chain {self.depth}" if self.width == 1 else f"tree {self.width} × {self.depth}"


SHAPES = (Shape(1, 3), Shape(1, 8), Shape(2, 4), Shape(4, 8))


@dataclass(slots=True)
class Answer:
    """Plain decoding's answer: its tokens, the gap at each, and the most probable tokens there, best first."""

    tokens: list[int] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    best: list[list[int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Divergence:
    """One position where speculation's token is another. Gaps in nats, of the best two scores, in either pass."""

    prompt: int
    position: int
    plain: int
    speculative: int
    plain_gap: float
    speculative_gap: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m tools.lossless divergence`."""
    parser.add_argument("--prompts", type=Path, default=None, metavar="FILE", help="JSON lines: `prompt` or `turns`")
    count = options.number(int, 1, 4096)
    parser.add_argument("--limit", type=count, default=8, help="prompts to use (default %(default)s)")
    parser.add_argument("--max-tokens", type=count, default=128, help="most of each answer (default %(default)s)")
    parser.add_argument("--engine", choices=tuple(ENGINES), default="torch", help="all ways of it (%(default)s)")
    parser.add_argument(
        "--ways", nargs="+", choices=tuple(WAYS), help="how the target is computed, instead of --engine"
    )
    parser.add_argument("--temperatures", type=options.number(float, 0, 2), nargs="+", default=[0.0, 0.7])
    parser.add_argument(
        "--wrong", type=options.number(float, 0, 1), default=0.1, help="share of wrong candidates (default %(default)s)"
    )
    parser.add_argument("--seed", type=options.number(int, 0, 2**53), default=1)
    parser.add_argument("--model", type=Path, default=None, help="GGUF file or folder (default: the demo's target)")
    parser.add_argument("--json", type=options.output, metavar="OUT", help="write all figures to this file")
    parser.add_argument("--merge", type=Path, nargs="+", metavar="FILE", help="measure nothing: show these figures")
    parser.add_argument("--plot", type=options.output, metavar="STEM", help="write STEM.png and STEM.svg")


def run(args: argparse.Namespace) -> int:
    """Prints a table, writes figures and plot where asked. 1 where an arm that is meant to be exact was not."""
    report = merged(args.merge) if args.merge else measure(args)
    verbs.console().print(table(report))
    if args.plot:
        draw(report, args.plot)
    return int(any(arm["exact"] and arm["divergences"] for arm in report["arms"]))


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """All arms. Raises ModelError, ConfigError."""
    from edgespec.lab.demo.scene import PROMPTS, read_prompts

    ways = args.ways or ENGINES[args.engine]
    questions = read_prompts(args.prompts or PROMPTS, args.limit, args.seed)
    columns = (TextColumn("{task.description:<34}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    settings = {key: getattr(args, key) for key in ("limit", "max_tokens", "wrong", "seed")}
    report: dict[str, Any] = {"settings": settings | {"prompts": len(questions)}, "arms": [], "baselines": []}
    with Progress(*columns, console=Console(stderr=True)) as progress:
        steps = len(questions) * (len(SHAPES) + 1)
        task = progress.add_task("", total=steps * len(ways) * len(args.temperatures))
        for name in ways:
            target, prompts = _load(args.model, WAYS[name], questions)
            for temperature in args.temperatures:
                progress.update(task, description=f"{name}, T = {temperature:g}")
                found = _compare(target, temperature, prompts, args, lambda: progress.advance(task))
                same = {"way": name, "temperature": temperature, "exact": _is_exact(target)}
                report["baselines"].append(same | {"gaps": [round(gap, 5) for one in found[0] for gap in one.gaps]})
                report["arms"] += [
                    same | figures(shape.name, [one.gaps for one in found[0]], [asdict(one) for one in found[1][shape]])
                    for shape in SHAPES
                ]
                verbs.write_json(args.json, report)
    return report


def merged(paths: Sequence[Path]) -> dict[str, Any]:
    """The figures of several runs with the same settings, as one. Raises ConfigError."""
    try:
        reports = [json.loads(path.read_text()) for path in paths]
        return reports[0] | {key: [row for one in reports for row in one[key]] for key in ("arms", "baselines")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"Not figures of this command ({error}); name files that `--json` wrote.") from error


def _load(model: Path | None, way: Way, questions: Sequence[str]) -> tuple[Target, list[list[int]]]:
    """The target, computed this way, and the rendered prompts."""
    if way.kernels == "llamacpp":
        return _load_llamacpp(model, way.exact, questions)
    from cloud_gateway.models.target_model.forward import HfForward
    from cloud_gateway.models.target_model.load import load
    from cloud_gateway.models.target_model.torch import TorchTarget
    from cloud_gateway.models.text import Text
    from edgespec.shared import models

    loaded = load(model or models.quantised(), way.dtype, "cpu")  # type: ignore[arg-type]
    kernels: Any = "plain" if way.kernels == "transformers" else way.kernels
    target = TorchTarget(
        loaded.model, slots=1, context=2048, threads=1, kernels=kernels, exact=way.exact, prefix_cache=False
    )
    if way.kernels == "transformers":
        target.forward = HfForward(loaded.model)
    text = Text(loaded.tokenizer)
    return target, [text.render_chat([{"role": "user", "content": question}]) for question in questions]


def _load_llamacpp(model: Path | None, exact: bool, questions: Sequence[str]) -> tuple[Target, list[list[int]]]:
    from cloud_gateway.models.target_model.llamacpp import LlamaCppTarget
    from cloud_gateway.models.target_model.load import load_vocabulary
    from cloud_gateway.models.text import Text
    from edgespec.shared import models

    path = model or models.quantised()
    vocabulary = load_vocabulary(path)
    target = LlamaCppTarget(path, eos=vocabulary.eos, slots=1, context=2048, threads=1, exact=exact, prefix_cache=False)
    text = Text(vocabulary.tokenizer)
    return target, [text.render_chat([{"role": "user", "content": question}]) for question in questions]


def _is_exact(target: Target) -> bool:
    return bool(getattr(target, "exact", False))


def _compare(
    target: Target,
    temperature: float,
    prompts: Sequence[list[int]],
    args: argparse.Namespace,
    step: Callable[[], None],
) -> tuple[list[Answer], dict[Shape, list[Divergence]]]:
    """Plain answers to all prompts, and the divergences of every shape from them."""
    answers: list[Answer] = []
    found: dict[Shape, list[Divergence]] = {shape: [] for shape in SHAPES}
    for number, prompt in enumerate(prompts):
        rule = Sampling(temperature=temperature, seed=args.seed * 1000 + number)
        answers.append(decode(target, rule, prompt, args.max_tokens))
        step()
        for shape in SHAPES:
            rng = np.random.default_rng([args.seed, number, shape.width, shape.depth])
            right = rng.random(len(answers[-1].tokens) + shape.depth) >= args.wrong
            found[shape] += speculate(target, rule, prompt, answers[-1], shape, right, number)
            step()
    return answers, found


def decode(target: Target, rule: Sampling, prompt: list[int], count: int) -> Answer:
    """Plain decoding, until the end of sequence or `count` tokens."""
    chooser, answer = Chooser(rule, prompt), Answer()
    with _opened(target, prompt) as slot:
        while len(answer.tokens) < count and not (answer.tokens and answer.tokens[-1] in target.eos):
            last = [*prompt, *answer.tokens][-1]
            rows = target.verify([Work(slot, FlatTree([last], [-1], [0]))])[0]
            answer.best.append(largest(rows.logits(0), SHAPES[-1].width + 1).tolist())
            answer.tokens.append(chooser.choose(rows, 0, ()))
            answer.gaps.append(gap(chooser, rows, 0))
            chooser.committed(answer.tokens[-1:])
            target.keep(slot, [0])
    return answer


def speculate(
    target: Target,
    rule: Sampling,
    prompt: list[int],
    answer: Answer,
    shape: Shape,
    right: NDArray[np.bool_],
    number: int = 0,
) -> list[Divergence]:
    """Verifies the answer in trees of one shape; `right[i]` says whether the candidate at position i is right."""
    chooser, known, found = Chooser(rule, prompt), answer.tokens, list[Divergence]()
    done = 0
    with _opened(target, prompt) as slot:
        while done < len(known):
            flat = comb([*prompt, *known[:done]][-1], answer, done, shape, right)
            rows = target.verify([Work(slot, flat)])[0]
            passed = [0]
            while True:
                row, at = passed[-1], done + len(passed) - 1
                token = chooser.choose(rows, row, known[done:at])
                if token != known[at]:
                    gaps = answer.gaps[at], gap(chooser, rows, row)
                    found.append(Divergence(number, at, known[at], token, *gaps))
                following = flat.children()[row].get(known[at])
                if token != known[at] or following is None or at + 1 >= len(known):
                    break
                passed.append(following)
            target.keep(slot, passed)
            chooser.committed(known[done : done + len(passed)])
            done += len(passed)
    return found


def comb(root: int, answer: Answer, start: int, shape: Shape, right: NDArray[np.bool_]) -> FlatTree:
    """A tree for the positions from `start` on: each level has the most probable tokens; the last is extended."""
    tokens, parents, depths = [root], [-1], [0]
    trunk = 0
    for depth in range(1, shape.depth + 1):
        at = start + depth - 1
        if at >= len(answer.tokens):
            break
        true = answer.tokens[at]
        others = [token for token in answer.best[at] if token != true]
        wanted = [*others[: shape.width - 1], true] if right[at] else others[: shape.width]
        tokens += wanted
        parents += [trunk] * len(wanted)
        depths += [depth] * len(wanted)
        trunk = len(tokens) - 1
    return FlatTree(tokens, parents, depths)


def gap(chooser: Chooser, rows: Verified, row: int) -> float:
    """Nats between the best two scores at a row: of the logits, or with temperature and noise (cut at 1 there)."""
    if not chooser.processor.greedy:
        return chooser.margin
    best = np.sort(np.partition(rows.logits(row), -2)[-2:])
    return float(best[1]) - float(best[0])


@contextmanager
def _opened(target: Target, prompt: list[int]) -> Iterator[int]:
    """A slot that holds a prompt, all but its last token."""
    slot, reused = target.open(prompt)
    for start in range(reused, len(prompt) - 1, CHUNK):
        target.prefill(slot, prompt[start : min(start + CHUNK, len(prompt) - 1)])
    yield slot
    target.close(slot)
