"""The kinds of `structured_outputs`: what each lets a completion say, and which are refused by name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cloud_gateway.parts.structured_output.grammar import GuidedGrammars
from cloud_gateway.parts.structured_output.parameter import StructuredOutputs, of_outputs
from edgespec.core.errors import ClientError
from tests.support.echo import CHAT, Echo, echo_gateway, post
from tests.support.served import PARAMETERS
from tests.support.tiny_tokenizer import EOS_ID
from tools.doubles.limits import request_limits


def may_write(grammars: GuidedGrammars, tokenizer: Any, asked: dict[str, Any], text: str) -> bool:
    """Whether a completion may be exactly this text."""
    constraint = grammars.compile(of_outputs(msgspec.convert(asked, StructuredOutputs)))()
    for token in [*tokenizer.encode(text, add_special_tokens=False), EOS_ID]:
        mask = constraint([])
        if mask is None or not mask[token]:
            return False
        constraint.committed([token])
    return True


FLAG = {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"], "additionalProperties": False}
SUM = 'start: NUMBER "+" NUMBER\nNUMBER: /[0-9]+/'
KINDS: list[tuple[dict[str, Any], str, str]] = [
    ({"json": FLAG}, '{"on": true}', '{"on": 1}'),
    ({"json": msgspec.json.encode(FLAG).decode()}, '{"on": true}', "{}"),
    ({"json_object": True}, '{"a": 1}', "[1]"),
    ({"regex": "[a-c]{2}/[0-9]+"}, "ab/12", "ab12"),
    ({"regex": r"a\/b\\/c"}, "a/b\\/c", "a/b/c"),
    ({"choice": ["yes", 'a "no"\n', "é"]}, 'a "no"\n', "no"),
    ({"choice": ["yes", "é"]}, "é", "e"),
    ({"grammar": SUM}, "12+3", "12+"),
]


@pytest.mark.parametrize(("asked", "right", "wrong"), KINDS)
def test_a_completion_has_the_form_that_was_asked(
    grammars: GuidedGrammars, tokenizer: Any, asked: dict[str, Any], right: str, wrong: str
) -> None:
    assert may_write(grammars, tokenizer, asked, right)
    assert not may_write(grammars, tokenizer, asked, wrong)


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({}, "structured_outputs", "exactly one of json, regex, choice, grammar, json_object"),
    ({"regex": "a", "choice": ["b"]}, "structured_outputs", "exactly one of"),
    ({"structural_tag": {"triggers": []}}, "structured_outputs.structural_tag", "no structural tags"),
    ({"json": "{"}, "structured_outputs.json", "as an object or as its text"),
    ({"grammar": "x" * 70_000}, "structured_outputs.grammar", "more than 65536 characters"),
]
UNCOMPILED: list[tuple[dict[str, Any], str, str]] = [
    ({"regex": "(?=a)b"}, "structured_outputs.regex", "no regular expression"),
    ({"regex": "("}, "structured_outputs.regex", "no regular expression"),
    ({"regex": "a\\"}, "structured_outputs.regex", "cannot be followed"),
    ({"grammar": 'root ::= "a"'}, "structured_outputs.grammar", "notation of Lark"),
    ({"grammar": 'a: "a"'}, "structured_outputs.grammar", "no 'start'"),
    ({"grammar": "start: @a0"}, "structured_outputs.grammar", "not there"),
    ({"json": {"not": {}}}, "structured_outputs.json", "cannot be followed"),
]


@pytest.mark.parametrize(("asked", "param", "sentence"), REFUSED + UNCOMPILED)
def test_what_cannot_be_followed_is_refused_by_its_kind(
    grammars: GuidedGrammars, asked: dict[str, Any], param: str, sentence: str
) -> None:
    with pytest.raises(ClientError) as refused:
        grammars.compile(of_outputs(msgspec.convert(asked, StructuredOutputs)))
    assert (refused.value.status, refused.value.param) == (400, param)
    assert sentence in str(refused.value)


@pytest.fixture
async def echo(tmp_path: Path) -> AsyncIterator[Echo]:
    async with echo_gateway(tmp_path, request_limits(parameters=PARAMETERS)) as running:
        yield running


async def test_two_forms_of_one_completion_are_refused(echo: Echo) -> None:
    both = {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}}
    status, body, _ = await post(echo, {**CHAT, **both})
    assert (status, body["error"]["param"]) == (400, "structured_outputs")
    assert "'response_format' gives the completion a form, too" in body["error"]["message"]
    assert echo.engine.requests == []


async def test_text_completions_and_chats_take_it(echo: Echo) -> None:
    """This gateway has no compiler, so a form that was understood is refused for that."""
    for path, body in (("/v1/completions", {"model": "echo", "prompt": "x"}), ("/v1/chat/completions", CHAT)):
        status, answer, _ = await post(echo, {**body, "structured_outputs": {"choice": ["a"]}}, path)
        assert (status, answer["error"]["param"]) == (400, "structured_outputs.choice")
        assert "no grammars" in answer["error"]["message"]
    unknown = {**CHAT, "structured_outputs": {"regexp": "a"}}
    status, answer, _ = await post(echo, unknown)
    assert status == 400 and "regexp" in answer["error"]["message"]
