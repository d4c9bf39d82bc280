"""The page's server without a browser: who may see which events, for how long, and how much of them is kept."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from cloud_gateway.auth import KeyRing
from cloud_gateway.core.policies.estimators import StepCurve
from cloud_gateway.core.policies.settings import PolicySettings
from cloud_gateway.core.requests.events import Listener
from cloud_gateway.core.requests.generation import Generation
from cloud_gateway.engine.exchange import PolicyStart
from cloud_gateway.part import GatewayPart, Serving
from cloud_gateway.parts import all_parts
from cloud_gateway.parts.live_picture import pages
from cloud_gateway.parts.live_picture.pages import HEADERS, KEPT_BYTES, MAX_PAGES, OPERATOR_SEES, Feed, Pages
from tests.parts.live_picture.completions import NAME, completion
from tests.support.echo import MODEL, ByteText, Echo, echo_gateway
from tests.support.past import shipped
from tests.support.until import until

ROW: dict[str, object] = {
    **dict.fromkeys(OPERATOR_SEES),
    "name": NAME,
    "address": "192.0.2.7",
    "id": "f" * 16,
}


class Bytes(ByteText):
    """Tokens of a trace are larger than a byte."""

    def spell(self, token: int) -> bytes:
        return super().spell(token % 256)


@dataclass(frozen=True)
class Site:
    """A gateway with its page, and two API keys, of which one is an operator's."""

    echo: Echo
    pages: Pages
    operator: str
    client: str

    def id_of(self, secret: str) -> str:
        return self.echo.keys.check(f"Bearer {secret}").id

    def complete(self, secret: str) -> None:
        """A completion of this key."""

        def listen(generation: Generation) -> Listener:
            return self.pages.listener(generation, PolicyStart(PolicySettings(), StepCurve({1: 0.01}))) or Listener()

        completion(listen, self.id_of(secret))


@asynccontextmanager
async def served(folder: Path, parts: Sequence[GatewayPart]) -> AsyncIterator[Site]:
    """A gateway whose page knows these parts."""
    made: list[Pages] = []

    def routes(keys: KeyRing) -> Any:
        made.append(Pages(keys, parts))
        return made[0].routes()

    async with echo_gateway(folder, more=routes) as echo:
        made[0].recording(Serving(MODEL, Bytes(), lambda: [ROW]))
        _, operator = echo.keys.create("operator", operator=True)
        yield Site(echo, made[0], operator, echo.key)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with served(tmp_path, ()) as found:
        yield found


