"""The processor time of a body: linear in each of its lists, and hardly any of it on the event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cloud_gateway.api import Backend
from cloud_gateway.api.bodies import SMALL_BYTES, CheckedBody, asked, prompts_of, to_tokenise
from cloud_gateway.api.schema import ChatBody, CompletionBody
from cloud_gateway.models.text import Text
from edgespec.core.errors import ClientError
from tests.support.body_cost import (
    HELLO,
    SERVED,
    Body,
    assert_in_proportion,
    assert_refused_by_number,
    assert_the_loop_is_free,
    data_of,
    names,
    seconds,
)
from tests.support.chat_templates import family_tokenizer
from tests.support.echo import Echo, echo_gateway

KINDS = {"/v1/chat/completions": ChatBody, "/v1/completions": CompletionBody}
CHAT, TEXT = KINDS
TOKENIZE = "/tokenize"
FORMER = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def chat(**more: Any) -> dict[str, Any]:
    return {"messages": HELLO, **more}


def said(content: object) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}]}


LISTS: dict[str, tuple[str, Body]] = {
    "messages": (CHAT, lambda n: {"messages": HELLO * n}),
    "parts of a message": (CHAT, lambda n: said([{"type": "text", "text": "x"}] * n)),
    "calls of a message": (CHAT, lambda n: {"messages": [*HELLO, {"role": "assistant", "tool_calls": [FORMER] * n}]}),
    "results": (CHAT, lambda n: {"messages": [{"role": "tool", "content": "x", "tool_call_id": "c"}] * n}),
    "logit_bias": (CHAT, lambda n: chat(logit_bias=dict.fromkeys(map(str, range(n)), 1))),
    "logit_bias of keys with equal hashes": (CHAT, lambda n: chat(logit_bias={str(i << 14): 1 for i in range(n)})),
    "stop": (CHAT, lambda n: chat(stop=["x"] * n)),
    "sources": (CHAT, lambda n: chat(edgespec={"sources": ["lookup"] * n})),
    "an ignored list": (CHAT, lambda n: chat(metadata=[1] * n)),
    "a refused list": (CHAT, lambda n: chat(functions=[1] * n)),
    "unknown parameters": (CHAT, lambda n: chat(**dict.fromkeys(names(n), 1))),
    "a long name": (CHAT, lambda n: chat(**{"x" * 40 * n: 1})),
    "text of a message": (CHAT, lambda n: said("a word, " * n)),
    "tokens": (TEXT, lambda n: {"prompt": [1] * n}),
    "prompts": (TEXT, lambda n: {"prompt": ["x"] * n}),
    "prompts of tokens": (TEXT, lambda n: {"prompt": [[1]] * n}),
    "text of a prompt": (TEXT, lambda n: {"prompt": "a word, " * n}),
    "messages to tokenise": (TOKENIZE, lambda n: {"messages": HELLO * n}),
}
"""Every list or mapping of every body, by the number of its items."""

BOUNDED = {
    "stop",
    "sources",
    "a refused list",
    "unknown parameters",
    "a long name",
    "prompts",
    "prompts of tokens",
}
"""Those of which 400 items are refused."""


def checked(path: str, data: bytes) -> CheckedBody:
    """A request as the endpoint checks it. Raises ClientError 400."""
    return to_tokenise(data, SERVED) if path == TOKENIZE else asked(data, KINDS[path], SERVED)


@pytest.mark.claim("a-body-costs-time-in-proportion-to-its-length")
@pytest.mark.parametrize("name", LISTS)
def test_four_times_the_items_are_checked_in_about_four_times_the_time(name: str) -> None:
    path, body = LISTS[name]
    short, long = (data_of(body(n)) for n in (2_000, 8_000))
    assert_in_proportion(lambda: checked(path, short), lambda: checked(path, long))


@pytest.mark.claim("a-body-costs-time-in-proportion-to-its-length")
@pytest.mark.parametrize("name", LISTS)
def test_four_times_the_items_are_tokenised_in_about_four_times_the_time(name: str, text: Text) -> None:
    path, body = LISTS[name]
    if name in BOUNDED:
        with pytest.raises(ClientError):
            checked(path, data_of(body(400)))
        return
    short, long = (checked(path, data_of(body(n))) for n in (100, 400))
    assert_in_proportion(lambda: prompts_of(short, text, 10**6), lambda: prompts_of(long, text, 10**6))


# --- the event loop -------------------------------------------------------------------------------------------------


LARGEST: dict[str, tuple[str, dict[str, Any]]] = {
    "text": (CHAT, said("a word, " * 20_000)),
    "parts": (CHAT, said([{"type": "text", "text": "x"}] * 49_000)),
    "tokens": (TEXT, {"prompt": [1] * 32_000}),
    "text to tokenise": (TOKENIZE, {"prompt": "a word, " * 20_000}),
}
"""The longest bodies of their kind that are accepted, or that are refused for their size only once they are decoded."""


@pytest.fixture(scope="module")
def text() -> Text:
    return Text(family_tokenizer("qwen3"))


@pytest.fixture
async def long(tmp_path: Path, text: Text) -> AsyncIterator[Echo]:
    """A gateway with a context of 32,768 tokens and a real tokenizer."""
    async with echo_gateway(tmp_path) as echo:
        echo.api.serve(Backend(echo.engine, text, SERVED.model))
        yield echo


@pytest.mark.claim("no-body-holds-the-event-loop")
@pytest.mark.parametrize("name", LARGEST)
async def test_the_largest_bodies_do_not_hold_the_event_loop(name: str, long: Echo) -> None:
    path, body = LARGEST[name]
    assert len(data_of(body)) > SMALL_BYTES
    await assert_the_loop_is_free(long, path, body)


@pytest.mark.claim("no-body-holds-the-event-loop")
@pytest.mark.parametrize("name", LISTS)
def test_a_body_that_is_checked_on_the_event_loop_is_checked_at_once(name: str) -> None:
    path, body = LISTS[name]
    items = 1
    while len(data_of(body(2 * items))) <= SMALL_BYTES:
        items *= 2
    data = data_of(body(items))
    assert min(seconds(lambda: checked(path, data)) for _ in range(3)) < 0.01


async def test_more_items_than_the_context_has_tokens_are_refused_by_number(echo: Echo) -> None:
    await assert_refused_by_number(echo, CHAT, "messages")
