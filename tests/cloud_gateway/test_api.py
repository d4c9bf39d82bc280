"""The API over real sockets: what the official client sees, and what a hostile or leaving client cannot do."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from cloud_gateway.api import ROUTES, Limits, make_app
from tests.support.echo import Echo, EchoEngine, echo_gateway

HELLO = [{"role": "user", "content": "hello ✓ world"}]
ECHOED = "user: hello ✓ world"
CHAT = {"model": "echo", "messages": HELLO}


@pytest.fixture
async def echo(tmp_path: Path) -> AsyncIterator[Echo]:
    async with echo_gateway(tmp_path) as running:
        yield running


@pytest.fixture
async def client(echo: Echo) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=echo.base_url, api_key=echo.key, max_retries=0) as client:
        yield client


async def post(echo: Echo, body: Any, path: str = "/v1/chat/completions", **headers: str) -> tuple[int, Any, Any]:
    """Status, JSON body and headers of a raw request; a body that is not bytes is sent as JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {echo.key}", **headers}) as session:
        async with session.post(echo.listener.url + path, data=data) as response:
            return response.status, await response.json(), response.headers


async def until(condition: Any, timeout_s: float = 5.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        await asyncio.sleep(0.01)


# --- the official client -------------------------------------------------------------------------------------------


async def test_a_chat_answer_has_the_text_the_usage_and_the_extension(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model="echo", messages=HELLO)
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
            model="echo", messages=HELLO, stream=True, stream_options={"include_usage": True}
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


async def test_the_synchronous_client_works_too(echo: Echo) -> None:
    def talk() -> tuple[str | None, str]:
        with openai.OpenAI(base_url=echo.base_url, api_key=echo.key) as client:
            whole = client.chat.completions.create(model="echo", messages=HELLO).choices[0].message.content
            stream = client.chat.completions.create(model="echo", messages=HELLO, stream=True)
            return whole, "".join(chunk.choices[0].delta.content or "" for chunk in stream)

    assert await asyncio.to_thread(talk) == (ECHOED, ECHOED)


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


async def test_streamed_choices_are_told_apart(client: openai.AsyncOpenAI) -> None:
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


async def test_a_prompt_beyond_the_context_is_refused_before_any_work(echo: Echo, client: openai.AsyncOpenAI) -> None:
    for create, param in (
        (
            lambda: client.chat.completions.create(model="echo", messages=[{"role": "user", "content": "x" * 600}]),
            "messages",
        ),
        (lambda: client.completions.create(model="echo", prompt=["y", "x" * 600], stream=True), "prompt"),
    ):
        with pytest.raises(openai.BadRequestError) as error:
            await create()
        assert (error.value.code, error.value.param) == ("context_length_exceeded", param)
    await until(lambda: not echo.engine.running)
    assert len(echo.engine.requests) == len(echo.engine.cancelled) == 1, "the first prompt's answer is given up again"


# --- parameters ----------------------------------------------------------------------------------------------------


async def test_all_sampling_parameters_reach_the_engine(echo: Echo, client: openai.AsyncOpenAI) -> None:
    await client.chat.completions.create(
        **CHAT,
        temperature=0.5,
        top_p=0.9,
        presence_penalty=0.1,
        frequency_penalty=-0.2,
        logit_bias={"7": 3},
        seed=-1,
        stop=["x1", "x2"],
        max_completion_tokens=50,
        extra_body={
            "top_k": 40,
            "min_p": 0.05,
            "repetition_penalty": 1.1,
            "edgespec": {"policy": "wanspec", "k": 3, "phi": 2},
        },
    )
    (request,) = echo.engine.requests
    sampling, speculation = request.sampling, request.speculation
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.9, 40, 0.05)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.1, -0.2)
    assert (sampling.repetition_penalty, sampling.logit_bias, sampling.seed) == (1.1, {7: 3.0}, 2**63 - 1)
    assert (request.stop, request.max_tokens, request.ignore_eos) == (("x1", "x2"), 50, False)
    assert (speculation.policy, speculation.k, speculation.phi, speculation.offload) == ("wanspec", 3, 2.0, "auto")


