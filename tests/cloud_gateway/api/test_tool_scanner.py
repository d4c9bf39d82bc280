"""Tool calls are parsed in linear time, for any text of the model."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from cloud_gateway.api.tools import MAX_CALLS, CallText, Function, Tool, offered, read_calls

CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
EMPTY = "<tool_call>{}</tool_call>"
HOSTILE = {
    "empty calls and one character more": EMPTY,
    "good calls and one character more": CALL,
    "openings": "<tool_call>",
    "openings with braces": "<tool_call>{",
    "braces": "<tool_call>" + "{}" * 3,
    "closings": "<tool_call>{}</tool_call></tool_call>",
    "spaces": "<tool_call> \n\t{ }",
    "nesting": '<tool_call>{"a":',
    "strings": '<tool_call>{"</tool_call>}":"',
}


def seconds(text: str) -> float:
    """Times of the fastest of three, in one piece and then character by character."""
    found = []
    for _ in range(3):
        began = time.thread_time()
        reader = CallText({"f"})
        reader.feed(text)
        reader.end()
        reader = CallText({"f"})
        for character in text:
            reader.feed(character)
        reader.end()
        found.append(time.thread_time() - began)
    return min(found)


@pytest.mark.claim("eight-times-the-text-takes-about-eight-times-as-long")
@pytest.mark.parametrize("name", HOSTILE)
def test_eight_times_the_text_takes_about_eight_times_as_long(name: str) -> None:
    short, long = (HOSTILE[name] * n + "x" for n in (500, 4000))
    assert seconds(long) < 30 * max(seconds(short), 1e-4)


@pytest.mark.parametrize("name", HOSTILE)
def test_ten_thousand_of_a_hostile_pattern_stay_text(name: str) -> None:
    text = HOSTILE[name] * 10_000 + "x"
    reader = CallText({"f"})
    passed = reader.feed(text)
    rest, calls = reader.end()
    assert (passed + rest, calls) == (text, [])


@pytest.mark.claim("eight-times-the-text-takes-about-eight-times-as-long")
def test_as_many_calls_as_tools_are_read_and_one_more_is_text() -> None:
    assert len(read_calls(CALL * MAX_CALLS, {"f"}) or ()) == MAX_CALLS
    assert read_calls(CALL * (MAX_CALLS + 1), {"f"}) is None


def test_a_cut_completion_keeps_the_calls_that_are_whole() -> None:
    for text, whole in ((CALL + "\n" + CALL[:30], 1), (CALL[:30], 0)):
        reader = CallText({"f"})
        passed = reader.feed(text)
        rest, calls = reader.end(cut=True)
        assert (len(calls), passed + rest) == (whole, "" if whole else text)


def test_arguments_may_hold_the_tags_themselves() -> None:
    arguments = {"text": "}</tool_call> <tool_call>{"}
    text = f"<tool_call>{json.dumps({'name': 'f', 'arguments': arguments})}</tool_call>"
    calls = read_calls(f" \n{text}\n{CALL} ", {"f"})
    assert calls is not None and [json.loads(call.arguments) for call in calls] == [arguments, {"a": 1}]


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>[]</tool_call>",
        '<tool_call>{"name": ["f"]}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": ' + "[" * 100_000,
        '<tool_call>{"name": "f", "arguments": {"a": ' + "1" * 100_000 + "}}</tool_call>",
        CALL + "and more",
        CALL.removesuffix(">"),
    ],
)
def test_what_is_no_call_stays_text(text: str) -> None:
    assert read_calls(text, {"f"}) is None


def test_forced_arguments_have_the_named_properties_only() -> None:
    inner = {"type": "object", "properties": {"b": {"type": "string"}}}
    definitions = {
        "D": inner,
        "E": {**inner, "additionalProperties": {"type": "integer"}},
        "F": {"enum": [inner]},
    }
    parameters = {
        "properties": {"properties": inner, "list": {"items": {"$ref": "#/$defs/D"}}, "free": {"type": "object"}},
        "$defs": definitions,
        "required": ["list"],
    }
    found = forced(parameters)
    closed = {**inner, "additionalProperties": False}
    assert found["additionalProperties"] is False and found["properties"]["properties"] == closed
    assert found["properties"]["free"] == {"type": "object"}
    assert forced({"type": "object", "properties": {}})["additionalProperties"] is False, "a call without arguments"
    assert found["$defs"] == {"D": closed, "E": definitions["E"], "F": {"enum": [inner]}}
    for left in ({"allOf": [inner]}, {"anyOf": [{"required": ["c"]}], **inner}, {**inner, "required": ["c"]}, {}):
        assert "additionalProperties" not in forced({"properties": {"x": left}})["properties"]["x"]
    deep: dict[str, Any] = {}
    for _ in range(900):
        deep = {"items": deep}
    assert forced(deep)["items"] == deep["items"]


def forced(parameters: dict[str, Any]) -> dict[str, Any]:
    """The schema of a call's arguments in the grammar."""
    tool = Tool("function", Function("f", parameters=parameters))
    wanted = offered([tool], "required").grammar(None)
    assert wanted is not None
    return wanted.schema["a0"]
