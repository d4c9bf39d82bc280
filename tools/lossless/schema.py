"""Are answers with a JSON schema valid, and what does the grammar cost speculation?

Each prompt is answered twice by the real target, with and without a nested schema; the draft is the gateway's own
(policy `colocated`), so that the tokens per round depend on no clock. With `--worker` the answers come over the API of
a real gateway, drafted by a paired worker behind a delayed link, and each is compared with plain decoding. Every
answer is judged by a validator that shares nothing with the grammar. Exit code 0 only when all answers with the schema
are valid and none differs from plain decoding.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from cloud_gateway.core.policies.settings import PolicySettings
from cloud_gateway.core.requests.request import GenerationRequest, Speculation
from cloud_gateway.engine.loop import Engine
from cloud_gateway.models.grammar import Grammars, Schema
from cloud_gateway.models.text import Text
from cloud_gateway.process.config import GatewaySettings
from cloud_gateway.process.loading import engine_settings
from edgespec.core.protocol.messages import Sampling
from tools import options, verbs
from tools.lossless.topics import QUESTION, SCHEMA, TOPICS, valid

if TYPE_CHECKING:
    from cloud_gateway.models.target_model.load import Dtype


class Answerer(Protocol):
    """Who answers the prompts."""

    async def answer(self, topic: str, args: argparse.Namespace, *, grammar: bool) -> dict[str, Any]:
        """One answer and its figures."""


class Bench:
    """Target, draft and engine for one run, without a server."""

    def __init__(self, model: Path | None, draft: Path | None, dtype: Dtype) -> None:
        """Raises ModelError where a model is missing."""
        from cloud_gateway.models.drafts.gguf import LocalDraft
        from cloud_gateway.models.target_model.load import load
        from cloud_gateway.models.target_model.torch import TorchTarget
        from edgespec.shared import models

        loaded = load(model or models.quantised(), dtype, "cpu")
        target = TorchTarget(loaded.model, slots=1, context=512, threads=1)
        self.text = Text(loaded.tokenizer)
        self.schema: Schema = Grammars(loaded.tokenizer, target.vocab_size, target.eos).compile(SCHEMA)
        local = LocalDraft(draft or models.dropped(), context=1024, requests=1, threads=1)
        self.engine = Engine(target, local, engine_settings(GatewaySettings(policy=PolicySettings(name="colocated"))))

    async def answer(self, topic: str, args: argparse.Namespace, *, grammar: bool) -> dict[str, Any]:
        """One answer and its figures."""
        request = GenerationRequest(
            tokens=self.text.render_chat([{"role": "user", "content": QUESTION.format(topic=topic)}]),
            max_tokens=args.tokens if grammar else args.free_tokens,
            sampling=Sampling(temperature=args.temperature, seed=args.seed),
            speculation=Speculation(policy="colocated", k=args.k),
            constraint=self.schema.constraint() if grammar else None,
        )
        tokens, end = await self.engine.submit(request).whole()
        usage, text = end.usage, self.text.decode(tokens)
        return {
            "topic": topic, "valid": valid(text), "finish": end.finish, "error": end.error,
            "tokens": usage.completion_tokens, "rounds": usage.rounds,
            "accepted": sum(usage.accepted.values()), "drafted": sum(usage.drafted.values()), "text": text,
        }  # fmt: skip


def summary(answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Shares and ratios over all answers of one arm."""
    tokens, rounds = sum(a["tokens"] for a in answers), sum(a["rounds"] for a in answers)
    compared = [a["identical"] for a in answers if "identical" in a]
    return ({"identical_to_plain": sum(compared)} if compared else {}) | {
        "answers": len(answers),
        "valid_share": sum(a["valid"] for a in answers) / len(answers),
        "tokens_per_round": round(tokens / max(rounds, 1), 3),
        "accepted_per_drafted": round(
            sum(a["accepted"] for a in answers) / max(sum(a["drafted"] for a in answers), 1), 3
        ),
        "tokens_median": statistics.median(a["tokens"] for a in answers),
    }


@contextmanager
def answering(args: argparse.Namespace) -> Iterator[Answerer]:
    """Who answers, set up and taken down. Raises ModelError, RigError."""
    if args.worker:
        from tools.lossless.served import served

        with served(args) as answerer:
            yield answerer
        return
    bench = Bench(args.model, args.draft, args.dtype)
    bench.engine.start()
    try:
        yield bench
    finally:
        bench.engine.stop()


async def both_arms(args: argparse.Namespace) -> dict[str, Any]:
    """Both arms over the first `args.prompts` topics. Raises ModelError, RigError."""
    arms: dict[str, list[dict[str, Any]]] = {"with_grammar": [], "without_grammar": []}
    with answering(args) as answerer:
        for topic in TOPICS[: args.prompts]:
            for arm, answers in arms.items():
                answers.append(await answerer.answer(topic, args, grammar=arm == "with_grammar"))
            both = " | ".join(f"{a[-1]['tokens']} tokens in {a[-1]['rounds']}" for a in arms.values())
            print(f"{topic:16} {'valid' if arms['with_grammar'][-1]['valid'] else 'INVALID':8} {both}", file=sys.stderr)
    names = ("prompts", "temperature", "seed", "k", "tokens", "free_tokens", "worker", "dtype")
    return {"settings": {name: getattr(args, name) for name in names}, "schema": SCHEMA} | {
        arm: summary(answers) | {"each": answers} for arm, answers in arms.items()
    }


def run(args: argparse.Namespace) -> int:
    """Both arms, written and summed up. Raises ModelError, RigError."""
    began = time.perf_counter()
    report = asyncio.run(both_arms(args))
    report["seconds"] = round(time.perf_counter() - began, 1)
    verbs.write_json(args.json, report)
    brief = {arm: {k: v for k, v in report[arm].items() if k != "each"} for arm in ("with_grammar", "without_grammar")}
    print(json.dumps(brief, indent=1))
    same = all(report[arm].get("identical_to_plain", len(TOPICS)) >= report[arm]["answers"] for arm in brief)
    return 0 if report["with_grammar"]["valid_share"] == 1 and same else 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m tools.lossless schema`."""
    parser.add_argument(
        "--prompts",
        type=options.number(int, 1, len(TOPICS)),
        default=len(TOPICS),
        help="how many",
    )
    parser.add_argument("--temperature", type=options.number(float, 0, 2), default=0.7)
    parser.add_argument("--seed", type=options.number(int, 0, 2**63 - 1), default=1)
    parser.add_argument(
        "--k", type=options.number(int, 1, 16), default=3, help="tokens drafted for each round (default %(default)s)"
    )
    parser.add_argument(
        "--tokens",
        type=options.number(int, 1, 4096),
        default=300,
        help="most of an answer with the schema, which bounds it too",
    )
    parser.add_argument(
        "--free-tokens",
        type=options.number(int, 1, 4096),
        default=64,
        help="most of an answer without",
    )
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--worker", action="store_true", help="over the API of a gateway with a paired worker")
    parser.add_argument("--model", type=Path, default=None, help="GGUF file of the target (default: the demo's)")
    parser.add_argument("--draft", type=Path, default=None, help="GGUF file of the draft (default: the demo's)")
    parser.add_argument("--json", type=options.output, metavar="OUT", help="write everything here, answers included")
