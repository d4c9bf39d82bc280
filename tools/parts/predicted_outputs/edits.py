"""`python -m tools.parts.predicted_outputs.edits`: what a predicted output saves in edits of real files (minutes).

Ten functions of Python's standard library, as this interpreter has them, and ten paragraphs of docs/ are each sent with
the request to write them again with one word replaced. The prompt has the text, so that source `lookup` finds most of
it already. Each arm answers each edit once, decoding greedily, without a draft model. The prediction is the text before
the edit (`original`), after it (`edited`), another edit's text (`wrong`), or what the model answers (`answer`), which
no client can know: it shows the most that a prediction can save. Times are of decoding, and their ratios are to
`lookup`, the shipped default. The target is exact, so that texts have to be equal in all arms: exit status 1 if one is
not.
"""

from __future__ import annotations

import argparse
import asyncio
import fnmatch
import heapq
import inspect
import json
import re
import shutil
import statistics
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from cloud_gateway.core.requests.request import GenerationRequest, Speculation, Usage
from cloud_gateway.engine.loop import Engine
from cloud_gateway.parts.predicted_outputs.parameter import PredictedText
from cloud_gateway.process.config import GatewaySettings
from cloud_gateway.process.loading import LoadedModels, engine_settings, load_models, measure
from edgespec.core.protocol.messages import Sampling
from edgespec.shared.settings import overridden
from edgespec_lab.markdown import table

DOCS = Path(__file__).parents[3] / "docs"
FUNCTIONS: Sequence[tuple[Callable[..., object], str, str]] = (
    (textwrap.dedent, "text", "source"),
    (textwrap.indent, "prefix", "margin"),
    (textwrap.shorten, "width", "columns"),
    (shutil.copyfileobj, "length", "size"),
    (fnmatch.filter, "names", "files"),
    (heapq.merge, "iterables", "inputs"),
    (heapq.nsmallest, "result", "best"),
    (statistics.median_low, "data", "values"),
    (inspect.getmro, "cls", "kind"),
    (json.dump, "fp", "file"),
)
PARAGRAPHS: Sequence[tuple[str, str, str]] = (
    ("threats.md", "gateway", "server"),
    ("protocol.md", "worker", "client"),
    ("policies.md", "draft", "sketch"),
    ("models.md", "model", "network"),
    ("gateway.md", "key", "token"),
    ("worker.md", "owner", "user"),
    ("traces.md", "trace", "record"),
    ("survey.md", "system", "program"),
    ("adaptive.md", "policy", "rule"),
    ("dependencies.md", "library", "package"),
)
LENGTH = 600
"""Characters of a text, cut at the end of a line."""
SPARE = 1.3
"""Tokens of a completion, for one of the edited text."""

Predicted = Literal["original", "edited", "wrong", "answer", ""]


@dataclass(frozen=True)
class Edit:
    """A text, and the word that is to be replaced in it."""

    text: str
    old: str
    new: str

    @property
    def edited(self) -> str:
        """The text after the edit."""
        return re.sub(rf"\b{self.old}", self.new, self.text)

    @property
    def instruction(self) -> str:
        """The user's message."""
        return (
            f"Write this text again and replace the word {self.old} by {self.new}. Change nothing else.\n\n{self.text}"
        )


@dataclass(frozen=True)
class Arm:
    """How the gateway answers."""

    name: str
    sources: tuple[str, ...]
    prediction: Predicted = ""


PLAIN = Arm("no source", ())
ARMS = (
    PLAIN,
    Arm("lookup", ("lookup",)),
    Arm("original", ("lookup",), "original"),
    Arm("edited", ("lookup",), "edited"),
    Arm("wrong", ("lookup",), "wrong"),
    Arm("answer", ("lookup",), "answer"),
    Arm("original without lookup", (), "original"),
    Arm("edited without lookup", (), "edited"),
    Arm("wrong without lookup", (), "wrong"),
    Arm("answer without lookup", (), "answer"),
)


@dataclass(frozen=True)
class Run:
    """One completion."""

    arm: str
    edit: int
    tokens: list[int]
    usage: Usage


def edits() -> list[Edit]:
    """The twenty edits."""
    functions = [Edit(shortened(inspect.getsource(function)), old, new) for function, old, new in FUNCTIONS]
    paragraphs = [Edit(shortened((DOCS / page).read_text()), old, new) for page, old, new in PARAGRAPHS]
    return functions + paragraphs


