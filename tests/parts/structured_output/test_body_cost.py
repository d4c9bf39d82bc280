"""The processor time of a chat with a schema: linear in each list, and hardly any of it on the event loop."""

from __future__ import annotations

from typing import Any

import pytest

from cloud_gateway.api.bodies import CheckedBody, asked, prompts_of
from cloud_gateway.api.schema import ChatBody
from cloud_gateway.models.text import Text
from tests.support.body_cost import (
    HELLO,
    SERVED,
    Body,
    assert_checked_at_once,
    assert_in_proportion,
    data_of,
    names,
)
from tests.support.chat_templates import family_tokenizer


def chat(**more: Any) -> dict[str, Any]:
    return {"messages": HELLO, **more}


def formatted(schema: dict[str, Any]) -> dict[str, Any]:
    return chat(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}})


LISTS: dict[str, Body] = {
    "enum of a schema": lambda n: formatted({"enum": names(n)}),
}
"""Every list of the part's parameters, by the number of its items."""


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
    short, long = (checked(LISTS[name](n)) for n in (100, 400))
    assert_in_proportion(lambda: prompts_of(short, text, 10**6), lambda: prompts_of(long, text, 10**6))


@pytest.mark.claim("no-body-holds-the-event-loop")
@pytest.mark.parametrize("name", LISTS)
def test_a_body_that_is_checked_on_the_event_loop_is_checked_at_once(name: str) -> None:
    assert_checked_at_once(LISTS[name], checked)
