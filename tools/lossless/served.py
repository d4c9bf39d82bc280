"""JSON answers over the API of a real gateway with a paired worker on a delayed link (for `tools.lossless schema`)."""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from edgespec.lab.rig import Rig
from edgespec.shared import models
from tools.lossless.topics import QUESTION, SCHEMA, valid

RTT_MS = 20.0
PHI = 3.0
"""Entropy threshold for this small target, as in the demo."""


class Served:
    """Answers each prompt twice, with the worker and by plain decoding."""

    def __init__(self, stage: Rig) -> None:
        """The stage stands, and its worker is linked."""
        self.stage = stage

    async def answer(self, topic: str, args: argparse.Namespace, *, grammar: bool) -> dict[str, Any]:
        """One answer of the worker's arm, its figures, and whether plain decoding says the same."""
        return await asyncio.to_thread(self._answer, topic, args, grammar)

    def _answer(self, topic: str, args: argparse.Namespace, grammar: bool) -> dict[str, Any]:
        body = request(topic, args, grammar)
        answer = self.stage.complete(body | {"edgespec": {"policy": "wanspec", "phi": PHI, "k": args.k}})
        plain = self.stage.complete(body | {"edgespec": {"policy": "plain"}})
        choice, extension = answer["choices"][0], answer["usage"]["edgespec"]
        text = choice["message"]["content"]
        return {
            "topic": topic, "valid": valid(text), "finish": choice["finish_reason"], "error": None,
            "identical": [choice] == plain["choices"],
            "tokens": answer["usage"]["completion_tokens"], "rounds": extension["rounds"],
            "accepted": sum(extension["accepted"].values()), "drafted": sum(extension["drafted"].values()),
            "accepted_from_worker": extension["accepted"].get("worker", 0), "frames_used": extension["frames"]["used"],
            "text": text,
        }  # fmt: skip


def request(topic: str, args: argparse.Namespace, grammar: bool) -> dict[str, Any]:
    """The body for one prompt, without the speculation part."""
    form = {"type": "json_schema", "json_schema": {"name": "description", "schema": SCHEMA, "strict": True}}
    return {
        "messages": [{"role": "user", "content": QUESTION.format(topic=topic)}],
        "max_tokens": args.tokens if grammar else args.free_tokens,
        "temperature": args.temperature,
        "seed": args.seed,
        **({"response_format": form} if grammar else {}),
    }


@contextmanager
def served(args: argparse.Namespace) -> Iterator[Served]:
    """A gateway, a link and a paired worker, until the block is left. Raises ModelError, RigError."""
    model, draft = str(args.model or models.quantised()), str(args.draft or models.quantised())
    local = str(args.draft or models.dropped())
    threads = {"target.threads": 1, "local_draft.threads": 1}
    with (
        tempfile.TemporaryDirectory(prefix="edgespec-schema-") as folder,
        Rig(Path(folder), model, draft, local, args.dtype, RTT_MS, threads, {"draft.threads": 1}).linked() as rig,
    ):
        yield Served(rig)
