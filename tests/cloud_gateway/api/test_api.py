"""The API over real sockets, through the official client; and what clients receive at the start and the end."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import openai
import pytest

from tests.support.echo import CHAT, ECHOED, HELLO, Echo, EchoEngine, echo_gateway, post
from tests.support.until import until
from tools.doubles.limits import request_limits


@pytest.fixture(params=["as-made", "even"])
async def echo(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Echo]:
    async with echo_gateway(tmp_path, request_limits(stream=request.param)) as running:
        yield running


async def test_a_chat_answer_has_the_text_the_usage_and_the_extension(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(**CHAT, extra_body={"edgespec": {"usage": True}})
    assert answer.choices[0].message.content == ECHOED
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.system_fingerprint == "es_echo"
    assert answer.id.startswith("chatcmpl-")
    assert answer.usage is not None
    tokens = len(ECHOED.encode())
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (tokens, tokens)
    assert answer.usage.total_tokens == 2 * tokens
    extension = answer.usage.model_extra["edgespec"]
    assert extension["rounds"] == 7
    assert extension["worker_share"] == 1.0
    assert extension["why_off"] is None


async def test_a_stream_says_the_same_in_openais_chunks(client: openai.AsyncOpenAI) -> None:
    chunks = [
        chunk
        async for chunk in await client.chat.completions.create(
            model="echo",
            messages=HELLO,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"edgespec": {"usage": True}},
        )
    ]
    *deltas, last = chunks
    assert deltas[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in deltas) == ECHOED
    assert [chunk.choices[0].finish_reason for chunk in deltas] == [None] * (len(deltas) - 1) + ["stop"]
    assert {chunk.id for chunk in chunks} == {chunks[0].id}
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == len(ECHOED.encode())
    assert last.usage.model_extra["edgespec"]["rounds"] == 7
    assert all(chunk.usage is None for chunk in deltas)


async def test_text_completions_whole_and_streamed(client: openai.AsyncOpenAI) -> None:
    whole = await client.completions.create(model="echo", prompt="once upon a time", max_tokens=16)
    assert (whole.choices[0].text, whole.choices[0].finish_reason) == ("once upon a time", "length")
    stream = await client.completions.create(model="echo", prompt="once upon", stream=True, max_tokens=4)
    pieces = [chunk.choices[0] async for chunk in stream]
    assert "".join(piece.text for piece in pieces) == "once"
    assert pieces[-1].finish_reason == "length"


async def test_several_prompts_and_choices_keep_their_order(echo: Echo, client: openai.AsyncOpenAI) -> None:
    whole = await client.completions.create(model="echo", prompt=["ab", "cd"], n=2, seed=7)
    assert [choice.text for choice in whole.choices] == ["ab", "ab", "cd", "cd"]
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
    assert [request.sampling.seed for request in echo.engine.requests] == [7, 8, 7, 8]
    assert whole.usage is not None
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (4, 8)
    tokens = await client.completions.create(model="echo", prompt=[[104, 105], [106]])
    assert [choice.text for choice in tokens.choices] == ["hi", "j"]


async def test_streamed_choices_have_their_index(client: openai.AsyncOpenAI) -> None:
    texts = {0: "", 1: "", 2: ""}
    finished: dict[int, str] = {}
    async for chunk in await client.chat.completions.create(model="echo", messages=HELLO, stream=True, n=3):
        choice = chunk.choices[0]
        texts[choice.index] += choice.delta.content or ""
        if choice.finish_reason:
            finished[choice.index] = choice.finish_reason
    assert texts == dict.fromkeys(range(3), ECHOED)
    assert finished == dict.fromkeys(range(3), "stop")


async def test_models_are_listed_and_found(client: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == ["echo"]
    assert (await client.models.retrieve("echo")).id == "echo"
    with pytest.raises(openai.NotFoundError) as error:
        await client.models.retrieve("some/other")
    assert error.value.code == "model_not_found"


async def test_errors_become_the_classes_of_the_official_client(echo: Echo, client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.AuthenticationError) as unauthenticated:
        await client.with_options(api_key="es-nothere0-x").chat.completions.create(**CHAT)
    assert unauthenticated.value.code == "invalid_api_key"
    with pytest.raises(openai.BadRequestError) as bad:
        await client.chat.completions.create(**CHAT, temperature=2.5)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.NotFoundError) as missing:
        await client.chat.completions.create(model="gpt-4", messages=HELLO)
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    echo.engine.queue_limit = 0
    with pytest.raises(openai.RateLimitError) as full:
        await client.chat.completions.create(**CHAT)
    assert full.value.response.headers["retry-after"] == "3"
    assert full.value.code == "queue_full"


async def test_a_stop_string_ends_the_answer_before_it_and_counts_exactly(
    echo: Echo, client: openai.AsyncOpenAI
) -> None:
    for per_event in (1, 2, 3, 7, 100):  # however many tokens a round brings
        echo.engine.per_event = per_event
        answer = await client.chat.completions.create(
            **CHAT, max_tokens=400, stop=["lo ✓", "zzz"], extra_body={"edgespec": {"ignore_eos": True}}
        )
        assert answer.choices[0].message.content == "user: hel"
        assert answer.choices[0].finish_reason == "stop"
        assert answer.usage is not None
        assert answer.usage.completion_tokens == len("user: hello ✓".encode())
    await until(lambda: not echo.engine.running)
    assert len(echo.engine.cancelled) == 5, "the engine stops too"


async def test_while_loading_and_draining_requests_get_a_503_with_retry_after(tmp_path: Path) -> None:
    async with echo_gateway(tmp_path, loaded=False) as echo:
        status, body, headers = await post(echo, CHAT)
        assert (status, body["error"]["code"], headers["Retry-After"]) == (503, "loading", "5")
        assert await health(echo) == (503, "loading")
    async with echo_gateway(tmp_path) as echo:
        assert await health(echo) == (200, "ok")
        await echo.api.drain(0)
        assert await health(echo) == (503, "draining")
        status, body, _ = await post(echo, CHAT)
        assert (status, body["error"]["code"]) == (503, "shutting_down")


async def health(echo: Echo) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(echo.listener.url + "/healthz") as response:
        return response.status, (await response.json())["status"]


async def test_draining_lets_answers_end_and_cancels_the_slow_ones(tmp_path: Path) -> None:
    async with echo_gateway(tmp_path, engine=EchoEngine(step_s=0.02)) as echo:
        short = asyncio.create_task(post(echo, CHAT))
        endless = asyncio.create_task(post(echo, {**CHAT, "max_tokens": 4000, "edgespec": {"ignore_eos": True}}))
        await until(lambda: len(echo.engine.requests) == 2)
        draining = asyncio.create_task(echo.api.drain(3600))
        assert (await short)[0] == 200
        assert not draining.done()
        draining.cancel()
        await echo.api.drain(0.1)
        status, body, _ = await endless
        assert (status, body["error"]["code"]) == (503, "shutting_down")
