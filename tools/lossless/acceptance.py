"""How often sampled drafts are right, with the shared noise and without it.

The target answers prompts at several temperatures by plain decoding with the shared noise. The draft model then ranks
its draft tokens at every position of those answers. The answer does not depend on the drafts, so a chain drafted after
any token is right up to depth j exactly where the first choices at the next j positions all match: so one pass over the
answer gives the acceptance of every draft position. Classic rejection sampling is priced by sum(min(p, q)).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table

from cloud_gateway.core.verify.flatten import FlatTree
from cloud_gateway.core.verify.shared_noise import Chooser
from cloud_gateway.models.target_model import Target, Verified, Work
from edgespec.core.drafting.algorithm2 import Proposal
from edgespec.core.drafting.ranking import Ranker, Spread
from edgespec.core.protocol.messages import Sampling
from edgespec.core.sampling.logits import Processor
from tools import options, verbs

DEPTHS = (1, 2, 3, 4)
MISSED = 8.0
"""Nats that a token costs which the draft did not propose."""

Floats = NDArray[np.float64]


@dataclass
class Series:
    """One way of ranking over all answers: the rank, price and entropy at each token. Answers are kept apart."""

    ranks: list[list[int]] = field(default_factory=list)
    prices: list[float] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)

    def add(self, proposal: Proposal, token: int) -> None:
        """The target took `token` where the draft proposed these."""
        rank = list(proposal.tokens).index(token) if token in proposal.tokens else len(proposal.tokens) + 99
        self.ranks[-1].append(rank)
        self.prices.append(min(proposal.costs[rank], MISSED) if rank < len(proposal.tokens) else MISSED)
        self.entropies.append(proposal.entropy)

    def figures(self) -> dict[str, Any]:
        """Acceptance by draft position, of the best two, mean price, and how well entropy predicts a wrong proposal."""
        flat = np.array([rank for answer in self.ranks for rank in answer])
        return {
            "by_position": [_chain([[rank == 0 for rank in answer] for answer in self.ranks], j) for j in DEPTHS],
            "top_2": float((flat < 2).mean()),
            "price_nats": float(np.mean(self.prices)),
            "entropy_auc": _auc(np.array(self.entropies), flat > 0),
        }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m tools.lossless acceptance`."""
    parser.add_argument("--draft", choices=("quantised", "dropped"), default="dropped")
    parser.add_argument("--prompts", type=Path, default=None, metavar="FILE", help="JSON lines: `prompt` or `turns`")
    parser.add_argument("--limit", type=options.number(int, 1, 4096), default=8, help="prompts to use")
    parser.add_argument("--max-tokens", type=options.number(int, 1, 4096), default=48)
    parser.add_argument("--temperatures", type=options.number(float, 0, 2), nargs="+", default=[0.0, 0.7, 1.0])
    parser.add_argument("--top-p", type=options.number(float, 0.01, 1), default=0.95)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=options.output, metavar="OUT")


def run(args: argparse.Namespace) -> int:
    """Prints a table per temperature, and writes all figures where asked. Raises ModelError, ConfigError."""
    report = measure(args)
    for temperature, ways in report["temperatures"].items():
        verbs.console().print(_table(f"{args.draft}, T = {temperature}, top-p {args.top_p}", ways))
    verbs.write_json(args.json, report)
    return 0


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """All figures. Raises ModelError, ConfigError."""
    from cloud_gateway.models.target_model.load import load
    from cloud_gateway.models.target_model.torch import TorchTarget
    from cloud_gateway.models.text import Text
    from edgespec.lab.demo.scene import PROMPTS, read_prompts
    from edgespec.llamacpp.drafter import Drafter
    from edgespec.shared import models

    questions = read_prompts(args.prompts or PROMPTS, args.limit, args.seed)
    loaded = load(models.quantised(), "float32", "cpu")
    text = Text(loaded.tokenizer)
    drafter = Drafter(models.quantised() if args.draft == "quantised" else models.dropped())
    target = TorchTarget(loaded.model, slots=1, context=2048, threads=1)
    found: dict[str, Any] = {}
    for temperature in args.temperatures:
        rule = Sampling(temperature=temperature, top_p=args.top_p if temperature else 1.0)
        ways = {name: Series() for name in ("shared noise", "shared noise, resolved", "plain ranking")}
        spread, classic = Spread(), list[list[float]]()
        for number, question in enumerate(track(questions, f"T = {temperature}", console=Console(stderr=True))):
            prompt = text.render_chat([{"role": "user", "content": question}])
            seed = args.seed * 1000 + number
            answer, rows = decode(target, rule, prompt, seed, args.max_tokens)
            drafted = teacher_force(drafter, prompt, answer)
            classic.append([_overlap(rule, p, q) for p, q in zip(rows, drafted)] if temperature else [])
            _rank(ways, rule, prompt, seed, answer, drafted, spread)
        figures = {name: series.figures() for name, series in ways.items()}
        if temperature:
            figures["classic rejection"] = {"by_position": [_chain(classic, j) for j in DEPTHS]}
        found[str(temperature)] = {"spread": spread.value, **figures}
    drafter.shutdown()
    return {"draft": args.draft, "prompts": len(questions), "max_tokens": args.max_tokens, "temperatures": found}


