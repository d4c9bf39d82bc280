"""Completions under a constraint, by an engine over table models of the tiny tokenizer's bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from cloud_gateway.api.grammars import Grammar
from cloud_gateway.core.requests.request import DoneEvent, GenerationRequest
from cloud_gateway.models.text import Text
from tests.support.engines import engines
from tests.support.tiny_tokenizer import EOS_ID, PADDED_VOCAB
from tools.doubles.engines import TableDraft, TableTarget
from tools.doubles.model import HashModel, Logits
from tools.doubles.workers import LoopWorker

PROMPT = [30, 31, 40]


def json_form(schema: dict[str, Any]) -> Grammar:
    """The grammar of `response_format` with this schema."""
    return Grammar(schema, "response_format")


class Letters(HashModel):
    """Over the whole byte vocabulary, fond of the letters and digits that come first in it."""

    def __init__(self, right: float = 1.0) -> None:
        super().__init__(PADDED_VOCAB, right)

    def row(self, tokens: Sequence[int]) -> Logits:
        logits = super().row(tokens)
        logits[5:41] += 4
        return logits


def text_of(tokenizer: Any, tokens: list[int]) -> str:
    return Text(tokenizer).decode(tokens)


async def answer(
    request: GenerationRequest, worker: LoopWorker | None, local: TableDraft | None
) -> tuple[list[int], DoneEvent, list[Any]]:
    target = TableTarget(model=Letters(), eos=frozenset({EOS_ID}))
    with engines() as start:
        stream = start(worker, local, target).submit(request)
        tokens: list[int] = []
        readings: list[Any] = []

        async for event in stream:
            if isinstance(event, DoneEvent):
                return tokens, event, readings
            tokens += event.tokens
            readings += event.readings or []
            await asyncio.sleep(0)
    raise AssertionError("the stream ended without a DoneEvent")


def draft(right: float = 0.7) -> TableDraft:
    return TableDraft(model=Letters(right))