async def test_defaults_are_openais_and_an_absent_seed_is_random(echo: Echo, client: openai.AsyncOpenAI) -> None:
    for _ in range(2):
        await client.chat.completions.create(**CHAT)
    first, second = echo.engine.requests
    assert (first.sampling.temperature, first.sampling.top_p, first.sampling.top_k) == (1.0, 1.0, 0)
    assert first.max_tokens == 512 - len(ECHOED.encode()), "the end of the context comes before the default of 512"
    assert first.sampling.seed != second.sampling.seed
    assert first.speculation.policy is first.speculation.k is first.speculation.phi is None


BAD: list[tuple[dict[str, Any], str | None]] = [
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.1}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"min_p": 2}, "min_p"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_tokens": 10**9}, "max_tokens"),
    ({"max_completion_tokens": 4097}, "max_completion_tokens"),
    ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
    ({"n": 0}, "n"),
    ({"n": 9}, "n"),
    ({"stop": ["a"] * 5}, "stop"),
    ({"stop": [""]}, "stop[0]"),
    ({"stop": 5}, "stop"),
    ({"seed": 2**63}, "seed"),
    ({"seed": -(2**63) - 1}, "seed"),
    ({"seed": 10**40}, "seed"),
    ({"presence_penalty": 2.1}, "presence_penalty"),
    ({"frequency_penalty": True}, "frequency_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"logit_bias": {"5": 101}}, "logit_bias"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": {"256": 1}}, "logit_bias"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"x": 1}}, "stream_options"),
    ({"model": None}, "model"),
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "tool", "content": "x", "tool_call_id": "1"}]}, "messages[0]"),
    ({"messages": [{"role": "assistant", "content": None, "tool_calls": [{}]}]}, "messages[0]"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"content": "x"}]}, "messages[0].role"),
    ({"messages": [*HELLO, {"role": "user", "content": [{"type": "image_url"}]}]}, "messages[1].content[0]"),
    ({"tools": [{"type": "function"}]}, "tools"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"logprobs": True}, "logprobs"),
    ({"reasoning_effort": "high"}, "reasoning_effort"),
    ({"modalities": ["audio"]}, "modalities"),
    ({"tempreature": 1}, "tempreature"),
    ({"prompt": "x"}, "prompt"),
    ({"edgespec": {"policy": "magic"}}, "edgespec.policy"),
    ({"edgespec": {"k": 0}}, "edgespec.k"),
    ({"edgespec": {"phi": -1}}, "edgespec.phi"),
    ({"edgespec": {"offload": "always"}}, "edgespec.offload"),
    ({"edgespec": {"colour": "red"}}, "edgespec"),
]


@pytest.mark.parametrize(("change", "param"), BAD, ids=[json.dumps(change)[:50] for change, _ in BAD])
async def test_bad_values_are_refused_by_name(echo: Echo, change: dict[str, Any], param: str) -> None:
    status, body, _ = await post(echo, {**CHAT, **change})
    assert (status, body["error"]["param"]) == (400, param), body
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["type"] == "invalid_request_error"
    assert body["error"]["message"].endswith(".")
    assert echo.engine.requests == []


@pytest.mark.parametrize(
    ("prompt", "sentence"),
    [
        ([1, "x"], "mixed"),
        ([256], "vocabulary"),
        ([[1], [999]], "vocabulary"),
        ([], "length"),
        ({}, "prompt"),
        (["x"] * 9, "at most 8"),
    ],
)
async def test_bad_prompts_of_text_completions_are_refused(echo: Echo, prompt: Any, sentence: str) -> None:
    status, body, _ = await post(echo, {"model": "echo", "prompt": prompt}, "/v1/completions")
    assert status == 400
    assert body["error"]["param"].startswith("prompt")
    assert sentence in body["error"]["message"]


async def test_parameters_that_ask_for_nothing_pass(echo: Echo) -> None:
    harmless = {
        "user": "u", "metadata": {"a": "b"}, "store": False, "service_tier": "auto", "parallel_tool_calls": True,
        "safety_identifier": "x", "prompt_cache_key": "y", "prediction": {"type": "content", "content": "z"},
        "logprobs": False, "top_logprobs": None, "tools": [], "tool_choice": "auto",
        "response_format": {"type": "text"},
        "temperature": None, "seed": None, "stop": None, "stream": None, "n": None, "edgespec": None,
    }  # fmt: skip
    status, body, _ = await post(echo, {**CHAT, **harmless})
    assert status == 200, body


