"""The processor time of a body: linear in each of its lists, and hardly any of it on the event loop.

Times are of the processor and the fastest of some runs, so that other processes do not change them.
"""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cloud_gateway.api import Backend
from cloud_gateway.api.bodies import SMALL_BYTES, Served, asked, to_tokenise, tokenised
from cloud_gateway.api.responses import ResponsesBody
from cloud_gateway.api.schema import ChatBody, Common, CompletionBody
from cloud_gateway.models.text import Text
from edgespec.core.errors import ClientError
from tests.support.chat_templates import family_tokenizer
from tests.support.echo import MODEL, Echo, echo_gateway, post
from tools.doubles.limits import request_limits

CONTEXT = 32_768
SERVED = Served(replace(MODEL, context=CONTEXT), (MODEL.id,), request_limits())
KINDS = {"/v1/chat/completions": ChatBody, "/v1/completions": CompletionBody, "/v1/responses": ResponsesBody}
CHAT, TEXT, RESPONSES = KINDS
TOKENIZE = "/tokenize"
HELLO = [{"role": "user", "content": "x"}]
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
FORMER = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TOOL = {"type": "function", "function": {"name": "f"}}

Body = Callable[[int], dict[str, Any]]


def chat(**more: Any) -> dict[str, Any]:
    return {"messages": HELLO, **more}


def strict(parameters: dict[str, Any]) -> dict[str, Any]:
    """A chat with a tool whose arguments have to satisfy this schema."""
    return chat(tools=[{"type": "function", "function": {"name": "f", "strict": True, "parameters": parameters}}])


def formatted(schema: dict[str, Any]) -> dict[str, Any]:
    return chat(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}})


def names(n: int) -> list[str]:
    return [f"p{i}" for i in range(n)]


RESULT = {"type": "function_call_output", "call_id": "c", "output": "x"}
FUNCTION = {"type": "function", "name": "f"}


def said(content: object) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}]}


def allowed(n: int) -> dict[str, Any]:
    """A chat that allows one tool again and again."""
    names = {"mode": "auto", "tools": [TOOL] * n}
    return chat(tools=[TOOL], tool_choice={"type": "allowed_tools", "allowed_tools": names})


def allowed_functions(n: int) -> dict[str, Any]:
    return {"input": "x", "tools": [FUNCTION], "tool_choice": {"type": "allowed_tools", "tools": [FUNCTION] * n}}


