"""The processor time of a chat with tools: linear in each list, and hardly any of it on the event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cloud_gateway.api import Backend
from cloud_gateway.api.bodies import SMALL_BYTES, CheckedBody, asked, prompts_of
from cloud_gateway.api.schema import ChatBody
from cloud_gateway.models.text import Text
from edgespec.core.errors import ClientError
from tests.support.body_cost import (
    HELLO,
    SERVED,
    Body,
    assert_checked_at_once,
    assert_in_proportion,
    assert_the_loop_is_free,
    data_of,
    names,
)
from tests.support.chat_templates import family_tokenizer
from tests.support.echo import Echo, echo_gateway

TOOL = {"type": "function", "function": {"name": "f"}}


def chat(**more: Any) -> dict[str, Any]:
    return {"messages": HELLO, **more}


def strict(parameters: dict[str, Any]) -> dict[str, Any]:
    """A chat with a tool whose arguments have to satisfy this schema."""
    return chat(tools=[{"type": "function", "function": {"name": "f", "strict": True, "parameters": parameters}}])


def allowed(n: int) -> dict[str, Any]:
    """A chat that allows one tool again and again."""
    names = {"mode": "auto", "tools": [TOOL] * n}
    return chat(tools=[TOOL], tool_choice={"type": "allowed_tools", "allowed_tools": names})


LISTS: dict[str, Body] = {
    "tools": lambda n: chat(tools=[{"type": "function", "function": {"name": name}} for name in names(n)]),
    "properties": lambda n: strict({"properties": {name: {"type": "string"} for name in names(n)}}),
    "required": lambda n: strict({"properties": dict.fromkeys(names(n), 1), "required": names(n)}),
    "enum": lambda n: strict({"enum": names(n)}),
    "anyOf": lambda n: strict({"anyOf": [{"type": "null"}] * n}),
    "definitions": lambda n: strict({"$defs": {name: {"type": "null"} for name in names(n)}}),
    "allowed tools": allowed,
}
"""Every list of the part's parameters, by the number of its items."""
BOUNDED = {"tools"}
"""Those of which 400 items are refused."""


def checked(body: dict[str, Any]) -> CheckedBody:
    """A chat as the endpoint checks it. Raises ClientError 400."""
    return asked(data_of(body), ChatBody, SERVED)


@pytest.fixture(scope="module")
def text() -> Text:
    return Text(family_tokenizer("qwen3"))


@pytest.mark.claim("a-body-costs-time-in-proportion-to-its-length")
@pytest.mark.parametrize("name", LISTS)
def test_four_times_the_items_are_checked_in_about_four_times_the_time(name: str) -> None:
    short, long = (LISTS[name](n) for n in (2_000, 8_000))
    assert_in_proportion(lambda: checked(short), lambda: checked(long))


@pytest.mark.claim("a-body-costs-time-in-proportion-to-its-length")
@pytest.mark.parametrize("name", LISTS)
def test_four_times_the_items_are_tokenised_in_about_four_times_the_time(name: str, text: Text) -> None:
    if name in BOUNDED:
        with pytest.raises(ClientError):
            checked(LISTS[name](400))
        return
    short, long = (checked(LISTS[name](n)) for n in (100, 400))
    assert_in_proportion(lambda: prompts_of(short, text, 10**6), lambda: prompts_of(long, text, 10**6))


@pytest.mark.claim("no-body-holds-the-event-loop")
@pytest.mark.parametrize("name", LISTS)
def test_a_body_that_is_checked_on_the_event_loop_is_checked_at_once(name: str) -> None:
    assert_checked_at_once(LISTS[name], checked)


LARGEST: dict[str, dict[str, Any]] = {
    "properties": strict({"properties": {name: {"type": "string"} for name in names(8_000)}}),
    "too many properties": strict({"properties": {name: {"type": "string"} for name in names(49_000)}}),
}
"""The longest bodies of their kind that are accepted, or that are refused for their size only once they are decoded."""


@pytest.fixture
async def long(tmp_path: Path, text: Text) -> AsyncIterator[Echo]:
    """A gateway with a context of 32,768 tokens and a real tokenizer."""
    async with echo_gateway(tmp_path, SERVED.limits) as echo:
        echo.api.serve(Backend(echo.engine, text, SERVED.model))
        yield echo


@pytest.mark.claim("no-body-holds-the-event-loop")
@pytest.mark.parametrize("name", LARGEST)
async def test_the_largest_bodies_do_not_hold_the_event_loop(name: str, long: Echo) -> None:
    assert len(data_of(LARGEST[name])) > SMALL_BYTES
    await assert_the_loop_is_free(long, "/v1/chat/completions", LARGEST[name])