async def test_messages_take_parts_developers_and_former_answers(echo: Echo) -> None:
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "be "}, {"type": "text", "text": "brief"}]},
        {"role": "assistant", "content": "ok", "refusal": None, "annotations": [], "tool_calls": None, "audio": None},
        {"role": "user", "content": "", "name": "ann"},
    ]
    status, body, _ = await post(echo, {"model": "echo", "messages": messages})
    assert status == 200
    assert body["choices"][0]["message"]["content"] == "system: be brief\nassistant: ok\nuser: "


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"null", b"5", b'"x"', b"\xff\xfe", b'{"model": "\xff"}', b"[" * 200_000, b'{"a":' * 200_000,
     b'{"model": "echo", "messages": [{"role": "user", "content": "\\ud800"}]}', b'{"model": NaN}', b"{'model': 1}"],
    ids=range(13),
)  # fmt: skip
async def test_what_is_no_json_object_is_refused_in_one_sentence(echo: Echo, data: bytes) -> None:
    status, body, _ = await post(echo, data)
    assert status == 400
    assert body["error"]["type"] == "invalid_request_error"
    assert echo.engine.requests == []


async def test_offloading_needs_the_keys_permission(echo: Echo) -> None:
    _, private = echo.keys.create("private")
    for key, wish, offload, why in (
        (echo.key, None, "auto", None),
        (echo.key, "never", "never", "the request asked for it"),
        (private, None, "never", "offloading is off for this API key"),
        (private, "auto", "never", "offloading is off for this API key"),
        (private, "never", "never", "the request asked for it"),
    ):
        _, body, _ = await post(echo, {**CHAT, "edgespec": {"offload": wish}}, Authorization=f"Bearer {key}")
        assert echo.engine.requests[-1].speculation.offload == offload
        assert body["usage"]["edgespec"]["why_off"] == why


# --- stop strings --------------------------------------------------------------------------------------------------


async def test_a_stop_string_ends_the_answer_before_it_and_counts_exactly(
    echo: Echo, client: openai.AsyncOpenAI
) -> None:
    for per_event in (1, 2, 3, 7, 100):  # however many tokens a round brings
        echo.engine.per_event = per_event
        answer = await client.chat.completions.create(
            **CHAT, stop=["lo ✓", "zzz"], extra_body={"edgespec": {"ignore_eos": True}}
        )
        assert answer.choices[0].message.content == "user: hel"
        assert answer.choices[0].finish_reason == "stop"
        assert answer.usage is not None
        assert answer.usage.completion_tokens == len("user: hello ✓".encode())
    await until(lambda: not echo.engine.running)


async def test_text_held_back_for_a_stop_string_comes_out_at_the_end(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(**CHAT, stop="worldwide", stream=True)
    assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == ECHOED


# --- guards --------------------------------------------------------------------------------------------------------


async def test_every_route_is_in_the_table_and_keeps_its_guard(echo: Echo) -> None:
    app = make_app(echo.api, echo.keys)
    listed = {(route.method, route.path.replace(":.+", "")) for route in ROUTES}
    found = {(route.method, route.resource.canonical) for route in app.router.routes() if route.resource}
    assert found == listed, "a route was added beside the table"
    async with aiohttp.ClientSession() as session:
        for route in ROUTES:
            url = echo.listener.url + route.path.replace("{model:.+}", "echo")
            async with session.request(route.method, url, json=CHAT) as response:
                assert response.status == (200 if route.guard == "public" else 401), route
            async with session.request(
                route.method, url, json=CHAT, headers={"Authorization": "Bearer es-x"}
            ) as response:
                assert response.status == (200 if route.guard == "public" else 401), route
    assert {route.path for route in ROUTES if route.guard == "public"} == {"/healthz"}
    assert echo.engine.requests == []


async def test_a_route_added_behind_the_tables_back_stays_closed(echo: Echo) -> None:
    from aiohttp import web
    from aiohttp.test_utils import TestClient, TestServer

    async def open_door(request: web.Request) -> web.Response:
        return web.Response(text="inside")

    app = make_app(echo.api, echo.keys)
    app.router.add_get("/door", open_door)
    async with TestClient(TestServer(app)) as client:
        assert (await client.get("/door")).status == 404


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/", 404), ("GET", "/v1/chat", 404), ("POST", "/v1/embeddings", 404), ("GET", "/metrics", 404),
     ("GET", "/v1/chat/completions", 405), ("DELETE", "/v1/models/echo", 405), ("HEAD", "/healthz", 405),
     ("GET", "/v1//models", 404), ("GET", "/v1/models/", 404), ("GET", "/v1/../healthz", 200)],
)  # fmt: skip
async def test_unknown_paths_and_methods_are_refused_in_openais_shape(
    echo: Echo, method: str, path: str, status: int
) -> None:
    async with aiohttp.ClientSession() as session, session.request(method, echo.listener.url + path) as response:
        assert response.status == status
        if status == 405:
            assert response.headers["Allow"]
        if status != 200 and method != "HEAD":
            assert set((await response.json())["error"]) == {"message", "type", "param", "code"}