def decode(
    target: Target, rule: Sampling, prompt: list[int], seed: int, count: int
) -> tuple[list[int], list[NDArray[np.float32]]]:
    """An answer by plain decoding, with the target's logits before each of its tokens."""
    chooser, answer, rows = Chooser(rule, prompt, seed=seed), list[int](), list[NDArray[np.float32]]()
    slot, reused = target.open(prompt)
    target.prefill(slot, prompt[reused:-1])
    while len(answer) < count and not (answer and answer[-1] in target.eos):
        flat = FlatTree([[*prompt, *answer][-1]], [-1], [0])
        result: Verified = target.verify([Work(slot, flat)])[0]
        answer.append(chooser.choose(result, 0, ()))
        rows.append(result.logits(0).copy())
        chooser.committed(answer[-1:])
        target.keep(slot, [0])
    target.close(slot)
    return answer, rows


def teacher_force(drafter: Any, prompt: list[int], answer: list[int]) -> list[NDArray[np.float32]]:
    """The draft model's logits before each token of the answer."""
    rows: list[NDArray[np.float32]] = []

    def capture(logits: NDArray[np.float32], path: Sequence[int], width: int) -> Proposal:
        rows.append(logits.copy())
        return Proposal([], [], 0.0)

    drafter.open("acceptance", prompt)
    for token in answer:
        while drafter.catch_up("acceptance", 128):
            pass
        drafter.step("acceptance", [()], 1, capture)
        drafter.commit("acceptance", [token])
    drafter.close("acceptance")
    return rows


def _rank(
    ways: dict[str, Series],
    rule: Sampling,
    prompt: list[int],
    seed: int,
    answer: list[int],
    drafted: Sequence[NDArray[np.float32]],
    spread: Spread,
) -> None:
    noisy = Sampling(temperature=rule.temperature, top_p=rule.top_p, seed=seed)
    rankers: dict[str, Callable[..., Proposal]] = {
        "shared noise": Ranker(noisy, prompt, spread=spread),
        "shared noise, resolved": Ranker(noisy, prompt, spread=Spread(spread.value), resolved=True),
        "plain ranking": Ranker(rule, prompt, spread=Spread(1.0)),
    }
    for series in ways.values():
        series.ranks.append([])
    for token, logits in zip(answer, drafted):
        for name, ranker in rankers.items():
            ways[name].add(ranker(logits, (), 16), token)
            ranker.committed([token])  # type: ignore[attr-defined]


def _overlap(rule: Sampling, target: NDArray[np.float32], draft: NDArray[np.float32]) -> float:
    processor = Processor(rule)
    p = processor.candidates(target).probabilities(len(target))
    q = processor.candidates(draft).probabilities(len(draft))
    return float(np.minimum(p, q).sum())


def _chain(answers: Sequence[Sequence[float]], depth: int) -> float:
    """Mean over all starts of the product of the next `depth` values, divided by that of one fewer: the acceptance of

    draft position `depth`, given that those before it were accepted.
    """
    windows = [np.array(a[i : i + depth], float) for a in answers for i in range(len(a) - depth + 1)]
    before = float(np.mean([w[:-1].prod() for w in windows])) if windows else 0.0
    return float(np.mean([w.prod() for w in windows])) / before if before else 0.0


def _auc(scores: Floats, wrong: NDArray[np.bool_]) -> float | None:
    """Probability that a mismatch has the higher score than a match; equal scores count half."""
    if wrong.all() or not wrong.any():
        return None
    right = np.sort(scores[~wrong])
    below = np.searchsorted(right, scores[wrong], "left") + np.searchsorted(right, scores[wrong], "right")
    return float(below.mean() / 2 / len(right))


def _table(title: str, ways: dict[str, Any]) -> Table:
    table = Table(title=f"{title} (learned spread {ways['spread']})")
    for name in ("ranking", *(f"position {j}" for j in DEPTHS), "best two", "price (nats)", "entropy predicts"):
        table.add_column(name)
    for name, way in ways.items():
        if name == "spread":
            continue
        rest = [f"{way[key]:.3f}" if way.get(key) is not None else "" for key in ("top_2", "price_nats", "entropy_auc")]
        table.add_row(name, *(f"{value:.3f}" for value in way["by_position"]), *rest)
    return table
