"""JSON completions through the official client, and what a schema can cost others."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import openai
import pytest

from cloud_gateway.api import Backend, ServedModel
from cloud_gateway.api.grammars import Grammar
from cloud_gateway.engine.loop import Engine
from cloud_gateway.models.target_model.llamacpp import LlamaCppTarget
from cloud_gateway.models.text import Text
from cloud_gateway.parts.structured_output import grammar
from cloud_gateway.parts.structured_output.grammar import GuidedGrammars, Schema
from tests.support.echo import Echo, echo_gateway, post
from tests.support.engines import engine_settings, started
from tests.support.schemas import MAKERS, NESTED, keeps_nested, largest
from tests.support.served import PARAMETERS
from tools.doubles.limits import request_limits

ASK: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "a cat"}]}
FORMAT = {"type": "json_schema", "json_schema": {"name": "pet", "schema": NESTED, "strict": True}}


class Gated(GuidedGrammars):
    """Compiles NESTED only while `gate` is set."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.begun = threading.Event()
        self.gate = threading.Event()
        self.gate.set()

    def compile(self, grammar: Grammar, scope: bytes = b"") -> Schema:
        if grammar.root == NESTED:
            self.begun.set()
            assert self.gate.wait(60)
        return super().compile(grammar, scope)


@pytest.fixture
def grammars(tokenizer: Any, target: LlamaCppTarget, monkeypatch: pytest.MonkeyPatch) -> Gated:
    monkeypatch.setattr(grammar, "MAX_WAIT_S", 600.0)  # however busy the machine is, a schema's own bound comes first
    return Gated(tokenizer, target.vocab_size, target.eos)


@pytest.fixture
async def tiny(tmp_path: Path, tokenizer: Any, target: LlamaCppTarget, grammars: Gated) -> AsyncIterator[Echo]:
    engine = Engine(target, None, engine_settings(policy="plain"))
    served = ServedModel("tiny", 1_700_000_000, target.context, target.vocab_size, "es_tiny")
    async with echo_gateway(tmp_path, request_limits(parameters=PARAMETERS)) as echo:
        echo.api.serve(Backend(engine, Text(tokenizer), served, grammars))
        with started(engine):
            yield echo


@pytest.fixture
async def client(tiny: Echo) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=tiny.base_url, api_key=tiny.key, max_retries=0) as client:
        yield client


async def test_json_completions_keep_their_schema_and_streams_are_equal(client: openai.AsyncOpenAI) -> None:
    options: dict[str, Any] = {**ASK, "response_format": FORMAT, "seed": 3, "max_tokens": 300}
    whole = await client.chat.completions.create(**options, n=2)
    for choice in whole.choices:
        assert choice.finish_reason == "stop" and keeps_nested(json.loads(choice.message.content or ""))
    pieces = [chunk async for chunk in await client.chat.completions.create(**options, stream=True)]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in pieces) == whole.choices[0].message.content


# --- what a schema can cost others -----------------------------------------------------------------------------------

CHAT: dict[str, Any] = {**ASK, "max_tokens": 4}


def asking(schema: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    return {**CHAT, "response_format": form, **more}


@pytest.mark.parametrize("name", ["circles", "ladder of allOf", "wide enum"])
async def test_64_kib_of_the_worst_gets_an_answer_or_one_sentence(tiny: Echo, name: str) -> None:
    async with asyncio.timeout(60):
        status, body, _ = await post(tiny, asking(largest(name)))
    assert status in (200, 400)
    if status == 400:
        assert body["error"]["message"].startswith("Invalid 'response_format': ")
        assert len(body["error"]["message"]) < 200


@pytest.mark.claim("while-one-keys-schema-is-compiled-all-else-goes-on")
async def test_while_one_keys_schema_is_compiled_all_else_goes_on(tiny: Echo, grammars: Gated) -> None:
    grammars.gate.clear()
    slow = asyncio.ensure_future(post(tiny, asking(NESTED)))
    try:
        await asyncio.to_thread(grammars.begun.wait, 30)
        async with asyncio.timeout(30):
            status, _, _ = await post(tiny, CHAT)
        assert status == 200 and not slow.done()
    finally:
        grammars.gate.set()
        status, _, _ = await slow
    assert status == 200


@pytest.mark.claim("while-one-keys-schema-is-compiled-all-else-goes-on")
async def test_what_was_refused_once_is_not_tried_again(
    tiny: Echo, grammars: Gated, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = MAKERS["allOf of patterns"](32)
    for _ in range(2):
        status, body, _ = await post(tiny, asking(schema))
        assert status == 400 and "too complex" in body["error"]["message"]
        monkeypatch.setattr(grammars._trial, "fault", None)  # another try would fail


@pytest.mark.claim("a-schema-is-compiled-again-for-another-key")
async def test_a_schema_is_compiled_again_for_another_key(
    tiny: Echo, grammars: Gated, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = list[str]()
    fault = grammars._trial.fault
    monkeypatch.setattr(grammars._trial, "fault", lambda text: (tried.append(text), fault(text))[1])
    keys = [tiny.key, tiny.keys.create("other")[1]]
    for _ in range(2):
        for key in keys:
            await post(tiny, asking(NESTED), Authorization=f"Bearer {key}")
    assert len(tried) == len(keys)


@pytest.mark.claim("a-late-mask-keeps-its-own-completion-waiting-and-no-other")
async def test_a_late_mask_keeps_its_own_completion_waiting_and_no_other(
    tiny: Echo, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, before, _ = await post(tiny, asking(NESTED, seed=1))
    begun = threading.Event()
    gate = threading.Event()
    mask = grammar._mask

    def late(*of: Any) -> Any:
        if not threading.current_thread().name.startswith("schema"):
            begun.set()
            assert gate.wait(60)
        return mask(*of)

    monkeypatch.setattr(grammar, "_mask", late)
    slow = asyncio.ensure_future(post(tiny, asking(NESTED, seed=1)))
    try:
        await asyncio.to_thread(begun.wait, 30)
        async with asyncio.timeout(30):
            status, _, _ = await post(tiny, CHAT)
        assert status == 200 and not slow.done()
    finally:
        gate.set()
        _, after, _ = await slow
    assert after["choices"] == before["choices"]
