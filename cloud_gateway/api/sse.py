"""Server-sent events to one client (WHATWG HTML, section 9.2), as they are made or in the even form, and several
sources merged in order of arrival.

The even form: frames of one size on a clock, whatever is generated, drafted or accepted. Sizes and times of events show
an observer which drafts were right, and so which of some known prompts was asked (Wei et al., arXiv 2411.01076). Of
frames only the number can be seen, and it is one of few. Times are passed in, in seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from typing import TypeVar

import msgspec
from aiohttp import web

HEADERS: Mapping[str, str] = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # nginx would buffer the events
}


KEEPALIVE_S = 10.0
"""Silence on a stream after which a comment is sent: proxies close a silent connection after 30 to 60 s."""
DONE = b"data: [DONE]\n\n"
"""OpenAI's end mark."""


def event(item: object) -> bytes:
    """One event with a JSON object, and with the name that its type gives."""
    if hasattr(item, "type"):
        name = f"event: {item.type}\n".encode()
    else:
        name = b""
    return name + b"data: " + msgspec.json.encode(item) + b"\n\n"


class ClientGoneError(Exception):
    """The client closed the connection, or does not read what it is sent."""


class EventStream:
    """One open response. What the client has not read is bounded by aiohttp's write buffer (64 KiB) and the kernel's.

    All methods raise ClientGoneError.
    """

    def __init__(self, request: web.Request, write_timeout_s: float) -> None:
        self._request = request
        self._write_timeout_s = write_timeout_s
        self.response = web.StreamResponse(headers=HEADERS)

    @property
    def opened(self) -> bool:
        """Whether the headers, and with them the status, have been sent."""
        return self.response.prepared

    async def open(self) -> None:
        """Sends the headers, once."""
        if self.opened:
            return
        try:
            await self.response.prepare(self._request)
        except ConnectionError as error:
            raise ClientGoneError from error

    def idle_s(self) -> float:
        """Seconds without an event after which `idle` is to be called."""
        return KEEPALIVE_S

    async def idle(self) -> None:
        """A comment: clients ignore it, and proxies keep the connection open."""
        await self._write(b": keep-alive\n\n")

    async def send(self, item: object) -> None:
        await self._write(event(item))

    async def end(self, last: bytes = DONE) -> None:
        """The last event."""
        await self._write(last)

    async def _write(self, data: bytes) -> None:
        try:
            async with asyncio.timeout(self._write_timeout_s):
                await self.response.write(data)
        except TimeoutError as error:
            if self._request.transport is not None:
                self._request.transport.abort()  # close() would wait for the unread bytes
            raise ClientGoneError from error
        except ConnectionError as error:
            raise ClientGoneError from error


class EvenStream(EventStream):
    """The same events in frames of `size` bytes, from `open` to the end."""

    def __init__(self, request: web.Request, write_timeout_s: float, size: int) -> None:
        super().__init__(request, write_timeout_s)
        self._now = asyncio.get_running_loop().time
        self._frames = Frames(size, self._now())

    def idle_s(self) -> float:
        return max(0.0, self._frames.due - self._now())

    async def idle(self) -> None:
        """The frame that is due, of padding if nothing else waits."""
        await asyncio.sleep(self.idle_s())
        await self._write(self._frames.frame(self._now()))

    async def send(self, item: object) -> None:
        self._frames.add(event(item))
        while self._frames.full or not self.idle_s():
            await self.idle()

    async def end(self, last: bytes = DONE) -> None:
        self._frames.end(last)
        while not self._frames.ended:
            await self.idle()


T = TypeVar("T")


async def merged(
    sources: Sequence[AsyncIterator[T]],
    idle_s: Callable[[], float | None] = lambda: None,
) -> AsyncGenerator[tuple[int, T | None] | None, None]:
    """Items of several sources as (index, item); (index, None) where one ends; None after `idle_s()` without an item.

    An exception of one source is raised at once; the other sources are then cancelled.
    """
    waiting = {asyncio.ensure_future(anext(source, None)): index for index, source in enumerate(sources)}
    try:
        while waiting:
            ready, _ = await asyncio.wait(waiting, timeout=idle_s(), return_when=asyncio.FIRST_COMPLETED)
            if not ready:
                yield None
            for task in sorted(ready, key=waiting.__getitem__):
                index = waiting.pop(task)
                piece = task.result()
                if piece is not None:
                    waiting[asyncio.ensure_future(anext(sources[index], None))] = index
                yield index, piece
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


TICK_S = 0.05
"""Between frames. Text waits half of it in the mean, which a reader does not notice."""
FRAME_BYTES = 1024
"""Of one choice: an event without text has about 270 bytes, so this has room for 15 kB of text a second."""


class Frames:
    """Takes events at any time and returns a frame at each place of a clock that started with the stream."""

    def __init__(self, size: int, now: float) -> None:
        """`size` in bytes; it must not depend on prompt or completion."""
        self.size = size
        self._began = now
        self._place = 0
        self._waiting = bytearray()
        self._last: bytes | None = None
        self.ended = False
        """Whether the last event is in the frame that was returned last."""

    @property
    def due(self) -> float:
        """When the next frame is to be sent."""
        return self._began + (self._place + 1) * TICK_S

    @property
    def full(self) -> bool:
        """Whether more waits than the next frame takes."""
        return len(self._waiting) > self.size

    def add(self, event: bytes) -> None:
        """An event that is to be sent as soon as possible; a frame may end within it."""
        self._waiting += event

    def end(self, event: bytes) -> None:
        """The last event, at which clients close the connection: sent at an end of the clock, see `_ends_between`."""
        self._last = event

    def frame(self, now: float) -> bytes:
        """The frame that is due. Places that have passed meanwhile are left out."""
        before = self._place
        self._place = max(self._place + 1, int((now - self._began) / TICK_S))
        last = self._last or b""
        if self._last is None or len(self._waiting) + len(last) > self.size or not _ends_between(before, self._place):
            last = b""
        else:
            self.ended = True

        data = bytes(self._waiting[: self.size])
        del self._waiting[: self.size]
        return data + padding(self.size - len(data) - len(last)) + last


def padding(size: int) -> bytes:
    """An empty line, or a comment, which clients ignore (WHATWG HTML, section 9.2.6)."""
    if size < len(b":\n\n"):
        return b"\n" * size
    return b":" + b" " * (size - len(b":\n\n")) + b"\n\n"


def _ends_between(before: int, place: int) -> bool:
    """Whether a stream may end at a place in (before, place]: 1, 2, 4, 8 and so on.

    Completions of one length take times that differ by less than a factor of two, as more or fewer drafts are right.
    """
    return place.bit_length() > before.bit_length()
