"""How many drafted tokens the engine accepts, position by position, as it runs.

The real engine, target and local draft answer prompts by co-located speculation with chains of k tokens, once for each
way to draft: greedy; sampled with the shared noise; sampled with candidates ranked plainly, as by a worker without the
seed; and classic rejection sampling. Each way continues from its own tokens. `tools.lossless acceptance` ranks
candidates along given completions instead, which compares more ways in less time.
"""

from __future__ import annotations

import argparse
import asyncio
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from cloud_gateway.core.policies.settings import PolicySettings
from cloud_gateway.core.requests.request import GenerationRequest, Speculation, Usage
from cloud_gateway.core.verify.interface import Method
from cloud_gateway.engine.loop import Engine
from cloud_gateway.models.drafts import DraftModel
from cloud_gateway.models.target_model import Pass, Target, Verified, Work
from cloud_gateway.process.config import GatewaySettings
from cloud_gateway.process.loading import engine_settings
from edgespec.core.drafting.algorithm2 import Proposal
from edgespec.core.drafting.proposals import Rank, TokenPath, best_children
from edgespec.core.protocol.messages import Sampling
from tools import options, verbs


@dataclass(frozen=True, slots=True)
class Way:
    """One way to draft and to verify."""

    name: str
    verification: Method = "shared-noise"
    plainly: bool = False
    """The draft ranks by probability alone, whatever the verification knows."""


SHARED, PLAINLY, CLASSIC = (
    Way("shared noise"),
    Way("plain ranking", plainly=True),
    Way("classic rejection", "rejection"),
)
GREEDY = Way("greedy")


class WatchedTarget:
    """A target that notes how deep each verified chain was, and how much of it was kept."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.vocab_size, self.context, self.eos = target.vocab_size, target.context, target.eos
        self.slots, self.kv_tokens = target.slots, target.kv_tokens
        self.open, self.prefill, self.close = target.open, target.prefill, target.close
        self.resize = target.resize
        self.rounds: list[tuple[int, int]] = []
        """(tokens drafted, tokens accepted) of every round."""
        self._depth = 0

    @property
    def passes(self) -> Sequence[Pass]:
        """As the target's."""
        return self._target.passes

    def verify(self, batch: Sequence[Work]) -> Sequence[Verified]:
        """As the target does."""
        self._depth = max(batch[0].tree.depths)
        return self._target.verify(batch)

    def keep(self, slot: int, rows: Sequence[int]) -> None:
        """As the target does."""
        self.rounds.append((self._depth, len(rows) - 1))
        self._target.keep(slot, rows)


