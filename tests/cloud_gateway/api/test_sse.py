"""Streams: silence, clients that leave, clients that do not read."""

import asyncio
import json
import re
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from cloud_gateway.api import sse
from tests.support.echo import CHAT, ECHOED, EchoEngine, echo_gateway, exposition, post, request_head
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
        assert 'edgespec_requests_total{endpoint="/v1/chat/completions",status="499"} 1.0' in exposition(echo)


@pytest.mark.parametrize("form", ["as-made", "even"])
async def test_a_client_that_does_not_read_delays_nobody_and_is_given_up(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "TICK_S", 0.0001)  # so that frames fill the buffers of the kernel, too
    engine, limits = EchoEngine(per_event=1), request_limits(write_timeout_s=0.5, max_tokens_limit=10**6, stream=form)
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
