"""JSON completions, log-probabilities and tool calls through the official client, and what a schema can cost others."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from numpy.typing import NDArray

from cloud_gateway.api import Backend, ServedModel
from cloud_gateway.core.verify.accept import FlatTree
from cloud_gateway.engine.loop import Engine
from cloud_gateway.models import grammar
from cloud_gateway.models.grammar import Grammars, Schema
from cloud_gateway.models.target_model import Work
from cloud_gateway.models.target_model.llamacpp import LlamaCppTarget
from cloud_gateway.models.target_model.load import load_vocabulary
from cloud_gateway.models.text import Text
from tests.support.echo import MODEL, ByteText, Echo, echo_gateway, post
from tests.support.engines import engine_settings, started
from tests.support.schemas import MAKERS, NESTED, keeps_nested, largest
from tests.support.tiny_gguf import make_tiny_gguf
from tests.support.tiny_tokenizer import EOS_ID
from tools.doubles.limits import request_limits

ASK: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "a cat"}]}
FORMAT = {"type": "json_schema", "json_schema": {"name": "pet", "schema": NESTED, "strict": True}}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf", vocab=300, seed=1, sharpness=2.5)


@pytest.fixture(scope="module")
def tokenizer(model: Path) -> Any:
    vocabulary, _ = load_vocabulary(model)
    return vocabulary.tokenizer


@pytest.fixture(scope="module")
def target(model: Path) -> LlamaCppTarget:
    return LlamaCppTarget(model, eos=frozenset({EOS_ID}), slots=4, threads=1, context=1536, exact=True)


class Gated(Grammars):
    """Compiles NESTED only while `gate` is set."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.begun = threading.Event()
        self.gate = threading.Event()
        self.gate.set()

    def compile(self, schema: Mapping[str, Any], *others: Any) -> Schema:
        if schema == NESTED:
            self.begun.set()
            assert self.gate.wait(60)
        return super().compile(schema, *others)


@pytest.fixture
def grammars(tokenizer: Any, target: LlamaCppTarget, monkeypatch: pytest.MonkeyPatch) -> Gated:
    monkeypatch.setattr(grammar, "MAX_WAIT_S", 600.0)  # however busy the machine is, a schema's own bound comes first
    return Gated(tokenizer, target.vocab_size, target.eos)


@pytest.fixture
async def tiny(tmp_path: Path, tokenizer: Any, target: LlamaCppTarget, grammars: Gated) -> AsyncIterator[Echo]:
    engine = Engine(target, None, engine_settings(policy="plain"))
    served = ServedModel("tiny", 1_700_000_000, target.context, target.vocab_size, "es_tiny")
    async with echo_gateway(tmp_path) as echo:
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


ON = {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"], "additionalProperties": False}
LAMPS: list[Any] = [{"type": "function", "function": {"name": name, "parameters": ON}} for name in ("red", "blue")]
BLUE = {"type": "function", "function": {"name": "blue"}}


@pytest.mark.claim("a-tool-that-has-to-be-called-is-called-with-valid-arguments")
@pytest.mark.parametrize(
    ("choice", "more", "names"),
    [
        ("required", {"response_format": FORMAT}, {"red", "blue"}),
        (BLUE, {}, {"blue"}),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [BLUE]}}, {}, {"blue"}),
    ],
    ids=["required", "named", "allowed"],
)
async def test_a_tool_that_has_to_be_called_is_called_with_valid_arguments(
    client: openai.AsyncOpenAI, choice: Any, more: dict[str, Any], names: set[str]
) -> None:
    options: dict[str, Any] = {**ASK, "tools": LAMPS, "tool_choice": choice, "max_tokens": 400, **more}
    options["parallel_tool_calls"] = False
    for seed in range(2):
        choice = (await client.chat.completions.create(**options, seed=seed)).choices[0]
        (call,) = choice.message.tool_calls or ()
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", None) and call.function.name in names
        assert json.loads(call.function.arguments).keys() == {"on"}


async def test_json_beside_tools_is_json_or_a_call(client: openai.AsyncOpenAI) -> None:
    options: dict[str, Any] = {**ASK, "tools": LAMPS, "response_format": FORMAT, "max_tokens": 400}
    for seed in range(2):
        choice = (await client.chat.completions.create(**options, seed=seed)).choices[0]
        assert choice.finish_reason == "tool_calls" or keeps_nested(json.loads(choice.message.content or ""))


def plain_log_probs(model: Path, prompt: list[int]) -> NDArray[np.float64]:
    """Log-probabilities of the token after a prompt, [vocab_size], by a target of its own."""
    target = LlamaCppTarget(model, eos=frozenset(), slots=1, threads=1, context=512)
    slot, _ = target.open(prompt)
    target.prefill(slot, prompt[:-1])
    (verified,) = target.verify([Work(slot, FlatTree([prompt[-1]], [-1], [0]))])
    logits = verified.logits(0).astype(np.float64)
    shifted = logits - logits.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum()))


async def test_logprobs_are_the_models_own(client: openai.AsyncOpenAI, tokenizer: Any, model: Path) -> None:
    text = Text(tokenizer)
    prompt = text.encode("the cat ")
    answer = await client.completions.create(
        model="tiny", prompt="the cat ", logprobs=2, max_tokens=12, temperature=1.3, seed=1,
        logit_bias={"20": 5}, extra_body={"edgespec": {"ignore_eos": True}},
    )  # fmt: skip
    logprobs = answer.choices[0].logprobs
    assert (
        logprobs is not None
        and logprobs.tokens
        and logprobs.token_logprobs
        and logprobs.top_logprobs
        and logprobs.text_offset
    )
    assert len(logprobs.tokens) == 12 and logprobs.text_offset[0] == 0
    first = plain_log_probs(model, prompt)
    spelled = {text.spell(i).decode("utf-8", "replace"): i for i in range(200)}
    assert logprobs.token_logprobs[0] == pytest.approx(float(first[spelled[logprobs.tokens[0]]]), abs=1e-4)
    best = max(logprobs.top_logprobs[0].values())
    assert best == pytest.approx(float(first.max()), abs=1e-4)


