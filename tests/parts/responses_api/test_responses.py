"""`/v1/responses` by the official client: texts, calls, formats, what is refused, and its place in the document."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import openai
import pytest

from cloud_gateway.api import Backend
from cloud_gateway.api.parameters import fields_of
from cloud_gateway.parts.responses_api.bodies import ResponsesBody
from cloud_gateway.parts.responses_api.endpoint import ROUTE
from tests.support.echo import HELLO, MODEL, ByteText, Echo, EchoEngine, echo_gateway, post
from tests.support.served import PARAMETERS, needs
from tools.doubles.limits import request_limits

PAGE = "https://chat.example"
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
TOOLS: list[Any] = [{"type": "function", "name": "weather", "parameters": {"type": "object"}}]


@pytest.fixture(params=["as-made", "even"])
async def echo(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Echo]:
    limits = request_limits(stream=request.param, model_alias=("gpt-4o-mini",), cors=(PAGE,), parameters=PARAMETERS)
    async with echo_gateway(tmp_path, limits, more=lambda keys: [ROUTE]) as running:
        yield running


async def test_a_response_and_its_stream_are_the_same_text(client: openai.AsyncOpenAI) -> None:
    asked: dict[str, Any] = {"model": "gpt-4o-mini", "instructions": "be kind", "input": HELLO, "store": True}
    whole = await client.responses.create(**asked)
    assert whole.output_text == "system: be kind\nuser: hello ✓ world" and whole.status == "completed"
    assert whole.usage is not None and whole.usage.input_tokens == whole.usage.output_tokens
    async with client.responses.stream(**asked) as stream:
        kinds = [event.type async for event in stream]
        last = await stream.get_final_response()
    assert last.output_text == whole.output_text and last.usage == whole.usage
    assert last.model == whole.model == "gpt-4o-mini"
    assert kinds[:2] == ["response.created", "response.in_progress"] and kinds[-1] == "response.completed"
    cut = await client.responses.create(**asked, max_output_tokens=3)
    assert cut.incomplete_details is not None and cut.incomplete_details.reason == "max_output_tokens"


async def test_a_stream_that_fails_ends_with_an_error_event(tmp_path: Path) -> None:
    engine = EchoEngine(fail_after=2, step_s=0.02)
    async with echo_gateway(tmp_path, engine=engine, more=lambda keys: [ROUTE]) as echo:
        async with openai.AsyncOpenAI(base_url=echo.base_url, api_key=echo.key, max_retries=0) as client:
            events = [one async for one in await client.responses.create(model="echo", input=HELLO, stream=True)]
    numbers = [one.sequence_number for one in events]
    last = events[-1]
    assert numbers == list(range(len(events))) and len(events) > 3
    assert last.type == "error" and last.code == "internal_error" and "reference" in last.message


@needs("tools")
async def test_calls_are_items_and_come_back_as_such(client: openai.AsyncOpenAI) -> None:
    asked: dict[str, Any] = {"model": "echo", "tools": TOOLS, "input": "look. " + CALL}
    text, call = (await client.responses.create(**asked)).output
    assert text.type == "message" and text.content[0].text == "user: look. "
    assert call.type == "function_call" and (call.name, call.arguments) == ("weather", '{"city": "Oslo"}')
    async with client.responses.stream(**asked) as stream:
        kinds = [event.type async for event in stream]
        again = (await stream.get_final_response()).output[1]
    assert again.type == "function_call" and again.arguments == call.arguments
    assert kinds.count("response.output_item.done") == 2 and "response.function_call_arguments.done" in kinds
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    former = [{"role": "user", "content": "x"}, call.model_dump(exclude_none=True), result]
    echoed = await client.responses.create(model="echo", input=former)
    assert echoed.output_text.endswith("tool: rain")


async def test_a_response_that_was_cut_says_so_whole_and_streamed(client: openai.AsyncOpenAI) -> None:
    asked: dict[str, Any] = {"model": "echo", "input": HELLO, "max_output_tokens": 3}
    whole = await client.responses.create(**asked)
    async with client.responses.stream(**asked) as stream:
        events = [event async for event in stream]
    assert events[-1].type == "response.incomplete"
    for response in (whole, events[-1].response):
        (message,) = response.output
        assert (response.status, message.status) == ("incomplete", "incomplete")
        assert response.incomplete_details is not None and response.incomplete_details.reason == "max_output_tokens"
    finished = await client.responses.create(**asked | {"max_output_tokens": 100})
    (message,) = finished.output
    assert (finished.status, message.status, finished.incomplete_details) == ("completed", "completed", None)


async def test_the_total_is_the_input_and_the_output(client: openai.AsyncOpenAI) -> None:
    for tokens in (3, 100):
        usage = (await client.responses.create(model="echo", input="0123456789", max_output_tokens=tokens)).usage
        assert usage is not None
        assert (usage.input_tokens, usage.output_tokens) == (16, min(tokens, 16))
        assert usage.total_tokens == usage.input_tokens + usage.output_tokens


class KeptText(ByteText):
    """Keeps the messages that its template was given."""

    def __init__(self) -> None:
        self.messages: list[Any] = []

    def render_chat(self, messages: Sequence[Any], tools: Sequence[Any] | None = None) -> list[int]:
        self.messages = list(messages)
        return super().render_chat(messages, tools)


def former(number: int) -> dict[str, Any]:
    """A call of an earlier response, as an item of `input`."""
    return {"type": "function_call", "call_id": f"c{number}", "name": "weather", "arguments": f'{{"city": {number}}}'}


def result(number: int) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": f"c{number}", "output": f"rain {number}"}


async def test_calls_that_follow_each_other_are_one_message_with_their_ids(echo: Echo) -> None:
    text = KeptText()
    echo.api.serve(Backend(echo.engine, text, MODEL))
    said = {"role": "assistant", "content": "I look."}
    items = [{"role": "user", "content": "x"}, former(1), former(2), result(1), result(2), said, former(3), result(3)]
    assert (await post(echo, {"model": "echo", "input": items}, "/v1/responses"))[0] == 200

    shown = [(one["role"], [call["id"] for call in one.get("tool_calls", ())]) for one in text.messages]
    assert shown == [
        ("user", []), ("assistant", ["c1", "c2"]), ("tool", []), ("tool", []), ("assistant", ["c3"]), ("tool", []),
    ]  # fmt: skip
    results = [(one["tool_call_id"], one["content"]) for one in text.messages if one["role"] == "tool"]
    assert results == [(f"c{number}", f"rain {number}") for number in (1, 2, 3)]
    calls = [call["function"] for one in text.messages for call in one.get("tool_calls", ())]
    assert calls == [{"name": "weather", "arguments": {"city": number}} for number in (1, 2, 3)]
    assert text.messages[4]["content"] == "I look."


@needs("tools")
async def test_a_call_that_was_cut_is_an_incomplete_item(client: openai.AsyncOpenAI) -> None:
    asked: dict[str, Any] = {"model": "echo", "tools": TOOLS, "input": CALL}
    asked["max_output_tokens"] = len("user: " + CALL) - 9
    whole = await client.responses.create(**asked)
    async with client.responses.stream(**asked) as stream:
        events = [event async for event in stream]
    assert events[-1].type == "response.incomplete"
    for response in (whole, events[-1].response):
        _, call = response.output
        assert call.type == "function_call" and (response.status, call.status) == ("incomplete", "incomplete")
        assert (call.name, call.arguments) == ("weather", '{"city": "Oslo"}')


async def test_what_no_part_serves_is_refused_as_for_a_chat(tmp_path: Path) -> None:
    """Without the part that calls functions the endpoint serves all else, and values that ask for nothing pass."""
    async with echo_gateway(tmp_path, more=lambda keys: [ROUTE]) as echo:
        refused = {"tools": TOOLS, "tool_choice": "required", "text": {"format": {"type": "json_object"}}}
        for name, value in refused.items():
            status, body, _ = await post(echo, {"model": "echo", "input": "x", name: value}, "/v1/responses")
            assert (status, body["error"]["code"]) == (400, "unsupported_parameter"), name
        harmless = {"tools": [], "tool_choice": "auto", "text": {"format": {"type": "text"}}}
        status, body, _ = await post(echo, {"model": "echo", "input": "x", **harmless}, "/v1/responses")
        assert (status, body["status"]) == (200, "completed")


@needs("tools")
async def test_each_call_of_a_response_has_an_id_that_its_result_can_name(client: openai.AsyncOpenAI) -> None:
    asked: dict[str, Any] = {"model": "echo", "tools": TOOLS, "input": "look. " + CALL + "\n" + CALL}
    whole = (await client.responses.create(**asked)).output
    async with client.responses.stream(**asked) as stream:
        streamed = (await stream.get_final_response()).output
    for output in (whole, streamed):
        assert [item.type for item in output] == ["message", "function_call", "function_call"]
        calls = [item for item in output if item.type == "function_call"]
        assert len({call.call_id for call in calls}) == len({call.id for call in calls}) == 2
        for call in calls:
            assert call.call_id.startswith("call_") and call.id == "fc_" + call.call_id.removeprefix("call_")
            assert call.status == "completed"


NOT_SERVED: list[tuple[dict[str, Any], str]] = [
    ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"reasoning": {"effort": "low"}}, "reasoning"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"background": True}, "background"),
    ({"n": 2}, "n"),
    ({"messages": []}, "messages"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input"),
    ({"input": "x" * 600}, "input"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice"),
    ({"max_output_tokens": 5000}, "max_output_tokens"),
    ({"text": {"format": {"type": "json_schema"}}}, "text.format"),
]


async def test_what_needs_state_or_is_not_served_is_refused(echo: Echo) -> None:
    for change, param in NOT_SERVED:
        status, body, _ = await post(echo, {"model": "echo", "input": "x", **change}, "/v1/responses")
        assert (status, body["error"]["param"]) == (400, param), (change, body)


async def test_a_response_says_in_which_format_its_text_is(client: openai.AsyncOpenAI) -> None:
    for asked in ({}, {"format": {"type": "text"}}):
        response = await client.responses.create(model="echo", input=HELLO, text=asked)
        assert response.text is not None
        assert response.text.format is not None
        assert response.text.format.type == "text"


@pytest.mark.claim("every-route-is-in-the-table-and-keeps-its-guard")
async def test_it_needs_a_key_and_is_in_the_document(echo: Echo) -> None:
    url = echo.listener.url
    async with aiohttp.ClientSession() as session:
        async with session.post(url + "/v1/responses", json={"model": "echo", "input": "x"}) as refused:
            assert refused.status == 401
        async with session.get(url + "/openapi.json", headers={"Authorization": f"Bearer {echo.key}"}) as response:
            document = await response.json()
    assert "post" in document["paths"]["/v1/responses"]
    properties = document["components"]["schemas"]["ResponsesBody"]["properties"]
    names = {field.encode_name for field in msgspec.structs.fields(ResponsesBody)}
    assert properties.keys() == names | fields_of(PARAMETERS, ResponsesBody).keys()
    assert properties["model"]["enum"] == ["echo", "gpt-4o-mini"]
    assert echo.engine.requests == []