async def test_a_body_over_the_limit_is_413(tmp_path: Path) -> None:
    async with echo_gateway(tmp_path, Limits(max_body_bytes=1000)) as echo:
        status, body, _ = await post(echo, {**CHAT, "user": "x" * 2000})
        assert (status, body["error"]["code"]) == (413, "request_too_large")


async def test_a_body_that_does_not_arrive_is_given_up(tmp_path: Path) -> None:
    async with echo_gateway(tmp_path, Limits(read_timeout_s=0.2)) as echo:
        reader, writer = await asyncio.open_connection("127.0.0.1", echo.listener.port)
        writer.write(request_head(echo, length=100) + b"{")
        assert b"408" in await reader.readline()
        writer.close()


async def test_a_running_gateway_refuses_a_revoked_key(echo: Echo) -> None:
    assert (await post(echo, CHAT))[0] == 200
    echo.keys.revoke(echo.keys.all()[0].id)
    status, _, headers = await post(echo, CHAT)
    assert (status, headers["WWW-Authenticate"]) == (401, "Bearer")


async def test_damaged_keys_let_nobody_in_and_show_no_path(echo: Echo) -> None:
    echo.keys.path.write_text("{")
    status, body, _ = await post(echo, CHAT)
    assert status == 500
    assert str(echo.keys.path) not in json.dumps(body)


# --- starting, failing and stopping --------------------------------------------------------------------------------


async def test_while_loading_and_draining_requests_are_told_to_come_back(tmp_path: Path) -> None:
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
        await echo.api.drain(0.5)
        assert (await short)[0] == 200
        status, body, _ = await endless
        assert (status, body["error"]["code"]) == (503, "shutting_down")