async def test_chat_logprobs_cover_the_text_to_the_byte_whole_and_streamed(client: openai.AsyncOpenAI) -> None:
    options: dict[str, Any] = {**ASK, "seed": 5, "max_tokens": 60, "logprobs": True, "top_logprobs": 3}
    options["logit_bias"] = {str(i): 40 for i in range(5, 31)}
    whole = (await client.chat.completions.create(**options)).choices[0]
    assert whole.logprobs is not None and whole.logprobs.content and whole.message.content
    assert b"".join(bytes(one.bytes or []) for one in whole.logprobs.content).decode() == whole.message.content
    assert all(len(one.top_logprobs) == 3 for one in whole.logprobs.content)
    assert all(one.top_logprobs[0].logprob >= one.logprob for one in whole.logprobs.content)
    chunks = [chunk async for chunk in await client.chat.completions.create(**options, stream=True)]
    streamed = [one for chunk in chunks if chunk.choices[0].logprobs for one in chunk.choices[0].logprobs.content or []]
    assert streamed == whole.logprobs.content
    stop = whole.message.content[8:11]
    cut = (await client.chat.completions.create(**options, stop=stop)).choices[0]
    assert cut.logprobs is not None and cut.message.content == whole.message.content.split(stop)[0]
    assert (
        b"".join(bytes(one.bytes or []) for one in cut.logprobs.content or []).decode().startswith(cut.message.content)
    )
    assert len(cut.logprobs.content or []) <= len(cut.message.content), "nothing of the tokens after the stop string"
    plain = (await client.chat.completions.create(**{**options, "logprobs": None, "top_logprobs": None})).choices[0]
    assert plain.logprobs is None and plain.message.content == whole.message.content


# --- tool calls: the echo engine returns what the model would ---------------------------------------------------------

WEATHER: list[Any] = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo ✓"}}\n</tool_call>'


class ToolText(ByteText):
    """Its template puts only the last message, so that the echo is that message."""

    def render_chat(self, messages: Sequence[Any], tools: Sequence[Any] | None = None) -> list[int]:
        self.seen = (list(messages), tools)
        return self.encode(messages[-1]["content"])


@pytest.fixture(params=["as-made", "even"])
async def caller(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[tuple[openai.AsyncOpenAI, ToolText]]:
    async with echo_gateway(tmp_path, request_limits(stream=request.param)) as echo:
        text = ToolText()
        echo.api.serve(Backend(echo.engine, text, MODEL))
        async with openai.AsyncOpenAI(base_url=echo.base_url, api_key=echo.key, max_retries=0) as client:
            yield client, text


def saying(text: str) -> dict[str, Any]:
    return {"model": "echo", "messages": [{"role": "user", "content": text}], "tools": WEATHER}


async def test_calls_become_tool_calls_whole_and_streamed(caller: tuple[openai.AsyncOpenAI, ToolText]) -> None:
    client, text = caller
    for before, calls in (("", 1), ("I will look. ", 1), ("", 2)):
        options = saying(before + "\n".join([CALL] * calls))
        choice = (await client.chat.completions.create(**options)).choices[0]
        assert choice.finish_reason == "tool_calls" and choice.message.content == (before.strip() or None)
        made = choice.message.tool_calls or []
        assert [call.function.name for call in made] == ["weather"] * calls
        assert json.loads(made[0].function.arguments) == {"city": "Oslo ✓"}
        assert len({call.id for call in made}) == calls
        chunks = [chunk.choices[0] async for chunk in await client.chat.completions.create(**options, stream=True)]
        assert "".join(chunk.delta.content or "" for chunk in chunks) == before
        assert [call.index for chunk in chunks for call in chunk.delta.tool_calls or []] == list(range(calls))
        assert chunks[-1].finish_reason == "tool_calls"
        assert text.seen[1] is not None and text.seen[1][0]["function"]["name"] == "weather"


async def test_without_a_choice_of_tools_nothing_is_read_as_a_call(caller: tuple[openai.AsyncOpenAI, ToolText]) -> None:
    client, text = caller
    choice = (await client.chat.completions.create(**saying(CALL), tool_choice="none")).choices[0]
    assert (choice.finish_reason, choice.message.content) == ("stop", CALL)
    assert text.seen[1] is None


async def test_former_calls_and_their_results_reach_the_template(caller: tuple[openai.AsyncOpenAI, ToolText]) -> None:
    client, text = caller
    former = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
    messages: list[Any] = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [former]},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    ]
    answer = await client.chat.completions.create(model="echo", messages=messages, tools=WEATHER)
    assert answer.choices[0].message.content == "rain"
    assert text.seen[0][1]["tool_calls"][0]["function"] == {"name": "weather", "arguments": {"city": "Oslo"}}
    assert text.seen[0][2] == {"role": "tool", "content": "rain", "tool_call_id": "c1"}
    former["function"] = {"name": "weather", "arguments": "{"}
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(model="echo", messages=messages, tools=WEATHER)
    assert caught.value.param == "messages[1].tool_calls[0]"


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