class PlainDraft:
    """A draft that ranks by probability alone."""

    def __init__(self, model: DraftModel) -> None:
        self._model = model
        self.leaves = model.leaves

    def draft(
        self, request: Hashable, paths: Sequence[TokenPath], width: int = 1, rank: Rank = best_children
    ) -> Sequence[Proposal]:
        """As the model does, but for the ranking."""
        return self._model.draft(request, paths, width, best_children)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m tools.lossless freerunning`."""
    parser.add_argument("--draft", choices=("quantised", "dropped"), default="dropped")
    parser.add_argument("--prompts", type=Path, default=None, metavar="FILE", help="JSON lines: `prompt` or `turns`")
    count, positive = options.number(int, 1, 4096), options.number(float, 0.01, 2)
    parser.add_argument("--limit", type=count, default=8, help="prompts to use (default %(default)s)")
    parser.add_argument("--max-tokens", type=count, default=64, help="of each answer (default %(default)s)")
    parser.add_argument("--temperatures", type=positive, nargs="+", default=[0.7, 1.0], help="beside greedy")
    parser.add_argument("--top-p", type=options.number(float, 0.01, 1), default=0.95)
    parser.add_argument(
        "--k", type=options.number(int, 1, 16), default=4, help="tokens of a chain (default %(default)s)"
    )
    parser.add_argument("--seed", type=options.number(int, 0, 2**53), default=1)
    parser.add_argument("--json", type=options.output, metavar="OUT", help="write all figures to this file")


def run(args: argparse.Namespace) -> int:
    """Prints a table, and writes all figures where asked. Raises ModelError, ConfigError."""
    report = asyncio.run(measure(args))
    verbs.console().print(table(report))
    verbs.write_json(args.json, report)
    return 0


async def measure(args: argparse.Namespace) -> dict[str, Any]:
    """All ways at all temperatures. Raises ModelError, ConfigError."""
    from cloud_gateway.models.drafts.gguf import LocalDraft
    from cloud_gateway.models.target_model.load import load
    from cloud_gateway.models.target_model.torch import TorchTarget
    from cloud_gateway.models.text import Text
    from edgespec.lab.demo.scene import PROMPTS, read_prompts
    from edgespec.shared import models

    questions = read_prompts(args.prompts or PROMPTS, args.limit, args.seed)
    loaded = load(models.quantised(), "bfloat16", "cpu")
    text = Text(loaded.tokenizer)
    prompts = [text.render_chat([{"role": "user", "content": question}]) for question in questions]
    path = models.quantised() if args.draft == "quantised" else models.dropped()
    draft = LocalDraft(path, context=2048, requests=1, leaves=1)
    target = TorchTarget(loaded.model, slots=1, context=2048, threads=1)
    arms = [(GREEDY, 0.0), *((way, t) for t in args.temperatures for way in (SHARED, PLAINLY, CLASSIC))]
    rows: list[dict[str, Any]] = []
    columns = (TextColumn("{task.description:<28}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=len(arms) * len(prompts))
        for way, temperature in arms:
            progress.update(task, description=f"{way.name}, T = {temperature:g}")
            found = await answers(target, draft, way, temperature, prompts, args, lambda: progress.advance(task))
            rows.append({"way": way.name, "temperature": temperature, **found})
    draft.shutdown()
    settings = {key: getattr(args, key) for key in ("draft", "limit", "max_tokens", "top_p", "k", "seed")}
    return {"settings": settings, "arms": rows}


async def answers(
    target: Target,
    draft: DraftModel,
    way: Way,
    temperature: float,
    prompts: Sequence[list[int]],
    args: argparse.Namespace,
    step: Any = lambda: None,
) -> dict[str, Any]:
    """The figures of one arm."""
    watched = WatchedTarget(target)
    local: Any = PlainDraft(draft) if way.plainly else draft
    policy = PolicySettings(name="colocated", k=args.k, verification=way.verification)
    engine = Engine(watched, local, engine_settings(GatewaySettings(policy=policy)))
    engine.start()
    rounds: list[tuple[int, int]] = []
    usages: list[Usage] = []
    try:
        for number, prompt in enumerate(prompts):
            sampling = Sampling(temperature=temperature, top_p=args.top_p if temperature else 1.0, seed=number)
            request = GenerationRequest(prompt, args.max_tokens, sampling, speculation=Speculation())
            _, end = await engine.submit(request).whole()
            usages.append(end.usage)
            rounds += watched.rounds[:-1]  # the last one was cut short by the end of the answer
            watched.rounds.clear()
            step()
    finally:
        await asyncio.to_thread(engine.stop)
    return figures(rounds, args.k) | {"tokens": sum(usage.completion_tokens for usage in usages)}


def figures(rounds: Sequence[tuple[int, int]], k: int) -> dict[str, Any]:
    """Acceptance by draft position, given that those before it were accepted; of all positions; tokens per round."""
    by_position = []
    for position in range(1, k + 1):
        reached = [accepted for depth, accepted in rounds if depth >= position and accepted >= position - 1]
        by_position.append(sum(accepted >= position for accepted in reached) / max(len(reached), 1))
    tested = sum(min(accepted + 1, depth) for depth, accepted in rounds)
    share = sum(accepted for _, accepted in rounds) / max(tested, 1)
    return {
        "by_position": [round(value, 4) for value in by_position],
        "acceptance": round(share, 4),
        "error": round(math.sqrt(share * (1 - share) / max(tested, 1)), 4),
        "tested": tested,
        "rounds": len(rounds),
        "tokens_per_round": round(sum(accepted + 1 for _, accepted in rounds) / max(len(rounds), 1), 3),
    }


def table(report: dict[str, Any]) -> Table:
    """One row an arm; `÷ greedy` compares the acceptance of all positions."""
    settings = report["settings"]
    made = Table(title=f"{settings['draft']}, chains of {settings['k']}, top-p {settings['top_p']}, free-running")
    positions = [f"position {j}" for j in range(1, settings["k"] + 1)]
    for name in ("T", "ranking", *positions, "all (± 1 s.e.)", "÷ greedy", "tokens per round", "tokens"):
        made.add_column(name, justify="left" if name == "ranking" else "right")
    greedy = report["arms"][0]["acceptance"]
    for arm in report["arms"]:
        made.add_row(
            f"{arm['temperature']:g}",
            arm["way"],
            *(f"{value:.2f}" for value in arm["by_position"]),
            f"{arm['acceptance']:.3f} ± {arm['error']:.3f}",
            f"{arm['acceptance'] / greedy:.2f}" if greedy else "",
            f"{arm['tokens_per_round']:.2f}",
            str(arm["tokens"]),
        )
    return made