def shortened(text: str) -> str:
    """The first whole lines of a text."""
    if len(text) > LENGTH:
        return text[:LENGTH].rpartition("\n")[0]
    return text.rstrip()


async def answered(
    engine: Engine, models: LoadedModels, every: Sequence[Edit], number: int, arm: Arm, answer: Sequence[int] = ()
) -> Run:
    """One edit by one arm. `answer`: the completion as it is without any source."""
    edit = every[number]
    other = every[(number + 7) % len(every)]
    predictions = {
        "original": edit.text,
        "edited": edit.edited,
        "wrong": other.text,
        "answer": models.text.decode(answer),
    }
    prompt = models.text.render_chat([{"role": "user", "content": edit.instruction}])
    request = GenerationRequest(
        prompt,
        round(SPARE * len(models.text.continuation(edit.edited))),
        Sampling(temperature=0.0),
        speculation=Speculation(policy="adaptive", sources=arm.sources),
    )
    if arm.prediction:
        prepared = PredictedText(predictions[arm.prediction]).prepare(models.text.continuation, models.target.context)
        request = replace(request, brought=[prepared])
    tokens, done = await engine.submit(request).whole()
    return Run(arm.name, number, tokens, done.usage)


async def measured(engine: Engine, models: LoadedModels, count: int) -> list[Run]:
    """All arms on each edit: the one without sources, then the others, beginning with another one each time. The first
    edit is answered once before, untimed."""
    every = edits()
    runs: list[Run] = []
    engine.start()
    try:
        await answered(engine, models, every, 0, PLAIN)
        for number in range(count):
            plain = await answered(engine, models, every, number, PLAIN)
            runs.append(plain)
            first = 1 + number % (len(ARMS) - 1)
            for arm in (*ARMS[first:], *ARMS[1:first]):
                runs.append(await answered(engine, models, every, number, arm, plain.tokens))
                print(f"edit {number + 1} of {count}: {arm.name}", file=sys.stderr)
    finally:
        await asyncio.to_thread(engine.stop)

    return runs


def rows(runs: Sequence[Run]) -> list[list[str]]:
    """A row for each arm."""
    by_arm = {arm.name: [run for run in runs if run.arm == arm.name] for arm in ARMS}
    found: list[list[str]] = []
    for name, own in by_arm.items():
        tokens = sum(len(run.tokens) for run in own)
        rounds = sum(run.usage.rounds for run in own)
        ratios = [
            run.usage.times.decode_s / before.usage.times.decode_s
            for run, before in zip(own, by_arm["lookup"], strict=True)
        ]
        total = sum(run.usage.times.decode_s for run in own) / sum(run.usage.times.decode_s for run in by_arm["lookup"])
        span = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        found.append([name, str(tokens), f"{tokens / rounds:.2f}", f"{total:.3f}", span])

    return found


def unequal(runs: Sequence[Run]) -> list[int]:
    """The edits whose texts differ between arms."""
    texts: dict[int, set[tuple[int, ...]]] = {}
    for run in runs:
        texts.setdefault(run.edit, set()).add(tuple(run.tokens))
    return [number for number, different in texts.items() if len(different) > 1]


def main() -> int:
    """Prints the table; returns 1 if texts differ."""
    parser = argparse.ArgumentParser(prog="python -m tools.parts.predicted_outputs.edits")
    parser.add_argument("--target", default="auto:quantised", help="a GGUF file")
    parser.add_argument("--edits", type=int, default=20, help="how many of the edits, at most 20")
    options = parser.parse_args()

    settings = overridden(
        GatewaySettings(), {"target.model": options.target, "local_draft.model": "", "target.exact": "yes"}
    )
    models = load_models(settings)
    curve = measure(models.target)
    engine = Engine(models.target, models.local, engine_settings(settings), curve=curve, on_idle=models.idle)
    runs = asyncio.run(measured(engine, models, options.edits))

    heads = ("arm", "tokens", "tokens a pass", "time ÷ lookup", "median of edits (least to most)")
    print("\n".join(table(heads, rows(runs))))
    print(f"texts that differ between arms: {unequal(runs) or 'none'}")
    return int(bool(unequal(runs)))


if __name__ == "__main__":
    raise SystemExit(main())