class Page:
    """One open stream of events."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response
        self.last_id = ""

    async def event(self) -> dict[str, Any]:
        """The next event. Raises EOFError at the end of the stream."""
        async with asyncio.timeout(20):
            while line := await self.response.content.readline():
                if line.startswith(b"id: "):
                    self.last_id = line[4:].strip().decode()
                if line.startswith(b"data: "):
                    event: dict[str, Any] = json.loads(line[6:])
                    return event
        raise EOFError

    async def until(self, kind: str) -> list[dict[str, Any]]:
        """All events up to the first of this kind."""
        events = [await self.event()]
        while events[-1]["kind"] != kind:
            events.append(await self.event())
        return events


@asynccontextmanager
async def opened(site: Site, secret: str, **headers: str) -> AsyncIterator[Page]:
    headers |= {"Authorization": f"Bearer {secret}"}
    async with aiohttp.ClientSession(headers=headers) as session:
        async with session.get(site.echo.listener.url + "/ui/events") as response:
            assert response.status == 200, await response.text()
            yield Page(response)


async def status_of(site: Site, secret: str, method: str = "GET", path: str = "/ui/events", data: bytes = b"") -> Any:
    """Status and error code of a request that is refused, or status and None."""
    headers = {"Authorization": f"Bearer {secret}"}
    async with aiohttp.ClientSession(headers=headers) as session:
        async with session.request(method, site.echo.listener.url + path, data=data) as response:
            if response.status == 200:
                return 200, None
            return response.status, (await response.json())["error"]["code"]


@pytest.mark.claim("a-key-sees-its-own-completions-on-the-page")
async def test_a_page_shows_the_completions_of_its_own_key_only(site: Site) -> None:
    async with opened(site, site.client) as page, opened(site, site.operator) as other:
        assert [(await one.event())["kind"] for one in (page, other)] == ["hello", "hello"]
        site.complete(site.operator)
        assert (await other.until("end"))[-1]["finish"]
        site.complete(site.client)
        events = await page.until("end")
        assert [event["kind"] for event in events].count("begin") == 1, "one completion, and not the operator's"
        site.complete(site.operator)
        seen = [event["kind"] for event in await other.until("end")]
        assert seen.count("begin") == 1, "and nothing of the client's"


@pytest.mark.claim("a-key-sees-its-own-completions-on-the-page")
async def test_an_event_id_of_another_key_opens_nothing_of_it(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "CHECK_S", 0.05)
    async with opened(site, site.operator) as page:
        await page.event()
        site.complete(site.operator)
        await page.until("end")
        epoch, _, number = page.last_id.partition("-")
        async with opened(site, site.operator, **{"Last-Event-ID": f"{epoch}-1"}) as again:
            assert len(await again.until("end")) == int(number), "its own events come again, but for the first"
        for last, kept in ((f"{epoch}-1", True), (f"{epoch[::-1]}x-1", False), ("-1", False)):
            async with opened(site, site.operator, **{"Last-Event-ID": last}) as again:
                assert (await again.event())["kept"] is kept, "numbers of another process mean nothing here"
        for last in (f"{epoch}-0", f"{epoch}-1", page.last_id, "x-1", "-1", "garbage"):
            async with opened(site, site.client, **{"Last-Event-ID": last}) as other:
                assert [event["kind"] for event in await other.until("workers")] == ["hello", "workers"]


@pytest.mark.claim("a-key-sees-its-own-completions-on-the-page")
async def test_only_an_operator_sees_the_workers_and_what_they_are_called(site: Site) -> None:
    async with opened(site, site.client) as page, opened(site, site.operator) as other:
        assert (await page.event())["operator"] is False
        assert (await other.event())["operator"] is True
        (table,) = [event["rows"] for event in await other.until("workers") if event["kind"] == "workers"]
        assert table == [{name: ROW[name] for name in OPERATOR_SEES}], "neither address nor id"
        assert (await page.until("workers"))[-1]["rows"] == []
        site.complete(site.client)
        site.complete(site.operator)
        for events, shown in ((await page.until("end"), True), (await other.until("end"), False)):
            named = {event["worker"] for event in events if "worker" in event}
            assert named and (named == {"worker 1"}) == shown, named


async def test_a_worker_keeps_its_number_and_another_gets_the_next() -> None:
    client = Feed(key(operator=False), asyncio.get_running_loop())
    assert [client.name(worker, "ada's laptop") for worker in "abab"] == ["worker 1", "worker 2"] * 2
    operator = Feed(key(operator=True), asyncio.get_running_loop())
    assert [operator.name("a", "ada's laptop"), operator.name("b", "")] == ["ada's laptop", "b"]


@pytest.mark.claim("only-an-operator-plays-traces-at-the-gateway")
async def test_only_an_operator_plays_traces_at_the_gateway(tmp_path: Path) -> None:
    parts = [part for part in all_parts() if part.read_past is not None]
    if not parts:
        pytest.skip("the part that reads traces is removed")

    data = shipped("wanspec-20ms").read_bytes()
    async with served(tmp_path, parts) as site:
        assert await status_of(site, site.client, "POST", "/ui/trace", data) == (403, "not_operator")
        assert await status_of(site, site.operator, "POST", "/ui/trace", data) == (200, None)
        assert await status_of(site, site.operator, "POST", "/ui/trace", data[:-1]) == (400, "bad_trace")
        assert await status_of(site, "es-wrong", "POST", "/ui/trace", data) == (401, "invalid_api_key")


async def test_without_a_part_that_reads_requests_a_file_is_refused(site: Site) -> None:
    assert await status_of(site, site.operator, "POST", "/ui/trace", b"x") == (404, "no_reader")


@pytest.mark.claim("the-pages-of-one-key-are-bounded")
async def test_a_key_has_eight_pages_and_a_closed_one_makes_room(site: Site) -> None:
    feeds = site.pages._feeds
    key_id = site.id_of(site.client)
    for _ in range(2):
        async with asyncio.TaskGroup() as group:
            closing = asyncio.Event()
            opening = [group.create_task(held(site, closing)) for _ in range(MAX_PAGES)]
            await until(lambda: key_id in feeds and feeds[key_id].pages == MAX_PAGES)
            assert await status_of(site, site.client) == (503, "busy")
            async with opened(site, site.operator) as other:
                assert (await other.event())["kind"] == "hello", "another key has pages of its own"
            closing.set()
        assert all(task.done() for task in opening)
        await until(lambda: feeds[key_id].pages == 0)


async def held(site: Site, closing: asyncio.Event) -> None:
    """A page that is open until `closing`."""
    async with opened(site, site.client) as page:
        assert (await page.event())["kind"] == "hello"
        await closing.wait()


@pytest.mark.claim("the-pages-of-one-key-are-bounded")
async def test_no_more_than_two_mebibytes_of_events_are_kept() -> None:
    feed = Feed(key(operator=False), asyncio.get_running_loop())
    for _ in range(30):
        feed.post({"text": "x" * 99_990})
    await asyncio.sleep(0)
    kept = await feed.after(0, 0)
    size = sum(len(data) for _, data in kept)
    assert KEPT_BYTES - 100_002 <= size <= KEPT_BYTES
    assert [number for number, _ in kept] == list(range(feed.first, 31)) and feed.first > 1


@pytest.mark.claim("the-pages-of-one-key-are-bounded")
async def test_events_are_made_while_a_page_shows_them_and_a_minute_more(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    key_id = site.id_of(site.client)
    site.complete(site.client)
    assert key_id not in site.pages._feeds, "no page was open"
    async with opened(site, site.client) as page:
        await page.event()
    feed = site.pages._feeds[key_id]
    await until(lambda: feed.pages == 0)
    site.complete(site.client)
    await asyncio.sleep(0)
    made = feed.next
    assert made > 1, "a page that connects again shows it"
    left_at = feed.left_at
    monkeypatch.setattr(pages, "CLOCK", lambda: left_at + pages.KEPT_S)
    site.complete(site.client)
    await asyncio.sleep(0)
    assert feed.next == made
    async with opened(site, site.operator) as page:
        await page.event()
        assert key_id not in site.pages._feeds, "nothing is kept after that minute"


@pytest.mark.claim("a-revoked-key-loses-its-page")
async def test_the_stream_of_a_revoked_key_ends(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "CHECK_S", 0.05)
    async with opened(site, site.client) as page, opened(site, site.operator) as other:
        await page.event()
        site.echo.keys.revoke(site.id_of(site.client))
        refused = (await page.until("refused"))[-1]
        assert "API key" in refused["why"]
        with pytest.raises(EOFError):
            await page.event()
        site.complete(site.operator)
        assert (await other.until("end"))[-1]["finish"]


@pytest.mark.claim("the-page-runs-no-script-but-its-own-files")
@pytest.mark.parametrize("path", ["/ui", "/ui/app.js", "/ui/style.css", "/ui/icon.svg"])
async def test_every_file_of_the_page_has_its_policy(site: Site, path: str) -> None:
    async with aiohttp.ClientSession() as session, session.get(site.echo.listener.url + path) as response:
        assert response.status == 200
        for name, value in HEADERS.items():
            assert response.headers[name] == value
    policy = HEADERS["Content-Security-Policy"]
    assert policy == "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    assert HEADERS["X-Content-Type-Options"] == "nosniff" and HEADERS["Referrer-Policy"] == "no-referrer"


async def test_a_file_that_the_page_does_not_have_is_a_404(site: Site) -> None:
    async with aiohttp.ClientSession() as session:
        for name in ("none.js", "view.py", "..%2fview.py", "__init__.py"):
            async with session.get(f"{site.echo.listener.url}/ui/{name}") as response:
                assert response.status == 404


def key(*, operator: bool) -> Any:
    return pages.Key("0" * 16, "test", 0, "00", "0" * 64, operator=operator)
