"""`python -m tools.lossless.schema`: are answers with a JSON schema valid, and what does the grammar cost speculation?

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
import re
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from cloud_gateway.core.request import DoneEvent, GenerationRequest, Speculation, TokensEvent
from cloud_gateway.engine import Engine, EngineSettings
from cloud_gateway.grammar import Grammars, Schema
from cloud_gateway.text import Text
from edgespec.core.errors import EdgespecError
from edgespec.core.messages import Sampling
from tools import options

if TYPE_CHECKING:
    from cloud_gateway.target.load import Dtype

TOPICS = (
    "a lighthouse,a violin,the Atlantic,a fox,a bakery,a glacier,chess,a telescope,a tram,an orchard,a desert,"
    "a submarine,a library,an owl,a bridge,a volcano,a bicycle,a market,a whale,a clock,a harbour,a forest,"
    "a kite,a castle,a robot,a piano,a rainbow,a spider,a school,a pyramid,a comet,a tea house,a windmill,"
    "a river,a wolf,a museum,a rocket,a garden,a mirror,a camel,a stadium,an island,a beehive,a train,"
    "a canyon,a theatre,a penguin,a ship,a cave,a farm"
).split(",")
"""Fifty, one for each prompt."""
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "kind": {"enum": ["place", "animal", "thing", "idea"]},
        "size": {
            "type": "object",
            "properties": {
                "metres": {"type": "number", "minimum": 0, "maximum": 100000},
                "large": {"type": "boolean"},
            },
            "required": ["metres", "large"],
            "additionalProperties": False,
        },
        "facts": {
            "type": "array",
            "minItems": 1,
            "maxItems": 2,
            "items": {
                "type": "object",
                "properties": {
                    "year": {"type": ["integer", "null"], "minimum": 1000, "maximum": 2100},
                    "text": {"type": "string", "maxLength": 60},
                    "code": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
                },
                "required": ["year", "text", "code"],
                "additionalProperties": False,
            },
        },
    },
    "required": ["name", "kind", "size", "facts"],
    "additionalProperties": False,
}
QUESTION = "Describe {topic} as JSON with the fields name, kind, size and facts."
KINDS: dict[str, tuple[type, ...]] = {
    "object": (dict,), "array": (list,), "string": (str,), "number": (int, float), "integer": (int,),
    "boolean": (bool,), "null": (type(None),),
}  # fmt: skip


def satisfies(value: Any, schema: dict[str, Any]) -> bool:
    """Whether a JSON value satisfies a schema of the keywords that SCHEMA uses."""
    if "enum" in schema:
        return value in schema["enum"]
    kinds = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
    if not any(isinstance(value, KINDS[kind]) and (kind == "boolean") == isinstance(value, bool) for kind in kinds):
        return False
    if isinstance(value, dict):
        known = schema["properties"]
        return set(schema["required"]) <= set(value) <= set(known) and all(
            satisfies(one, known[key]) for key, one in value.items()
        )
    if isinstance(value, list):
        return schema["minItems"] <= len(value) <= schema["maxItems"] and all(
            satisfies(one, schema["items"]) for one in value
        )
    if isinstance(value, str):
        return len(value) <= schema.get("maxLength", 10**9) and bool(re.search(schema.get("pattern", ""), value))
    return value is None or isinstance(value, bool) or schema["minimum"] <= value <= schema["maximum"]


def valid(text: str) -> bool:
    """Whether a text is JSON that satisfies SCHEMA."""
    try:
        return satisfies(json.loads(text), SCHEMA)
    except ValueError:
        return False


class Answerer(Protocol):
    """Who answers the prompts."""

    async def answer(self, topic: str, args: argparse.Namespace, *, grammar: bool) -> dict[str, Any]:
        """One answer and its figures."""


class Bench:
    """Target, draft and engine for one run, without a server."""

    def __init__(self, model: Path | None, draft: Path | None, dtype: Dtype) -> None:
        """Raises ModelError where a model is missing."""
        from cloud_gateway.drafts.gguf import LocalDraft
        from cloud_gateway.target.load import load
        from cloud_gateway.target.torch import TorchTarget
        from edgespec import models

        loaded = load(model or models.quantised(), dtype, "cpu")
        target = TorchTarget(loaded.model, slots=1, context=512, threads=1)
        self.text = Text(loaded.tokenizer)
        self.schema: Schema = Grammars(loaded.tokenizer, target.vocab_size, target.eos).compile(SCHEMA)
        local = LocalDraft(draft or models.dropped(), context=1024, requests=1, threads=1)
        self.engine = Engine(target, local, EngineSettings(policy="colocated"))

    async def answer(self, topic: str, args: argparse.Namespace, *, grammar: bool) -> dict[str, Any]:
        """One answer and its figures."""
        request = GenerationRequest(
            tokens=self.text.render_chat([{"role": "user", "content": QUESTION.format(topic=topic)}]),
            max_tokens=args.tokens if grammar else args.free_tokens,
            sampling=Sampling(temperature=args.temperature, seed=args.seed),
            speculation=Speculation(policy="colocated", k=args.k),
            constraint=self.schema.constraint() if grammar else None,
        )
        tokens: list[int] = []
        async for event in self.engine.submit(request):
            if isinstance(event, TokensEvent):
                tokens += event.tokens
            elif isinstance(event, DoneEvent):
                usage, text = event.usage, self.text.decode(tokens)
                return {
                    "topic": topic, "valid": valid(text), "finish": event.finish, "error": event.error,
                    "tokens": usage.completion_tokens, "rounds": usage.rounds,
                    "accepted": sum(usage.accepted.values()), "drafted": sum(usage.drafted.values()), "text": text,
                }  # fmt: skip
        raise AssertionError("the stream ended without a DoneEvent")


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
    """Who answers, set up and taken down. Raises ModelError, StageError."""
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


async def run(args: argparse.Namespace) -> dict[str, Any]:
    """Both arms over the first `args.prompts` topics. Raises ModelError, StageError."""
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


def main(argv: Sequence[str] | None = None) -> int:
    """Runs what was asked for; see the module."""
    args = parse(argv)
    began = time.perf_counter()
    try:
        report = asyncio.run(run(args))
    except EdgespecError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    report["seconds"] = round(time.perf_counter() - began, 1)
    text = json.dumps(report, indent=1, ensure_ascii=False)
    if args.json:
        args.json.write_text(text + "\n")
    brief = {arm: {k: v for k, v in report[arm].items() if k != "each"} for arm in ("with_grammar", "without_grammar")}
    print(json.dumps(brief, indent=1))
    same = all(report[arm].get("identical_to_plain", len(TOPICS)) >= report[arm]["answers"] for arm in brief)
    return 0 if report["with_grammar"]["valid_share"] == 1 and same else 1


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.lossless.schema", description=(__doc__ or "").split("\n")[0])
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
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
