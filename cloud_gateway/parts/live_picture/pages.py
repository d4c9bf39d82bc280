"""The routes of the live picture: its files, the stream of its events, and a past request as the same events.

The events of an API key's completions are made and kept for as long as a page shows them.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from aiohttp import hdrs, web

from cloud_gateway.api.errors import unavailable
from cloud_gateway.api.listener import is_local
from cloud_gateway.api.routes import Route
from cloud_gateway.api.service import KEY, Api, TextCodec
from cloud_gateway.api.sse import KEEPALIVE_S, EventStream
from cloud_gateway.auth import Key, KeyRing
from cloud_gateway.core.requests.generation import Generation
from cloud_gateway.engine.exchange import PolicyStart, Recording
from cloud_gateway.part import GatewayPart, ReadPast, Running, Serving
from cloud_gateway.parts.live_picture.view import STATIC, Spelling, View, played
from edgespec.core.errors import ClientError, EdgespecError, KeyStoreError

KEPT_BYTES = 2 * 2**20
"""Of one key's events, of which a pass takes about 1 KB: some minutes, for a page that connects again."""
KEPT_S = 60.0
"""After the last page of a key was closed."""
MAX_PAGES = 8
"""Open pages of one key."""
CLOCK = time.perf_counter
"""The engine's."""


Workers = Callable[[], Sequence[dict[str, object]]]
"""All paired workers, as `cloud-gateway workers list` shows them."""


class Feed:
    """One key's events. Lives on the event loop, besides `post`."""

    def __init__(self, key: Key, loop: asyncio.AbstractEventLoop) -> None:
        self.key = key
        self._loop = loop
        self.pages = 0
        self.left_at = CLOCK()
        """When the last page was closed."""
        self.next = 1
        self._kept = deque[bytes]()
        self._bytes = 0
        self._news = asyncio.Event()
        self._workers: dict[str, str] = {}

    def post(self, event: dict[str, Any]) -> None:
        """One more event; called on any thread."""
        data = msgspec.json.encode(event)
        self._loop.call_soon_threadsafe(self._add, data)

    def name(self, worker: str, name: str) -> str:
        """The worker's own name for an operator's key; a number for others, to whom it shows whose machine helps."""
        if self.key.operator:
            return name or worker
        return self._workers.setdefault(worker, f"worker {len(self._workers) + 1}")

    def _add(self, data: bytes) -> None:
        self._kept.append(data)
        self._bytes += len(data)
        self.next += 1
        while self._bytes > KEPT_BYTES:
            self._bytes -= len(self._kept.popleft())
        news = self._news
        self._news = asyncio.Event()
        news.set()

    @property
    def first(self) -> int:
        """Number of the oldest event that is kept."""
        return self.next - len(self._kept)

    async def after(self, number: int, timeout_s: float) -> list[tuple[int, bytes]]:
        """The events from this number on, with their numbers; none where none comes in time."""
        if number >= self.next:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._news.wait()
            except TimeoutError:
                return []
        first = self.first
        return [
            (at, data)
            for at, data in enumerate(itertools.islice(self._kept, max(0, number - first), None), max(number, first))
        ]


TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}
CHECK_S = 1.0
"""Between looks at the workers and at whether the key is still valid."""
OPERATOR_SEES = (
    "name",
    "standing",
    "linked",
    "paused",
    "rtt_ms",
    "requests",
    "frames",
    "accepted",
    "quarantine",
    "helps",
)
FOREIGN_HOST = "Use a name of this machine, such as 127.0.0.1; a proxy before the gateway sends that as `Host`."
NOT_OPERATOR = "A trace is played here only for keys of `cloud-gateway keys create --operator`."
NO_READER = "This gateway has no part that reads files of requests."
Handler = Callable[[Api, web.Request], Awaitable[web.StreamResponse]]


