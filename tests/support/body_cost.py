"""The processor time of a body, for tests of what it costs and whether it holds the event loop.

Times are of the processor and the fastest of some runs, so that other processes do not change them.
"""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from cloud_gateway.api.bodies import SMALL_BYTES, Served
from edgespec.core.errors import ClientError
from tests.support.echo import MODEL, Echo, post
from tests.support.served import PARAMETERS
from tools.doubles.limits import request_limits

CONTEXT = 32_768
SERVED = Served(replace(MODEL, context=CONTEXT), (MODEL.id,), request_limits(parameters=PARAMETERS))
MAX_HELD_S = 0.05
"""The longest step that cannot be divided takes 0.02 s: msgspec decodes 49,000 properties."""
HELLO = [{"role": "user", "content": "x"}]
Body = Callable[[int], dict[str, Any]]
"""The number of a list's items -> the body."""


def names(n: int) -> list[str]:
    return [f"p{i}" for i in range(n)]


def data_of(body: dict[str, Any]) -> bytes:
    return json.dumps({"model": MODEL.id, "max_tokens": 1, **body}).encode()


def seconds(work: Callable[[], object]) -> float:
    """Processor time of one run on this thread, without the garbage collector's."""
    gc.disable()
    began = time.thread_time()
    with suppress(ClientError):  # what is refused costs time, too
        work()
    spent = time.thread_time() - began
    gc.enable()
    return spent


def assert_checked_at_once(body: Body, check: Callable[[dict[str, Any]], object], items: int = 1) -> None:
    """The longest body that is checked on the event loop takes less than 10 ms; it has a multiple of `items`."""
    while len(data_of(body(2 * items))) <= SMALL_BYTES:
        items *= 2
    longest = body(items)
    assert min(seconds(lambda: check(longest)) for _ in range(3)) < 0.01


def assert_in_proportion(short: Callable[[], object], long: Callable[[], object]) -> None:
    """`long` has four times the items of `short`: it takes four times as long if each costs the same, 16 if each looks
    at all others. The bound lies between the two. Runs alternate, since a processor's caches and clock change in time.
    """
    pairs = [(seconds(short), seconds(long)) for _ in range(5)]
    fastest_short = min(short_s for short_s, _ in pairs)
    fastest_long = min(long_s for _, long_s in pairs)
    assert fastest_long < 8 * max(fastest_short, 1e-4)


async def held_s(echo: Echo, path: str, data: bytes) -> float:
    """The longest processor time of the process between two turns of the event loop while it answers this body.

    Counts what runs on the loop, and what runs beside it without giving up the GIL.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", echo.listener.port)
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {echo.key}\r\n"
    writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    answer = asyncio.create_task(reader.read())
    longest = 0.0
    last = time.process_time()
    while not answer.done():
        await asyncio.sleep(0)
        now = time.process_time()
        longest = max(longest, now - last)
        last = now
    writer.close()
    assert (await answer).split()[1] in (b"200", b"400")
    return longest


async def assert_the_loop_is_free(echo: Echo, path: str, body: dict[str, Any]) -> None:
    """The body is answered without holding the event loop of the gateway."""
    data = data_of(body)
    gc.collect()
    gc.freeze()  # the objects of all other tests are not this body's to visit
    try:
        held = [await held_s(echo, path, data) for _ in range(3)]
    finally:
        gc.unfreeze()
    print(f"{path}: {len(data) // 1000} kB, loop held for {', '.join(f'{s * 1e3:.0f}' for s in held)} ms")
    assert min(held) < MAX_HELD_S


async def assert_refused_by_number(echo: Echo, path: str, param: str) -> None:
    """More items than the context has tokens are refused, before they are looked at."""
    status, answer, _ = await post(echo, {"model": "echo", param: HELLO * (MODEL.context + 1)}, path)
    error = answer["error"]
    assert (status, error["code"], error["param"]) == (400, "context_length_exceeded", param)
    assert f"{MODEL.context + 1} items" in error["message"]
