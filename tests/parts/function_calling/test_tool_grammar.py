"""What the grammar of a request's tools lets the model write: `strict`, allowed tools, unknown ones, at most one."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from cloud_gateway.api.grammars import Grammars
from cloud_gateway.parts.function_calling.calls import CallReader, read_calls
from cloud_gateway.parts.function_calling.tools import Choice, Tool, offered
from tests.support.tiny_tokenizer import EOS_ID

FLAG = {"properties": {"on": {"type": "boolean"}}, "required": ["on"]}
ALLOWED = {
    "type": "allowed_tools",
    "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "red"}}]},
}


def lamps(*, strict: bool) -> list[Tool]:
    tools = [
        {"type": "function", "function": {"name": name, "parameters": FLAG, "strict": strict}}
        for name in ("red", "blue")
    ]
    return msgspec.convert(tools, list[Tool])


def choice(value: Any) -> Choice:
    return msgspec.convert(value, Choice)


def call(name: str, arguments: Any) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


def may_write(grammars: Grammars, tokenizer: Any, tools: list[Tool], chosen: Choice, text: str, **more: Any) -> bool:
    """Whether a completion may be exactly this text, token by token, by the grammar of what is offered."""
    wanted = offered(tools, chosen, **more).around(None)
    assert wanted is not None, "its text is free"
    constraint = grammars.compile(wanted, b"")()
    for token in [*tokenizer.encode(text, add_special_tokens=False), EOS_ID]:
        mask = constraint([])
        if mask is None or not mask[token]:
            return False
        constraint.committed([token])
    return True


@pytest.mark.parametrize("chosen", ["auto", "required"])
def test_strict_arguments_satisfy_the_schema(grammars: Grammars, tokenizer: Any, chosen: str) -> None:
    for arguments, right in (({"on": True}, True), ({"on": 1}, False), ({}, False), ({"on": True, "x": 1}, False)):
        written = may_write(grammars, tokenizer, lamps(strict=True), choice(chosen), call("red", arguments))
        assert written is right, arguments


def test_arguments_that_are_not_strict_are_the_models_own() -> None:
    assert offered(lamps(strict=False), "auto").around(None) is None
    one = [*lamps(strict=False)[:1], *lamps(strict=True)[1:]]
    wanted = offered(one, "auto").around(None)
    assert wanted is not None and wanted.named["a0"] == {"type": "object"}
    strict = wanted.named["a1"]
    assert isinstance(strict, dict) and strict["required"] == ["on"]


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_only_an_allowed_tool_can_be_called(grammars: Grammars, tokenizer: Any, mode: str) -> None:
    chosen = choice({**ALLOWED, "allowed_tools": {**ALLOWED["allowed_tools"], "mode": mode}})  # type: ignore[dict-item]
    tools = lamps(strict=False)
    offer = offered(tools, chosen)
    assert [function.name for function in offer.callable] == ["red"] and offer.must is (mode == "required")
    assert len(offer.functions()) == 2, "the prompt stays the same, so that its prefix is found in the cache"
    for name, right in (("red", True), ("blue", False), ("green", False)):
        assert may_write(grammars, tokenizer, tools, chosen, call(name, {"on": True})) is right, name
    assert may_write(grammars, tokenizer, tools, chosen, "no call") is (mode == "auto")


def test_without_parallel_calls_one_is_the_most(grammars: Grammars, tokenizer: Any) -> None:
    twice = call("red", {}) + "\n" + call("blue", {})
    tools = lamps(strict=False)
    assert may_write(grammars, tokenizer, tools, "auto", call("red", {}), several=False)
    assert not may_write(grammars, tokenizer, tools, "auto", twice, several=False)
    assert may_write(grammars, tokenizer, lamps(strict=True), "required", twice.replace("{}", '{"on": true}'))


@pytest.mark.parametrize("name", ["green", "Red", "red ", ""])
def test_a_call_of_a_tool_that_was_not_offered_stays_text(name: str) -> None:
    for text in (call(name, {}), call("red", {}) + "\n" + call(name, {})):
        assert read_calls(text, {"red"}) is None
        reader = CallReader({"red"})
        passed = reader.feed("Look. " + text)
        rest, calls = reader.end()
        assert (passed + rest, calls) == ("Look. " + text, [])
    assert [one.name for one in read_calls(call("red", {}), {"red"}) or ()] == ["red"]
