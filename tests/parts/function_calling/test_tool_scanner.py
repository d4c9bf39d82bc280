"""Tool calls are parsed in linear time, for any text of the model."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from cloud_gateway.parts.function_calling.calls import MAX_CALLS, OPENING, CallReader, read_calls
from cloud_gateway.parts.function_calling.tools import Function, Tool, offered

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
        reader = CallReader({"f"})
        reader.feed(text)
        reader.end()
        reader = CallReader({"f"})
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
    reader = CallReader({"f"})
    passed = reader.feed(text)
    rest, calls = reader.end()
    assert (passed + rest, calls) == (text, [])


@pytest.mark.claim("eight-times-the-text-takes-about-eight-times-as-long")
def test_as_many_calls_as_tools_are_read_and_one_more_is_text() -> None:
    assert len(read_calls(CALL * MAX_CALLS, {"f"}) or ()) == MAX_CALLS
    assert read_calls(CALL * (MAX_CALLS + 1), {"f"}) is None


def test_a_cut_completion_keeps_the_calls_that_are_whole() -> None:
    for text in (CALL + "\n" + CALL[:30], CALL + "\n" + CALL[:5], CALL + "\n"):
        reader = CallReader({"f"})
        passed = reader.feed(text)
        rest, calls = reader.end(cut=True)
        assert [(call.name, call.arguments, call.whole) for call in calls] == [("f", '{"a": 1}', True)]
        assert passed + rest == ""


BEGUN = {
    '<tool_call>\n{"name": "f"': "",
    '<tool_call>\n{"name": "f", "argu': "",
    '<tool_call>\n{"name": "f", "arguments": ': "",
    '<tool_call>\n{"name": "f", "arguments": {"a": "Lon': '{"a": "Lon',
    '<tool_call>\n{"name": "f", "arguments": {"a": {"b": 1}': '{"a": {"b": 1}',
    '<tool_call>\n{"name": "f", "arguments": {"a": "</tool_call>"}': '{"a": "</tool_call>"}',
    '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</': '{"a": 1}',
}
"""Texts of completions that were cut in a call, each with the call's arguments."""


@pytest.mark.parametrize("text", BEGUN)
@pytest.mark.parametrize("forced", [True, False])
def test_a_call_that_was_cut_has_its_arguments_as_far_as_they_go(text: str, forced: bool) -> None:
    reader = CallReader({"f", "g"}, forced=forced)
    passed = reader.feed(text)
    rest, calls = reader.end(cut=True)
    assert [(call.name, call.arguments, call.whole) for call in calls] == [("f", BEGUN[text], False)]
    assert passed + rest == ""

    whole = CallReader({"f", "g"}, forced=forced)
    assert whole.feed(text) + whole.end()[0] == text, "a completion that ended there has no call"


@pytest.mark.parametrize("text", ["<tool", "<tool_call>", '<tool_call>\n{"na', '<tool_call>\n{"name": "'])
def test_what_was_forced_never_becomes_text_before_its_name_is_there(text: str) -> None:
    for names, called in ((["f"], ["f"]), (["f", "g"], [])):
        reader = CallReader(names, forced=True)
        passed = reader.feed(text)
        rest, calls = reader.end(cut=True)
        assert (passed + rest, [call.name for call in calls]) == ("", called)

    reader = CallReader(["f"])
    passed = reader.feed(text)
    assert passed + reader.end(cut=True)[0] == text, "the model's own text may begin like a call"


@pytest.mark.parametrize("rest", ['{"name": "h", "arguments": {"a', '{"name": "f", "arguments": 5', "[", "and more"])
def test_what_was_cut_and_begins_no_call_stays_text(rest: str) -> None:
    reader = CallReader({"f"})
    passed = reader.feed(OPENING + rest)
    text, calls = reader.end(cut=True)
    assert (passed + text, calls) == (OPENING + rest, [])


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
    wanted = offered([tool], "required").around(None)
    assert wanted is not None
    schema = wanted.named["a0"]
    assert isinstance(schema, dict)
    return schema