async def test_a_failing_engine_is_a_500_without_a_traceback(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with echo_gateway(tmp_path, engine=EchoEngine(fail_after=0)) as echo:
        for stream in (False, True):  # nothing was sent yet, so a stream too has a status
            status, body, _ = await post(echo, {**CHAT, "stream": stream})
            assert (status, body["error"]["type"]) == (500, "server_error")
            reference = body["error"]["message"].rstrip(".").split()[-1]
            assert f"(reference {reference}): the model caught fire" in caplog.text
            assert "fire" not in body["error"]["message"]
        assert 'edgespec_answers_total{finish="error"} 2.0' in exposition(echo)


async def test_a_failure_inside_a_stream_is_an_error_event(tmp_path: Path) -> None:
    async with echo_gateway(tmp_path, engine=EchoEngine(fail_after=2)) as echo:
        client = openai.AsyncOpenAI(base_url=echo.base_url, api_key=echo.key, max_retries=0)
        texts = []
        with pytest.raises(openai.APIError, match="The gateway failed"):
            async for chunk in await client.chat.completions.create(**CHAT, stream=True):
                texts.append(chunk.choices[0].delta.content)
        assert "".join(texts) == ECHOED[:6]
        await client.close()


async def test_a_bug_is_a_500_that_logs_the_place_but_not_the_prompt(
    echo: Echo, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(request: object) -> None:
        raise ValueError(f"cannot handle {request}, which says {'terces'[::-1]}")

    monkeypatch.setattr(echo.engine, "submit", broken)
    status, body, _ = await post(echo, CHAT)
    assert status == 500
    assert "secret" not in json.dumps(body)
    assert "ValueError" in caplog.text
    assert "in broken" in caplog.text
    assert "secret" not in caplog.text


# --- streams: silence, leaving, not reading ------------------------------------------------------------------------


def request_head(echo: Echo, length: int) -> bytes:
    return (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {echo.key}\r\n"
        f"Content-Length: {length}\r\n\r\n"
    ).encode()


def endless(**more: Any) -> bytes:
    return json.dumps({**CHAT, "stream": True, "max_tokens": 4000, "edgespec": {"ignore_eos": True}, **more}).encode()


async def test_silence_is_bridged_by_comments(tmp_path: Path) -> None:
    async with echo_gateway(tmp_path, Limits(keepalive_s=0.05)) as echo:
        echo.engine.gate.clear()
        reader, writer = await asyncio.open_connection("127.0.0.1", echo.listener.port)
        body = json.dumps({**CHAT, "stream": True}).encode()
        writer.write(request_head(echo, len(body)) + body)
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
        assert b"200 OK" in head
        assert b"text/event-stream" in head
        await asyncio.wait_for(reader.readuntil(b": keep-alive\n\n"), 5)
        await asyncio.wait_for(reader.readuntil(b": keep-alive\n\n"), 5)
        echo.engine.gate.set()
        rest = await asyncio.wait_for(reader.readuntil(b"data: [DONE]\n\n"), 5)
        assert rest.count(b"data: {") == 9
        writer.close()


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_ends_its_answer_at_once(tmp_path: Path, stream: bool) -> None:
    async with echo_gateway(tmp_path, engine=EchoEngine(step_s=0.01)) as echo:
        reader, writer = await asyncio.open_connection("127.0.0.1", echo.listener.port)
        body = endless(stream=stream)
        writer.write(request_head(echo, len(body)) + body)
        if stream:
            await reader.readuntil(b"hel")
        await until(lambda: echo.engine.running)
        writer.transport.abort()
        left = time.monotonic()
        await until(lambda: not echo.engine.running)
        assert time.monotonic() - left < 1.0
        assert len(echo.engine.cancelled) == 1
        assert 'edgespec_requests_total{endpoint="/v1/chat/completions",status="499"} 1.0' in exposition(echo)


async def test_a_client_that_leaves_the_queue_is_cancelled_too(echo: Echo) -> None:
    echo.engine.gate.clear()
    _, writer = await asyncio.open_connection("127.0.0.1", echo.listener.port)
    body = endless()
    writer.write(request_head(echo, len(body)) + body)
    await until(lambda: echo.engine.running)
    writer.close()
    await asyncio.sleep(0.1)
    echo.engine.gate.set()
    await until(lambda: not echo.engine.running)
    assert len(echo.engine.cancelled) == 1


async def test_a_client_that_does_not_read_delays_nobody_and_is_given_up(tmp_path: Path) -> None:
    engine = EchoEngine(per_event=1)
    async with echo_gateway(tmp_path, Limits(write_timeout_s=0.5, max_tokens=10**6), engine) as echo:
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.setblocking(False)
        await asyncio.get_running_loop().sock_connect(slow, ("127.0.0.1", echo.listener.port))
        body = endless(max_tokens=10**6)
        await asyncio.get_running_loop().sock_sendall(slow, request_head(echo, len(body)) + body)
        await until(lambda: echo.engine.running)
        began = time.monotonic()
        assert (await post(echo, CHAT))[0] == 200
        assert time.monotonic() - began < 5
        await until(lambda: not echo.engine.running, 30)
        assert len(echo.engine.cancelled) == 1
        await until(lambda: not echo.listener.runner.server.connections, 2)
        slow.close()


def exposition(echo: Echo) -> str:
    return echo.api.metrics.exposition().decode()
