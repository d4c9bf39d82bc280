"""Completions that call tools: the same with any draft."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cloud_gateway.api.tools import CLOSING, OPENING, Tool, ToolChoice, offered, read_calls
from cloud_gateway.core.requests.request import GenerationRequest
from cloud_gateway.models.grammar import Grammars
from edgespec.core.protocol.messages import Sampling
from tests.cloud_gateway.models import test_grammar
from tests.cloud_gateway.models.test_grammar import PROMPT, Letters, answer, draft, text_of
from tests.support.schemas import NESTED
from tools.doubles.workers import LoopWorker

pytestmark = pytest.mark.driven
tokenizer, grammars = test_grammar.tokenizer, test_grammar.grammars
FLAG = {"properties": {"on": {"type": "boolean"}}, "required": ["on"], "additionalProperties": False}
TOOLS = msgspec.convert(
    [{"type": "function", "function": {"name": name, "parameters": FLAG, "strict": True}} for name in "fg"], list[Tool]
)
OFFERS = {
    "required": offered(TOOLS, "required"),
    "one": offered(TOOLS, msgspec.convert({"type": "function", "function": {"name": "g"}}, ToolChoice)),
    "auto": offered(TOOLS, "auto"),
}


@pytest.mark.claim("a-completion-with-tools-is-the-same-with-any-draft")
@pytest.mark.parametrize("name", OFFERS)
@pytest.mark.parametrize("schema", [None, NESTED], ids=["text", "json"])
async def test_a_completion_with_tools_is_the_same_with_any_draft(
    grammars: Grammars, tokenizer: Any, name: str, schema: Any
) -> None:
    offer = OFFERS[name]
    wanted = offer.grammar(schema)
    assert wanted is not None
    compiled, found = grammars.compile(wanted.schema, b"", wanted.param, wanted.lark), list[Any]()
    for seed in range(2):
        sampling, answers = Sampling(temperature=1.0, seed=seed), []
        for worker, local in ((None, None), (LoopWorker(model=Letters()), None), (LoopWorker(0.001), draft())):
            request = GenerationRequest([*PROMPT, seed], 200, sampling, constraint=compiled.beside())
            answers.append((await answer(request, worker, local))[0])
        assert answers[0] == answers[1] == answers[2]
        found.append((text_of(tokenizer, answers[0]), read_calls(text_of(tokenizer, answers[0]), {"f", "g"})))
    if offer.must:
        assert all(calls or text.count(CLOSING) for text, calls in found), found
        assert name != "one" or {call.name for _, calls in found for call in calls} == {"g"}
    if schema and not offer.must:
        assert all(text.startswith(("{", OPENING)) for text, _ in found), found
