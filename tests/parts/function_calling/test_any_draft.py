"""A completion with tools, beside a schema or not, is the same with any draft."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cloud_gateway.api.grammars import Grammars
from cloud_gateway.core.requests.request import GenerationRequest
from cloud_gateway.parts.function_calling.calls import CLOSING, OPENING, read_calls
from cloud_gateway.parts.function_calling.tools import Tool, ToolChoice, offered
from edgespec.core.protocol.messages import Sampling
from tests.support.constrained import PROMPT, Letters, answer, draft, json_form, text_of
from tests.support.schemas import NESTED
from tools.doubles.workers import LoopWorker

pytestmark = pytest.mark.driven
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
    wanted = offer.around(None if schema is None else json_form(schema))
    assert wanted is not None
    compiled = grammars.compile(wanted, b"")
    found = list[Any]()
    for seed in range(2):
        sampling = Sampling(temperature=1.0, seed=seed)
        answers = []
        for worker, local in ((None, None), (LoopWorker(model=Letters()), draft())):
            request = GenerationRequest([*PROMPT, seed], 120, sampling, constraint=compiled())
            answers.append((await answer(request, worker, local))[0])
        assert answers[0] == answers[1]
        found.append((text_of(tokenizer, answers[0]), read_calls(text_of(tokenizer, answers[0]), {"f", "g"})))
    if offer.must:
        assert all(calls or text.count(CLOSING) for text, calls in found), found
        assert name != "one" or {call.name for _, calls in found for call in calls} == {"g"}
    if schema and not offer.must:
        assert all(text.startswith(("{", OPENING)) for text, _ in found), found
