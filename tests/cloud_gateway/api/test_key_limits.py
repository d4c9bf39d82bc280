"""What one API key can cost the others, over real sockets: sizes, answers, turns, the operator's options."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cloud_gateway.api import Backend, bodies
from cloud_gateway.api.generation import TurnedThread
from cloud_gateway.api.respond import MAX_CANCELLED_LINES
from cloud_gateway.core.requests.request import OPTIONS
from edgespec.core.errors import ClientError
from tests.support.echo import CHAT, MODEL, ByteText, Echo, echo_gateway, post, request_head
from tests.support.until import until
from tools.doubles.limits import request_limits

TEXT = "/v1/completions"


class CountingText(ByteText):
    """Counts what is tokenised; one key's text can be made to wait."""

    def __init__(self) -> None:
        self.encoded: list[str] = []
        self.gate = threading.Event()
        self.gate.set()

    def encode(self, text: str) -> list[int]:
        self.encoded.append(text)
        assert self.gate.wait(10)
        return super().encode(text)


@pytest.fixture
async def counted(tmp_path: Path) -> AsyncIterator[tuple[Echo, CountingText]]:
    async with echo_gateway(tmp_path, request_limits(completions=10)) as echo:
        text = CountingText()
        echo.api.serve(Backend(echo.engine, text, MODEL))
        yield echo, text
        text.gate.set()


TOO_LONG = "x" * (8 * MODEL.context + 1)
OVERSIZE: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": TOO_LONG}]}, "messages"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "é" * (4 * MODEL.context + 1)}]}, "messages"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": ""}] * (MODEL.context + 1)}, "messages"),
    (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x" * 1000}] * 5}]},
        "messages",
    ),
    (TEXT, {"prompt": TOO_LONG}, "prompt"),
    (TEXT, {"prompt": ["x", TOO_LONG]}, "prompt"),
    (TEXT, {"prompt": [1] * MODEL.context}, "prompt"),
    (TEXT, {"prompt": [[1], [1] * MODEL.context]}, "prompt"),
]


@pytest.mark.claim("a-prompt-that-cannot-fit-is-refused-before-it-is-tokenised")
@pytest.mark.parametrize(("path", "body", "param"), OVERSIZE)
async def test_a_prompt_that_cannot_fit_is_refused_before_it_is_tokenised(
    counted: tuple[Echo, CountingText], path: str, body: dict[str, Any], param: str
) -> None:
    echo, text = counted
    status, answer, _ = await post(echo, {"model": "echo", **body}, path)
    assert (status, answer["error"]["code"], answer["error"]["param"]) == (400, "context_length_exceeded", param)
    assert "This model's maximum context length is 512 tokens" in answer["error"]["message"]
    assert text.encoded == [] and echo.engine.requests == []


@pytest.mark.claim("a-prompt-that-cannot-fit-is-refused-before-it-is-tokenised")
@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (TEXT, {"prompt": ["x"] * 9}, "prompt"),
        (TEXT, {"prompt": ["x"] * 60_000}, "prompt"),
        (TEXT, {"prompt": ["x", "y"], "n": 5}, "n"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "n": 9}, "n"),
        (TEXT, {"prompt": "x", "stop": ["x"] * 5000}, "stop"),
    ],
)
async def test_counts_are_checked_before_anything_is_tokenised(
    counted: tuple[Echo, CountingText], path: str, body: dict[str, Any], param: str
) -> None:
    echo, text = counted
    status, answer, _ = await post(echo, {"model": "echo", **body}, path)
    assert (status, answer["error"]["param"]) == (400, param)
    assert text.encoded == []