LISTS: dict[str, tuple[str, Body]] = {
    "messages": (CHAT, lambda n: {"messages": HELLO * n}),
    "parts of a message": (CHAT, lambda n: said([{"type": "text", "text": "x"}] * n)),
    "calls of a message": (CHAT, lambda n: {"messages": [*HELLO, {"role": "assistant", "tool_calls": [FORMER] * n}]}),
    "results": (CHAT, lambda n: {"messages": [{"role": "tool", "content": "x", "tool_call_id": "c"}] * n}),
    "tools": (CHAT, lambda n: chat(tools=[{"type": "function", "function": {"name": name}} for name in names(n)])),
    "properties": (CHAT, lambda n: strict({"properties": {name: {"type": "string"} for name in names(n)}})),
    "required": (CHAT, lambda n: strict({"properties": dict.fromkeys(names(n), 1), "required": names(n)})),
    "enum": (CHAT, lambda n: strict({"enum": names(n)})),
    "anyOf": (CHAT, lambda n: strict({"anyOf": [{"type": "null"}] * n})),
    "definitions": (CHAT, lambda n: strict({"$defs": {name: {"type": "null"} for name in names(n)}})),
    "allowed tools": (CHAT, allowed),
    "enum of a schema": (CHAT, lambda n: formatted({"enum": names(n)})),
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
    "items that are messages": (RESPONSES, lambda n: {"input": HELLO * n}),
    "items that are calls": (RESPONSES, lambda n: {"input": [CALL] * n}),
    "items that are results": (RESPONSES, lambda n: {"input": [RESULT] * n}),
    "calls and results": (RESPONSES, lambda n: {"input": [CALL, RESULT] * (n // 2)}),
    "parts of an item": (RESPONSES, lambda n: {"input": said([{"type": "input_text", "text": "x"}] * n)["messages"]}),
    "include": (RESPONSES, lambda n: {"input": "x", "include": ["x"] * n}),
    "functions": (RESPONSES, lambda n: {"input": "x", "tools": [{**FUNCTION, "name": name} for name in names(n)]}),
    "allowed functions": (RESPONSES, allowed_functions),
    "messages to tokenise": (TOKENIZE, lambda n: {"messages": HELLO * n}),
}
"""Every list or mapping of every body, by the number of its items."""

BOUNDED = {
    "tools",
    "stop",
    "sources",
    "a refused list",
    "unknown parameters",
    "a long name",
    "prompts",
    "prompts of tokens",
    "functions",
}
"""Those of which 400 items are refused."""


def data_of(body: dict[str, Any]) -> bytes:
    return json.dumps({"model": MODEL.id, "max_tokens": 1, **body}).encode()


def checked(path: str, data: bytes) -> Common:
    """The body as the endpoint checks it. Raises ClientError 400."""
    return to_tokenise(data, SERVED) if path == TOKENIZE else asked(data, KINDS[path], SERVED).body


def seconds(work: Callable[[], object]) -> float:
    """Processor time of one run on this thread, without the garbage collector's."""
    gc.disable()
    began = time.thread_time()
    with suppress(ClientError):  # what is refused costs time, too
        work()
    spent = time.thread_time() - began
    gc.enable()
    return spent


def assert_in_proportion(short: Callable[[], object], long: Callable[[], object]) -> None:
    """`long` has four times the items of `short`: it takes four times as long if each costs the same, 16 if each looks
    at all others. The bound lies between the two. Runs alternate, since a processor's caches and clock change in time.
    """
    pairs = [(seconds(short), seconds(long)) for _ in range(5)]
    fastest_short = min(short_s for short_s, _ in pairs)
    fastest_long = min(long_s for _, long_s in pairs)
    assert fastest_long < 8 * max(fastest_short, 1e-4)


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
    assert_in_proportion(lambda: tokenised(short, text, 10**6), lambda: tokenised(long, text, 10**6))


# --- the event loop -------------------------------------------------------------------------------------------------


MAX_HELD_S = 0.05
"""The longest step that cannot be divided takes 0.02 s: msgspec decodes 49,000 properties."""
LARGEST: dict[str, tuple[str, dict[str, Any]]] = {
    "calls": (RESPONSES, {"input": [CALL] * 2_000}),
    "too many calls": (RESPONSES, {"input": [CALL] * 40_000}),
    "text": (CHAT, said("a word, " * 20_000)),
    "properties": (CHAT, strict({"properties": {name: {"type": "string"} for name in names(8_000)}})),
    "too many properties": (CHAT, strict({"properties": {name: {"type": "string"} for name in names(49_000)}})),
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


async def held_s(echo: Echo, path: str, data: bytes) -> float:
    """The longest processor time of the process between two turns of the event loop while it answers this body.

    Counts what runs on the loop, and what runs beside it without giving up the GIL.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", echo.listener.port)
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {echo.key}\r\n"
    writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    answer = asyncio.create_task(reader.read())
    longest, last = 0.0, time.process_time()
    while not answer.done():
        await asyncio.sleep(0)
        now = time.process_time()
        longest = max(longest, now - last)
        last = now
    writer.close()
    assert (await answer).split()[1] in (b"200", b"400")
    return longest


@pytest.mark.claim("no-body-holds-the-event-loop")
@pytest.mark.parametrize("name", LARGEST)
async def test_the_largest_bodies_do_not_hold_the_event_loop(name: str, long: Echo) -> None:
    path, body = LARGEST[name]
    data = data_of(body)
    assert len(data) > SMALL_BYTES
    gc.collect()
    gc.freeze()  # the objects of all other tests are not this body's to visit
    try:
        found = [await held_s(long, path, data) for _ in range(3)]
    finally:
        gc.unfreeze()
    print(f"{name}: {len(data) // 1000} kB, loop held for {', '.join(f'{s * 1e3:.0f}' for s in found)} ms")
    assert min(found) < MAX_HELD_S


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
    for path, param in ((RESPONSES, "input"), (CHAT, "messages")):
        status, answer, _ = await post(echo, {"model": "echo", param: HELLO * (MODEL.context + 1)}, path)
        error = answer["error"]
        assert (status, error["code"], error["param"]) == (400, "context_length_exceeded", param)
        assert f"{MODEL.context + 1} items" in error["message"]