class Pages(Running):
    """Serves the page before the models are loaded, and its events from then on.

    Listens to the requests of keys that a page watches (`engine.exchange.Recording`).
    """

    def __init__(self, keys: KeyRing, parts: Sequence[GatewayPart]) -> None:
        self._keys = keys
        self._parts = parts
        self._files = {one.name: one.read_bytes() for one in STATIC.iterdir()}
        self._shown: tuple[TextCodec, Workers] | None = None
        self._feeds: dict[str, Feed] = {}
        self._epoch = secrets.token_hex(4)
        """Before the numbers of events: those of another process are of no use here."""

    def recording(self, serving: Serving) -> Recording:
        """Listens to requests from now on, when the models are loaded."""
        self._shown = serving.text, serving.worker_rows
        return self

    def listener(self, generation: Generation, start: PolicyStart) -> View | None:
        """A request has just come. Without a page of its key nothing is made of it."""
        feed = self._feeds.get(generation.request.key)
        if self._shown is None or feed is None or not (feed.pages or CLOCK() - feed.left_at < KEPT_S):
            return None
        text, _ = self._shown
        spelling = Spelling(lambda token: text.spell(token).decode("utf-8", "replace"), text.detokeniser().feed)
        return View(generation, spelling, feed.name, feed.post, CLOCK())

    def _open(self, key: Key) -> Feed:
        """The key's feed for one page more. Raises ClientError 503 if it has too many."""
        for old in [feed for feed in self._feeds.values() if not feed.pages and CLOCK() - feed.left_at >= KEPT_S]:
            del self._feeds[old.key.id]
        feed = self._feeds.setdefault(key.id, Feed(key, asyncio.get_running_loop()))
        if feed.pages >= MAX_PAGES:
            raise unavailable("This API key has as many pages open as it may; close one.", code="busy")

        feed.pages += 1
        return feed

    def routes(self) -> list[Route]:
        """In addition to those of the API."""
        return [
            Route("GET", "/ui", "public", self._own(self.file), page="page"),
            Route("GET", "/ui/events", "key", self._own(self.events)),
            Route("POST", "/ui/trace", "key", self._own(self.past)),
            Route("GET", "/ui/{file}", "public", self._own(self.file)),
        ]

    def _own(self, handler: Handler) -> Handler:
        """The same for requests of this machine's names, and of no other site's pages."""

        async def checked(api: Api, request: web.Request) -> web.StreamResponse:
            check_origin(request.headers)
            return await handler(api, request)

        return checked

    async def file(self, api: Api, request: web.Request) -> web.StreamResponse:
        """The page, or one of its files."""
        name = request.match_info.get("file", "index.html")
        if name not in self._files:
            raise web.HTTPNotFound
        kind = TYPES["." + name.rpartition(".")[2]]
        return web.Response(body=self._files[name], content_type=kind, charset="utf-8", headers=HEADERS)

    async def past(self, api: Api, request: web.Request) -> web.StreamResponse:
        """A file's request as events. Playing it takes a core for a second, which only an operator may use."""
        if not request[KEY].operator:
            raise ClientError(NOT_OPERATOR, status=403, code="not_operator")

        read = next((part.read_past for part in self._parts if part.read_past is not None), None)
        if read is None:
            raise ClientError(NO_READER, status=404, code="no_reader")

        async with asyncio.timeout(api.limits.read_timeout_s):
            data = await request.read()
        try:
            found = await asyncio.to_thread(self._played, read, data)
        except EdgespecError as error:
            raise ClientError(f"This file cannot be played: {error}", code="bad_trace") from None

        return web.Response(body=found, content_type="application/json", headers=HEADERS)

    def _played(self, read: ReadPast, data: bytes) -> bytes:
        """The events as JSON. Raises EdgespecError."""
        return msgspec.json.encode(played(read(data, self._parts)))

    async def events(self, api: Api, request: web.Request) -> web.StreamResponse:
        """The events of the key's own completions, from `Last-Event-ID` on where they are still kept."""
        if self._shown is None:
            raise unavailable("The gateway is still loading its model; try again shortly.", code="loading")

        feed = self._open(request[KEY])
        stream = Numbered(request, api.limits.write_timeout_s)
        try:
            await self._stream(feed, self._shown[1], stream, request)
        finally:
            feed.pages -= 1
            feed.left_at = CLOCK()

        return stream.response

    async def _stream(self, feed: Feed, workers: Workers, stream: Numbered, request: web.Request) -> None:
        """Until the page is closed, or the key revoked."""
        await stream.open()
        epoch, _, last = request.headers.get("Last-Event-ID", "").partition("-")
        number = feed.first
        kept = epoch == self._epoch and last.isdecimal() and int(last[:15]) + 1 >= feed.first
        if kept:
            number = min(int(last[:15]) + 1, feed.next)
        await stream.send({"kind": "hello", "now": CLOCK(), "operator": feed.key.operator, "kept": kept})
        shown: list[dict[str, Any]] | None = None
        rows: list[dict[str, Any]] = []
        quiet = CLOCK()
        while True:
            found = await feed.after(number, CHECK_S)
            if found:
                number = found[-1][0] + 1
                quiet = CLOCK()
                await stream.numbered(self._epoch, found)
            with suppress(KeyStoreError):  # the list of workers is away: the page keeps the former rows
                if feed.key.operator:
                    rows = [{name: row[name] for name in OPERATOR_SEES} for row in workers()]
                else:
                    rows = []
            if rows != shown:
                shown = rows
                quiet = CLOCK()
                await stream.send({"kind": "workers", "rows": rows})
            if CLOCK() - quiet > KEEPALIVE_S:
                quiet = CLOCK()
                await stream.idle()
            try:
                await asyncio.to_thread(self._keys.check, request.headers.get(hdrs.AUTHORIZATION), booked=False)
            except KeyStoreError:
                continue  # the list of keys is away: no reason to end a stream whose key was valid
            except ClientError as error:
                return await stream.end(b'data: {"kind":"refused","why":' + msgspec.json.encode(str(error)) + b"}\n\n")


class Numbered(EventStream):
    """With the number of the latest event, which a page sends back as `Last-Event-ID`."""

    async def numbered(self, epoch: str, found: list[tuple[int, bytes]]) -> None:
        await self._write(b"".join(b"id: %s-%d\ndata: %s\n\n" % (epoch.encode(), at, data) for at, data in found))


def check_origin(headers: Mapping[str, Any]) -> None:
    """Raises ClientError 403 for a name that is not this machine's (DNS rebinding), and for pages of other sites.

    Browsers send `Sec-Fetch-Site` over TLS and to loopback; it is right behind a proxy that sets `Host`, too.
    """
    host = headers.get(hdrs.HOST, "")
    if not is_local(host):
        raise ClientError(FOREIGN_HOST, status=403, code="foreign_host")

    origin = headers.get(hdrs.ORIGIN)
    site = headers.get("Sec-Fetch-Site")
    if site:
        own = site in ("same-origin", "none")
    else:
        own = origin is None or origin.partition("://")[2] == host
    if not own:
        raise ClientError("Pages of other sites may not use this one.", status=403, code="foreign_origin")
