"""Calls of functions through the official client: forced on a model, and read in what the echo engine returns."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import openai
import pytest

from cloud_gateway.api import Backend, ServedModel
from cloud_gateway.api.grammars import Grammars
from cloud_gateway.engine.loop import Engine
from cloud_gateway.models.target_model.llamacpp import LlamaCppTarget
from cloud_gateway.models.text import Text
from tests.support.echo import MODEL, ByteText, Echo, echo_gateway
from tests.support.engines import engine_settings, started
from tests.support.schemas import NESTED, keeps_nested
from tests.support.served import PARAMETERS, compiler, needs
from tools.doubles.limits import request_limits

ASK: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "a cat"}]}
FORMAT = {"type": "json_schema", "json_schema": {"name": "pet", "schema": NESTED, "strict": True}}


@pytest.fixture
def grammars(tokenizer: Any, target: LlamaCppTarget) -> Grammars:
    return compiler(tokenizer, target.vocab_size, target.eos)


@pytest.fixture
async def tiny(tmp_path: Path, tokenizer: Any, target: LlamaCppTarget, grammars: Grammars) -> AsyncIterator[Echo]:
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


ON = {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"], "additionalProperties": False}
LAMPS: list[Any] = [{"type": "function", "function": {"name": name, "parameters": ON}} for name in ("red", "blue")]
BLUE = {"type": "function", "function": {"name": "blue"}}


@needs("response_format")
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


@needs("response_format")
@pytest.mark.parametrize("max_tokens", [1, 4, 16, 30, 45, 60])
async def test_a_forced_call_that_is_cut_is_a_call_as_far_as_it_goes(
    client: openai.AsyncOpenAI, max_tokens: int
) -> None:
    options: dict[str, Any] = {**ASK, "tools": LAMPS, "tool_choice": BLUE, "seed": 0}
    whole = (await client.chat.completions.create(**options, max_tokens=400)).choices[0]
    (complete,) = whole.message.tool_calls or ()
    cut = (await client.chat.completions.create(**options, max_tokens=max_tokens)).choices[0]
    assert (cut.finish_reason, cut.message.content) == ("length", None)
    (call,) = cut.message.tool_calls or ()
    assert call.function.name == "blue" and complete.function.arguments.startswith(call.function.arguments)

    stream = await client.chat.completions.create(**options, max_tokens=max_tokens, stream=True)
    chunks = [chunk.choices[0] async for chunk in stream]
    assert "".join(chunk.delta.content or "" for chunk in chunks) == ""
    assert chunks[-1].finish_reason == "length"
    (delta,) = [one for chunk in chunks for one in chunk.delta.tool_calls or ()]
    assert delta.function is not None
    assert (delta.function.name, delta.function.arguments) == ("blue", call.function.arguments)


@needs("response_format")
async def test_json_beside_tools_is_json_or_a_call(client: openai.AsyncOpenAI) -> None:
    options: dict[str, Any] = {**ASK, "tools": LAMPS, "response_format": FORMAT, "max_tokens": 400}
    for seed in range(2):
        choice = (await client.chat.completions.create(**options, seed=seed)).choices[0]
        assert choice.finish_reason == "tool_calls" or keeps_nested(json.loads(choice.message.content or ""))


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
    async with echo_gateway(tmp_path, request_limits(stream=request.param, parameters=PARAMETERS)) as echo:
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
