"""Neither the log nor a refusal quotes a faulty request; each request is one log line."""

import asyncio
import io
import json
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from edgespec.shared import logs
from tests.support.canary import KEY, PROMPT, requests, traces_of
from tests.support.echo import CHAT, Echo, EchoEngine, echo_gateway, post
from tests.support.until import until


@pytest.fixture
def out() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    with logs.policy("debug", stream):
        yield stream


@pytest.fixture
async def echo(tmp_path: Path, out: io.StringIO) -> AsyncIterator[Echo]:
    async with echo_gateway(tmp_path) as running:
        asyncio.get_running_loop().set_exception_handler(logs.loop_failed)
        yield running


async def sent(echo: Echo, data: bytes) -> bytes:
    """The whole response to raw bytes."""
    reader, writer = await asyncio.open_connection(echo.listener.host, echo.listener.port)
    writer.write(data)
    try:
        async with asyncio.timeout(5):
            return await reader.read()
    finally:
        writer.close()


@pytest.mark.claim("a-bad-request-leaves-no-trace-of-its-content")
async def test_a_bad_request_leaves_no_trace_of_its_content(echo: Echo, out: io.StringIO) -> None:
    for name, data in requests(echo.key, echo.listener.port).items():
        response = await sent(echo, data)
        assert re.search(rb"^x-request-id: req_[0-9a-f]{24}\r$", response, re.MULTILINE | re.IGNORECASE), name
        code = json.loads(response.rpartition(b"\r\n\r\n")[2])["error"]["code"]
        assert traces_of([KEY, echo.key, PROMPT], out.getvalue()) == [], name
        assert code != "malformed_http" or traces_of([KEY, PROMPT], response.decode()) == [], name
    assert traces_of([KEY, PROMPT], echo.observed.text) == []


async def test_the_log_has_one_line_for_each_completion(echo: Echo, out: io.StringIO) -> None:
    status, body, headers = await post(echo, {**CHAT, "messages": [{"role": "user", "content": PROMPT}]})
    assert (status, body["usage"]["prompt_tokens"]) == (200, body["usage"]["completion_tokens"])
    (line,) = [line for line in out.getvalue().splitlines() if headers["x-request-id"] in line]
    tokens = body["usage"]["prompt_tokens"]
    key_id = echo.key.split("-")[1]
    pattern = (
        rf"INFO +cloud_gateway.api: {headers['x-request-id']} of API key test \({key_id}\): model echo, "
        rf"{tokens} prompt tokens, {tokens} completion tokens, \d+\.\d{{3}} s, "
        r"first token after \d+\.\d{3} s, \d+\.\d tokens/s, drafted by worker, stop$"
    )
    assert re.search(pattern, line)
    assert traces_of([PROMPT, echo.key], out.getvalue()) == []


async def test_a_completion_that_fails_is_a_warning(tmp_path: Path, out: io.StringIO) -> None:
    async with echo_gateway(tmp_path, engine=EchoEngine(fail_after=1)) as echo:
        status, _, headers = await post(echo, CHAT)
    assert status == 500
    assert re.search(
        rf"WARNING cloud_gateway.api: {headers['x-request-id']} of .* error$", out.getvalue(), re.MULTILINE
    )


async def test_a_client_that_leaves_mid_stream_is_logged_without_text(tmp_path: Path, out: io.StringIO) -> None:
    async with echo_gateway(tmp_path, engine=EchoEngine(step_s=0.02)) as echo:
        body = {**CHAT, "messages": [{"role": "user", "content": PROMPT}], "stream": True}
        reader, writer = await asyncio.open_connection(echo.listener.host, echo.listener.port)
        data = json.dumps(body).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {echo.key}\r\n"
        writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        await reader.readuntil(b"data: ")
        writer.transport.abort()
        await until(lambda: "cancelled" in out.getvalue())
    assert re.search(r", [1-9]\d* completion tokens, .* cancelled$", out.getvalue(), re.MULTILINE)
    assert traces_of([PROMPT, echo.key], out.getvalue()) == []


@pytest.mark.claim("refusals-are-logged-at-most-once-a-minute-each")
async def test_refusals_are_logged_at_most_once_a_minute_each(echo: Echo, out: io.StringIO) -> None:
    for _ in range(50):
        assert (await post(echo, CHAT, Authorization=f"Bearer {KEY}"))[0] == 401
        assert (await sent(echo, b"GET / HTTP/1.1\r\nX: \x00\r\n\r\n")).split()[1] == b"400"
    lines = [line for line in out.getvalue().splitlines() if "cloud_gateway" in line]
    assert len([line for line in lines if "401" in line]) <= 1
    assert len([line for line in lines if "400" in line]) <= 1
