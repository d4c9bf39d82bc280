"""Streams: silence, clients that leave or do not read, and the even form: what an observer sees of it, and that clients
read the same.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai._streaming import SSEDecoder

from cloud_gateway.api import sse
from cloud_gateway.api.sse import DONE, FRAME_BYTES, TICK_S, Frames, event
from cloud_gateway.core.requests.request import DoneEvent, TokensEvent, Usage
from cloud_gateway.engine.exchange import Stream
from tests.support.echo import CHAT, ECHOED, Echo, EchoEngine, echo_gateway, post, request_head
from tests.support.until import until
from tools.doubles.limits import request_limits


def endless(**more: Any) -> bytes:
    return json.dumps({**CHAT, "stream": True, "max_tokens": 4000, "edgespec": {"ignore_eos": True}, **more}).encode()


async def test_silence_is_bridged_by_comments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "KEEPALIVE_S", 0.05)
    async with echo_gateway(tmp_path) as echo:
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
        assert b"".join(re.findall(rb'"content":"([^"]*)"', rest)) == ECHOED.encode()
        writer.close()


@pytest.mark.parametrize(("stream", "form"), [(True, "as-made"), (True, "even"), (False, "as-made")])
async def test_a_client_that_leaves_ends_its_answer_at_once(tmp_path: Path, stream: bool, form: str) -> None:
    async with echo_gateway(tmp_path, request_limits(stream=form), EchoEngine(step_s=0.01)) as echo:
        reader, writer = await asyncio.open_connection("127.0.0.1", echo.listener.port)
        body = endless(stream=stream)
        writer.write(request_head(echo, len(body)) + body)
        if stream:
            await reader.readuntil(b"hel")
        await until(lambda: echo.engine.running)
        writer.transport.abort()
        await until(lambda: not echo.engine.running, 5)  # of itself it ends after 13 s
        assert len(echo.engine.cancelled) == 1
        assert echo.observed.responses == [("/v1/chat/completions", 499)]


@pytest.mark.parametrize("form", ["as-made", "even"])
async def test_a_client_that_does_not_read_delays_nobody_and_is_given_up(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "TICK_S", 0.0001)  # so that frames fill the buffers of the kernel, too
    engine = EchoEngine(per_event=1)
    limits = request_limits(write_timeout_s=0.5, max_tokens_limit=10**6, stream=form)
    async with echo_gateway(tmp_path, limits, engine) as echo:
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
        await until(lambda: not echo.listener.runner.server.connections, 10)  # of itself it ends after `unread_s`, 20 s
        slow.close()


Arrivals = Sequence[tuple[float, str]]
"""Seconds since the one before, and text."""
arrivals = st.lists(st.tuples(st.floats(0, 0.2), st.text(max_size=150)), max_size=20)


def sent(made: Arrivals, late_s: Sequence[float] = (0.0,)) -> tuple[list[float], list[bytes]]:
    """Times and bytes of the frames of a stream that gets these texts; the driver is late by these times, in turn."""
    stream = Frames(FRAME_BYTES, 0.0)
    now = 0.0
    times = list[float]()
    seen = list[bytes]()

    def tick() -> None:
        times.append(stream.due + late_s[len(times) % len(late_s)])
        seen.append(stream.frame(times[-1]))

    for gap_s, text in made:
        now += gap_s
        while stream.due <= now:
            tick()
        stream.add(event(text))
    stream.end(DONE)
    while not stream.ended:
        tick()
    return times, seen


@pytest.mark.claim("an-even-stream-shows-only-the-number-of-its-frames")
@settings(max_examples=20)
@given(arrivals)
def test_sizes_and_times_of_frames_depend_on_their_number_only(made: Arrivals) -> None:
    times, seen = sent(made)
    assert {len(frame) for frame in seen} == {FRAME_BYTES}
    assert times == pytest.approx([(place + 1) * TICK_S for place in range(len(seen))])
    assert math.log2(len(seen)).is_integer()


@given(arrivals, st.lists(st.floats(0, 4 * TICK_S), min_size=1, max_size=5))
def test_openais_decoder_reads_every_event_once_and_in_order(made: Arrivals, late_s: Sequence[float]) -> None:
    _, seen = sent(made, late_s)
    assert {len(frame) for frame in seen} == {FRAME_BYTES}
    read = [one.data for one in SSEDecoder().iter_bytes(iter(seen))]
    assert read == [event(text)[len("data: ") : -2].decode() for _, text in made] + ["[DONE]"]
    assert seen[-1].endswith(DONE), "clients close the connection when they have read it"


@given(arrivals)
def test_text_waits_for_one_frame_where_there_is_room(made: Arrivals) -> None:
    now = 0.0
    due = dict[str, float]()
    for number, (gap_s, _) in enumerate(made):
        now += gap_s
        due[f"<{number}>"] = now
    few = [(gap_s, f"<{number}>") for number, (gap_s, _) in enumerate(made)]
    times, seen = sent(few)
    for mark, made_at in due.items():
        came = next(time for time, frame in zip(times, seen) if mark.encode() in frame)
        assert came - made_at <= TICK_S + 1e-9


async def observed(echo: Echo, **changes: object) -> tuple[list[int], str]:
    """Sizes of the HTTP chunks of a streamed completion, by which TLS makes its records, and its text."""
    sizes = list[int]()
    size = 0
    body = b""
    asked = {**CHAT, "stream": True, "stream_options": {"include_usage": True}, **changes}
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {echo.key}"}) as session:
        async with session.post(f"{echo.base_url}/chat/completions", json=asked) as got:
            async for data, whole in got.content.iter_chunks():
                size = size + len(data)
                body = body + data
                if whole:
                    sizes.append(size)
                    size = 0
    read = [json.loads(one.data) for one in SSEDecoder().iter_bytes(iter([body])) if one.data != "[DONE]"]
    return sizes, "".join(one["choices"][0]["delta"].get("content") or "" for one in read if one["choices"])


@pytest.mark.claim("an-even-stream-shows-only-the-number-of-its-frames")
@pytest.mark.parametrize("form", ["as-made", "even"])
async def test_chunks_of_an_even_stream_have_one_size(tmp_path: Path, form: str) -> None:
    async with echo_gateway(tmp_path, request_limits(stream=form), EchoEngine(step_s=0.02)) as echo:
        sizes, text = await observed(echo)
    assert text == ECHOED
    assert (set(sizes) == {FRAME_BYTES}) == (form == "even")


@pytest.mark.claim("an-even-stream-shows-only-the-number-of-its-frames")
async def test_frames_go_on_while_the_engine_ends_a_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "TICK_S", 0.01)
    async with echo_gateway(tmp_path, request_limits(stream="even"), EchoEngine(step_s=0.3, per_event=9)) as echo:
        sizes, text = await observed(echo, stop="hel")
    assert text == "user: "
    assert len(sizes) > 40  # 30 before the text, 30 until the usage


@pytest.mark.parametrize("form", ["as-made", "even"])
@pytest.mark.parametrize("after", [0, 2])
async def test_a_stream_that_fails_ends_with_the_error(tmp_path: Path, form: str, after: int) -> None:
    texts = list[str | None]()
    async with echo_gateway(tmp_path, request_limits(stream=form), EchoEngine(fail_after=after)) as echo:
        async with openai.AsyncOpenAI(base_url=echo.base_url, api_key=echo.key, max_retries=0) as client:
            with pytest.raises(openai.APIError, match="The gateway failed.*reference"):
                async for chunk in await client.chat.completions.create(**CHAT, stream=True):
                    texts.append(chunk.choices[0].delta.content)
    assert "".join(text or "" for text in texts) == ECHOED[: 3 * after]


async def test_rounds_that_wait_for_the_client_are_one_event() -> None:
    stream = Stream(lambda: None)
    for token in range(3):
        stream.push(TokensEvent([token], [f"row {token}"]))
    reading = aiter(stream)
    assert await anext(reading) == TokensEvent([0, 1, 2], ["row 0", "row 1", "row 2"])
    done = DoneEvent("length", Usage())
    for last in (TokensEvent([3]), done):
        stream.push(last)
    assert [found async for found in reading] == [TokensEvent([3]), done]