@pytest.mark.claim("a-body-that-takes-long-to-decode-is-refused-first")
@pytest.mark.parametrize("piece", ["[[1]]", "[1]", '{"a": {}}', '"x"'])
async def test_a_body_that_takes_long_to_decode_is_refused_first(
    counted: tuple[Echo, CountingText], piece: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    echo, text = counted
    decoded: list[int] = []
    monkeypatch.setattr(bodies, "decode", lambda data, *more: decoded.append(len(data)))
    body = b'{"model": "echo", "prompt": [' + ",".join([piece] * 300_000).encode() + b"]}"
    status, answer, _ = await post(echo, body, TEXT)
    assert (status, answer["error"]["code"]) == (400, "request_too_complex")
    assert decoded == [] and text.encoded == []


async def test_commas_and_brackets_of_an_ordinary_prompt_are_no_matter(counted: tuple[Echo, CountingText]) -> None:
    echo, _ = counted
    assert (await post(echo, {"model": "echo", "prompt": "[{,}]," * 80, "user": "[{,}]," * 1000}, TEXT))[0] == 200
    assert (await post(echo, {"model": "echo", "prompt": [[7] * 500] * 8}, TEXT))[0] == 200


@pytest.mark.claim("one-key-cannot-have-more-answers-under-way-than-its-limit")
async def test_one_key_cannot_have_more_answers_under_way_than_its_limit(counted: tuple[Echo, CountingText]) -> None:
    echo, _ = counted
    echo.engine.gate.clear()
    many = [asyncio.create_task(post(echo, {**CHAT, "n": 5})) for _ in range(2)]
    await until(lambda: len(echo.engine.requests) == 10)
    status, answer, headers = await post(echo, CHAT)
    assert (status, answer["error"]["code"], answer["error"]["type"]) == (
        429, "rate_limit_exceeded", "rate_limit_error",
    )  # fmt: skip
    assert int(headers["Retry-After"]) >= 1
    _, other = echo.keys.create("other")
    asked = asyncio.create_task(post(echo, CHAT, Authorization=f"Bearer {other}"))
    await until(lambda: len(echo.engine.requests) == 11)
    echo.engine.gate.set()
    assert [(await task)[0] for task in (*many, asked)] == [200] * 3
    assert (await post(echo, {**CHAT, "n": 8}))[0] == 200, "what has ended counts no more"


async def test_clients_that_leave_give_their_answers_back(counted: tuple[Echo, CountingText]) -> None:
    echo, _ = counted
    echo.engine.gate.clear()
    for _ in range(3):
        leaving = asyncio.create_task(post(echo, {**CHAT, "n": 8}))
        await until(lambda: len(echo.engine.running) == 8)
        leaving.cancel()
        echo.engine.gate.set()
        await until(lambda: not echo.engine.running)
        echo.engine.gate.clear()
    echo.engine.gate.set()
    assert (await post(echo, {**CHAT, "n": 8}))[0] == 200


async def test_requests_given_up_at_once_do_not_fill_the_log(
    counted: tuple[Echo, CountingText], caplog: pytest.LogCaptureFixture
) -> None:
    echo, _ = counted
    caplog.set_level("INFO", "cloud_gateway.api")
    echo.engine.step_s = 0.01
    endless = {**CHAT, "max_tokens": 4000, "edgespec": {"ignore_eos": True}}
    for wanted in range(1, 41):
        leaving = asyncio.create_task(post(echo, endless))
        await until(lambda wanted=wanted: len(echo.engine.requests) == wanted)
        leaving.cancel()
        await until(lambda: not echo.engine.running)
    lines = [record for record in caplog.records if record.getMessage().endswith(", cancelled")]
    assert 0 < len(lines) <= MAX_CANCELLED_LINES
    assert sum(len(record.getMessage()) for record in caplog.records) < 5_000


@pytest.mark.claim("one-key-cannot-have-more-answers-under-way-than-its-limit")
async def test_bodies_of_one_key_that_wait_are_bounded(tmp_path: Path) -> None:
    async with echo_gateway(tmp_path, request_limits(body_bytes=100_000)) as echo:
        _, waiting = await asyncio.open_connection("127.0.0.1", echo.listener.port)
        waiting.write(request_head(echo, length=90_000) + b" " * 80_000)
        await until(lambda: echo.api.visits.body_bytes == 80_000)
        body = json.dumps({**CHAT, "user": "x" * 40_000}).encode()
        assert (await post(echo, body))[0] == 429
        _, other = echo.keys.create("other")
        assert (await post(echo, body, Authorization=f"Bearer {other}"))[0] == 200
        waiting.close()


# --- turns at the encoder -------------------------------------------------------------------------------------------


@pytest.mark.claim("prompts-are-tokenised-in-turns-between-keys")
async def test_prompts_are_tokenised_in_turns_between_keys(counted: tuple[Echo, CountingText]) -> None:
    echo, text = counted
    _, other = echo.keys.create("other")
    text.gate.clear()
    many = [asyncio.create_task(post(echo, {"model": "echo", "prompt": f"many-{n}"}, TEXT)) for n in range(6)]
    await until(lambda: len(echo.api._encoding._turns) == 5)
    one = asyncio.create_task(post(echo, {"model": "echo", "prompt": "one"}, TEXT, Authorization=f"Bearer {other}"))
    await until(lambda: len(echo.api._encoding._turns) == 6)
    text.gate.set()
    assert [(await task)[0] for task in (*many, one)] == [200] * 7
    assert text.encoded.index("one") == 1


async def test_work_that_has_not_begun_is_dropped_with_its_caller_or_at_the_end() -> None:
    thread = TurnedThread("test")
    gate = threading.Event()
    began = []

    def slow() -> None:
        began.append("slow")
        assert gate.wait(10)

    waiting = [asyncio.create_task(thread.run("a", slow)) for _ in range(3)]
    await until(lambda: began)
    waiting[2].cancel()
    gate.set()
    await asyncio.gather(*waiting[:2])
    assert await thread.run("b", lambda: "done") == "done"
    assert began == ["slow", "slow"], "what was cancelled before its turn never ran"
    gate.clear()
    left, second = (asyncio.create_task(thread.run(key, slow)) for key in "ab")
    await until(lambda: len(began) == 3)
    left.cancel()  # its work goes on, and the next begins when it ends
    gate.set()
    await second
    assert len(began) == 4
    gate.clear()
    stopped = [asyncio.create_task(thread.run("a", slow)) for _ in range(2)]
    await until(lambda: len(began) == 5)
    thread.close()
    for late in (stopped[1], thread.run("b", slow)):
        with pytest.raises(ClientError, match="shutting down"):
            await late
    gate.set()
    await stopped[0]
    assert len(began) == 5


# --- the operator's options -----------------------------------------------------------------------------------------

CHOICES: dict[str, Any] = {
    "policy": "wanspec",
    "k": 16,
    "phi": 0,
    "prefer": "latency",
    "verification": "shared-noise",
}


@pytest.mark.claim("what-the-operator-chooses-is-refused-by-name-with-advice")
@pytest.mark.parametrize("name", CHOICES)
async def test_what_the_operator_chooses_is_refused_by_name_with_advice(tmp_path: Path, name: str) -> None:
    async with echo_gateway(tmp_path) as echo:
        status, answer, _ = await post(echo, {**CHAT, "edgespec": {name: CHOICES[name]}})
        assert (status, answer["error"]["param"]) == (400, f"edgespec.{name}")
        assert answer["error"]["code"] == "option_not_allowed"
        assert "leave it out" in answer["error"]["message"] and "operator" in answer["error"]["message"]
        assert (await post(echo, {**CHAT, "edgespec": {"offload": "auto", "ignore_eos": False}}))[0] == 200
        assert (await post(echo, {**CHAT, "edgespec": {name: None}}))[0] == 200
    async with echo_gateway(tmp_path, request_limits(client_options=OPTIONS)) as echo:
        assert (await post(echo, {**CHAT, "edgespec": {name: CHOICES[name]}}))[0] == 200


async def test_a_client_may_always_keep_its_prompt_from_workers(tmp_path: Path) -> None:
    async with echo_gateway(tmp_path, request_limits(client_options=())) as echo:
        assert (await post(echo, {**CHAT, "edgespec": {"offload": "never"}}))[0] == 200
        assert echo.engine.requests[0].speculation.offload == "never"
        assert (await post(echo, {**CHAT, "edgespec": {"offload": "auto"}}))[0] == 400


@pytest.mark.claim("what-the-operator-chooses-is-refused-by-name-with-advice")
async def test_policies_and_k_are_allowed_as_far_as_the_operator_says(tmp_path: Path) -> None:
    options = request_limits(client_options=("policy",))
    async with echo_gateway(tmp_path, options) as echo:
        for requested, status in (
            ({"policy": "plain"}, 200), ({"policy": "wanspec"}, 200), ({"k": 4}, 400), ({}, 200),
        ):  # fmt: skip
            assert (await post(echo, {**CHAT, "edgespec": requested}))[0] == status, requested


@pytest.mark.claim("a-key-with-64-requests-does-not-keep-another-waiting")
async def test_the_last_slot_is_for_another_key_where_there_is_one(tmp_path: Path) -> None:
    async with echo_gateway(tmp_path, request_limits(key_running=3)) as echo:
        await post(echo, CHAT)
        record, _ = echo.keys.create("other")
        await post(echo, CHAT)
        echo.keys.revoke(record.id)
        await post(echo, CHAT)
        assert [request.max_running for request in echo.engine.requests] == [None, 3, None]
        assert len({request.key for request in echo.engine.requests}) == 1
