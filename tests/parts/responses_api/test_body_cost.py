"""The processor time of a response's body: linear in each of its lists, and hardly any of it on the event loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cloud_gateway.api import Backend
from cloud_gateway.api.bodies import CheckedBody, asked, prompts_of
from cloud_gateway.models.text import Text
from cloud_gateway.parts.responses_api.bodies import ResponsesBody
from cloud_gateway.parts.responses_api.endpoint import ROUTE
from edgespec.core.errors import ClientError
from tests.support.body_cost import (
    HELLO,
    SERVED,
    Body,
    assert_checked_at_once,
    assert_in_proportion,
    assert_refused_by_number,
    assert_the_loop_is_free,
    data_of,
    names,
)
from tests.support.chat_templates import family_tokenizer
from tests.support.echo import echo_gateway
from tests.support.served import is_served

CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "c", "output": "x"}
FUNCTION = {"type": "function", "name": "f"}
PART = {"type": "input_text", "text": "x"}


def allowed(n: int) -> dict[str, Any]:
    """A body that allows one function again and again."""
    return {"input": "x", "tools": [FUNCTION], "tool_choice": {"type": "allowed_tools", "tools": [FUNCTION] * n}}


LISTS: dict[str, Body] = {
    "messages": lambda n: {"input": HELLO * n},
    "calls": lambda n: {"input": [CALL] * n},
    "results": lambda n: {"input": [RESULT] * n},
    "calls and results": lambda n: {"input": [CALL, RESULT] * (n // 2)},
    "parts": lambda n: {"input": [{"role": "user", "content": [PART] * n}]},
    "include": lambda n: {"input": "x", "include": ["x"] * n},
}
"""Every list of the body, by the number of its items."""
BOUNDED: set[str] = set()
"""Those of which 400 items are refused."""
if is_served("tools"):
    LISTS["functions"] = lambda n: {"input": "x", "tools": [{**FUNCTION, "name": name} for name in names(n)]}
    LISTS["allowed functions"] = allowed
    BOUNDED.add("functions")


def checked(body: dict[str, Any]) -> CheckedBody:
    """The body as a chat. Raises ClientError 400."""
    return asked(data_of(body), ResponsesBody, SERVED)


@pytest.fixture(scope="module")
def text() -> Text:
    return Text(family_tokenizer("qwen3"))


@pytest.mark.claim("a-body-costs-time-in-proportion-to-its-length")
@pytest.mark.parametrize("name", LISTS)
def test_four_times_the_items_are_checked_in_about_four_times_the_time(name: str) -> None:
    short, long = (LISTS[name](n) for n in (2_000, 8_000))
    assert_in_proportion(lambda: checked(short), lambda: checked(long))


@pytest.mark.claim("a-body-costs-time-in-proportion-to-its-length")
@pytest.mark.parametrize("name", sorted(LISTS.keys() - BOUNDED))
def test_four_times_the_items_are_tokenised_in_about_four_times_the_time(name: str, text: Text) -> None:
    short, long = (checked(LISTS[name](n)) for n in (100, 400))
    assert_in_proportion(lambda: prompts_of(short, text, 10**6), lambda: prompts_of(long, text, 10**6))


@pytest.mark.parametrize("name", sorted(BOUNDED))
def test_a_list_with_a_bound_is_refused_above_it(name: str) -> None:
    with pytest.raises(ClientError):
        checked(LISTS[name](400))


@pytest.mark.claim("no-body-holds-the-event-loop")
@pytest.mark.parametrize("count", [2_000, 40_000])
async def test_many_calls_do_not_hold_the_event_loop(count: int, tmp_path: Path, text: Text) -> None:
    """Also more than are accepted."""
    async with echo_gateway(tmp_path, more=lambda keys: [ROUTE]) as echo:
        echo.api.serve(Backend(echo.engine, text, SERVED.model))
        await assert_the_loop_is_free(echo, ROUTE.path, {"input": [CALL] * count})


@pytest.mark.claim("no-body-holds-the-event-loop")
@pytest.mark.parametrize("name", LISTS)
def test_a_body_that_is_checked_on_the_event_loop_is_checked_at_once(name: str) -> None:
    assert_checked_at_once(LISTS[name], checked, items=2)


async def test_more_items_than_the_context_has_tokens_are_refused_by_number(tmp_path: Path) -> None:
    async with echo_gateway(tmp_path, more=lambda keys: [ROUTE]) as echo:
        await assert_refused_by_number(echo, ROUTE.path, "input")
