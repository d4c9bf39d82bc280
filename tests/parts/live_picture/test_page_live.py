"""The live picture in a real browser, with a real gateway, worker and models."""

from __future__ import annotations

import http.client
import json
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from cloud_gateway.__main__ import main
from cloud_gateway.parts.live_picture.view import alone, played
from edgespec_lab.rig.stage import Rig
from tests.support.browser import Browser, browser
from tests.support.past import past, shipped

pytestmark = pytest.mark.live
HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>\u202e&amp;"
COUNTER = (
    "data:text/html,<p id=n></p><script>const count = n => { document.getElementById('n').textContent = n; "
    "requestAnimationFrame(() => count(n + 1)) }; count(0)</script>"
)
"""A page that only counts its frames: what Chromium manages on this machine."""
FRAMES_S = """new Promise(done => {
  let count = 0;
  const one = (now, from) => now - from < 2000 ? (count += 1, requestAnimationFrame(next => one(next, from)))
    : done(1e3 * count / (now - from));
  requestAnimationFrame(first => one(first, first));
})"""
"""Frames a second, for two seconds."""
RUNNING = "[...edgespecPage.model.runs.values()].filter(run => !run.usage && run.passes.length).length"
CUT = """globalThis.real = fetch; globalThis.cut = new AbortController(); globalThis.fetch = (url, options = {}) =>
  real(url, { ...options, signal: AbortSignal.any([cut.signal, ...(options.signal ? [options.signal] : [])]) }); 0"""
"""Connections of the page end when `cut` is aborted, and no new one is made."""
COMPLETIONS = 3
PAIRS = 5
POINTED_RUN = "document.querySelector('.run .t.on').closest('.run')"
LATEST = "[...edgespecPage.model.runs.values()].at(-1)"


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory, quantised_model: Path, dropped_model: Path) -> Iterator[Rig]:
    options = {
        "api.ui": True,
        "api.max_tokens": 48,
        "target.context": 4096,
        "target.slots": 5,
        "policy.name": "wanspec",
    }
    folder = tmp_path_factory.mktemp("ui")
    target = str(quantised_model)
    draft = str(dropped_model)
    with Rig(folder, target, draft, None, gateway_options=options).linked() as made:
        yield made


@pytest.fixture(scope="module")
def operator(rig: Rig) -> str:
    made: str = rig.gateway_command("keys", "create", "--name", "op", "--operator", "--offload", "--json")["key"]
    return made


@pytest.fixture
def page(rig: Rig, tmp_path: Path) -> Iterator[Browser]:
    with browser(tmp_path) as one:
        one.look()
        one.open(rig.api[:-3] + "/ui")
        yield one
        assert one.said == []


def sign_in(page: Browser, key: str) -> None:
    page.type("#key", key)
    page.wait("document.querySelector('#state').className === 'live'")


def watch(rig: Rig, page: Browser, key: str) -> None:
    page.open(rig.api[:-3] + "/ui")
    sign_in(page, key)


def ended(page: Browser, count: int = 1) -> dict[str, Any]:
    """The latest completion, when so many have ended and it is drawn."""
    page.wait(f"[...edgespecPage.model.runs.values()].filter(run => run.usage).length >= {count}", 120)
    page.wait(f"document.querySelectorAll('.run:last-child .t').length === {LATEST}.tokens")
    found: dict[str, Any] = page.js(
        f"(run => ({{tokens: run.tokens, passes: run.passes.length, off: run.off, sources: [...run.sources.keys()], "
        f"text: document.querySelector('.run:last-child .tokens').textContent, usage: run.usage}}))({LATEST})"
    )
    return found


def asked(rig: Rig, key: str, prompt: str = "Why is the sky blue?", **more: Any) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": prompt}], "temperature": 0, "max_tokens": 40, **more}
    return rig._client(key).complete(body)


def test_a_completion_is_shown_with_the_tree_of_each_token(rig: Rig, page: Browser, tmp_path: Path) -> None:
    page.type("#key", "es-nobody-knows-this-key")
    page.wait("document.querySelector('#refused').textContent.includes('API key')")
    assert page.js("document.querySelector('#picture').hidden")
    page.js("document.querySelector('#key').value = ''")
    sign_in(page, rig.key)
    # The browser's drawing may hold the worker up for a whole completion, so several are asked for and checked.
    accepted_from_worker = 0
    for count in range(1, COMPLETIONS + 1):
        page.type("#prompt", "Why is the sky blue?")
        found = ended(page, count)
        assert found["tokens"] == found["usage"]["completion_tokens"] and found["passes"] == found["usage"]["rounds"]
        assert set(found["sources"]) <= {"worker 1", "the target itself", "local draft"}, "no worker's own name"
        assert "worker 1" in found["sources"] or not found["usage"]["accepted"].get("worker")
        accepted_from_worker += found["usage"]["accepted"].get("worker", 0)
        page.wait(f"document.querySelectorAll('.run:last-child .t').length === {found['tokens']}")
    assert accepted_from_worker > 0
    assert page.js("document.querySelectorAll('.run .t.w0').length") == accepted_from_worker

    page.point(".run .t.w0")
    page.wait("document.querySelectorAll('#tree .node.accepted.w0').length")
    at = page.js("Number(document.querySelector('.run .t.on').dataset.pass)")
    last = page.js(f"Math.max(...[...{POINTED_RUN}.querySelectorAll('.t')].map(token => Number(token.dataset.pass)))")
    page.js(f"{POINTED_RUN}.querySelector('.tokens').focus()")
    key, shown = ("ArrowRight", at + 2) if at < last else ("ArrowLeft", at)
    page.key(key)
    page.wait(f"document.querySelector('#about').textContent.startsWith('Pass {shown} ')")
    assert page.js("document.querySelector('#say').textContent").startswith(f"Pass {shown} "), "a screen reader says it"
    assert page.js("document.querySelector('#workers th').textContent") == "worker 1"
    for name, width, dark in (("light", 1280, False), ("dark", 1280, True), ("phone", 390, True)):
        page.look(width, 1000, dark=dark, phone=width < 500)
        assert page.wait("edgespecPage.frames") and page.js("document.documentElement.scrollWidth <= innerWidth"), name
        page.picture(tmp_path / f"{name}.png")
    assert page.js("performance.getEntries().every(one => one.name.startsWith(location.origin) || !one.transferSize)")


@pytest.mark.claim("a-key-sees-its-own-completions-on-the-page")
def test_a_key_sees_its_own_completions_and_a_lost_stream_goes_on(rig: Rig, page: Browser, operator: str) -> None:
    page.js(CUT)
    sign_in(page, operator)
    asked(rig, rig.key)
    page.js("cut.abort()")
    page.wait("document.querySelector('#state').className === 'lost'")
    text = asked(rig, operator)["choices"][0]["message"]["content"]
    page.js("cut = new AbortController(), 0")
    page.wait("document.querySelector('#state').className === 'live'")
    found = ended(page)
    assert found["text"].strip() == text.strip() and page.js("edgespecPage.model.runs.size") == 1
    assert "demo-worker" in page.js("document.querySelector('#workers').textContent")


@pytest.mark.claim("hostile-text-is-text-on-the-page")
@pytest.mark.claim("pages-of-other-origins-get-nothing-of-the-page")
def test_hostile_text_is_text_and_foreign_pages_get_nothing(rig: Rig, page: Browser, operator: str) -> None:
    sign_in(page, operator)
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "string", "const": HOSTILE}}}
    asked(rig, operator, HOSTILE)
    said = asked(rig, operator, response_format=form, max_tokens=60)["choices"][0]["message"]["content"]
    ended(page, 2)
    assert json.loads(said) == HOSTILE
    page.wait(
        "[...document.querySelectorAll('.tokens')].map(one => one.textContent)"
        ".some(text => text.includes('<img src=x onerror=') && text.includes('⟨U+202E⟩'))"
    )
    assert page.js("document.querySelectorAll('main img, main script').length") == 0
    for headers in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Host": "evil.example"}):
        connection = http.client.HTTPConnection("127.0.0.1", rig.ready["api"]["port"])
        connection.request("GET", "/ui/events", headers={"Authorization": f"Bearer {operator}", **headers})
        response = connection.getresponse()
        assert response.status == 403, headers
        assert "data:" not in response.read().decode()


@contextmanager
def four_running(rig: Rig, key: str) -> Iterator[None]:
    """Four completions, of which none may end before the block does; then they are broken off."""
    ending = Event()
    ended_by_itself = []

    def one(number: int) -> None:
        body = {"messages": [{"role": "user", "content": f"Tell me {number} stories."}], "temperature": 0}
        for _ in rig._client(key).chunks({**body, "max_tokens": 900, "ignore_eos": True}):
            if ending.is_set():
                return
        ended_by_itself.append(number)

    threads = [Thread(target=one, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ending.set()
        for thread in threads:
            thread.join()
    assert not ended_by_itself


def frames(page: Browser) -> tuple[float, float]:
    """Frames a second of the page, and the share of its thread's processor time that its script took."""
    spent = [0.0, 0.0]
    for when in (0, 1):
        rate = page.js(FRAMES_S) if when else 0.0
        found = {one["name"]: one["value"] for one in page.call("Performance.getMetrics")["metrics"]}
        spent[when] = found["ScriptDuration"]
    return rate, (spent[1] - spent[0]) / 2


def test_the_page_draws_as_many_frames_as_a_blank_page(rig: Rig, page: Browser, operator: str) -> None:
    """Medians of PAIRS, since both share two cores with the models and with whatever else runs."""
    page.call("Performance.enable", timeDomain="threadTicks")
    ratios: list[float] = []
    for _ in range(PAIRS):
        watch(rig, page, operator)
        with four_running(rig, operator):
            page.wait(f"{RUNNING} === 4", 120)
            rate, spent = frames(page)
            page.open(COUNTER)
            blank, nothing = frames(page)
        print(f"page: {rate:.1f} frames a second, {spent:.1%} of a core for script; blank: {blank:.1f}, {nothing:.1%}")
        assert 0 < nothing < spent <= 0.24, "4 ms for each of 60 frames, in processor time"
        ratios.append(rate / blank)
    assert statistics.median(ratios) >= 0.9, ratios


def test_a_trace_is_played_by_the_gateway_and_from_one_file(page: Browser, operator: str, tmp_path: Path) -> None:
    sign_in(page, operator)
    node = page.call("DOM.querySelector", nodeId=page.call("DOM.getDocument")["root"]["nodeId"], selector="#file")
    page.call("DOM.setFileInputFiles", files=[str(shipped("worker-lost"))], nodeId=node["nodeId"])
    page.wait("!document.querySelector('#player').hidden")
    whole = page.wait("document.querySelectorAll('.run .t').length")
    page.js("(one => (one.value = 300, one.dispatchEvent(new Event('input'))))(document.querySelector('#scrub'))")
    page.wait(f"(n => 0 < n && n < {whole})(document.querySelectorAll('.run .t').length)")
    assert main(["replay", str(shipped("worker-lost")), "--no-story", "--html", str(tmp_path / "one.html")]) == 0
    page.open(f"file://{tmp_path}/one.html")
    assert page.wait("document.querySelectorAll('.run .t').length") == whole
    page.look(390, 1000, phone=True)
    broken = "[...document.querySelectorAll('.run .t')].filter(one => one.getClientRects().length > 1).length"
    assert page.js(broken) == 0, "a number stays on its line"
    assert (tmp_path / "one.html").stat().st_size < 200_000


@pytest.mark.parametrize("at", [5e15, 1.5e16, 1e18])
def test_a_trace_that_ends_beyond_all_clocks_is_still_drawn(at: float, tmp_path: Path) -> None:
    found = played(past(shipped("worker-lost")))
    found["events"][-1]["at"] = at
    (tmp_path / "late.html").write_text(alone(found))
    with browser(tmp_path) as late:
        late.look()
        late.open(f"file://{tmp_path}/late.html")
        assert late.wait("edgespecPage.frames > 3")


def test_a_revoked_worker_is_shown_as_revoked(rig: Rig, page: Browser, operator: str) -> None:
    sign_in(page, operator)
    (worker,) = rig.gateway_command("workers", "list", "--json")["workers"]
    page.wait("document.querySelectorAll('#workers .is-good').length")
    rig.gateway_command("workers", "revoke", worker["id"], "--json")
    page.wait("document.querySelector('#workers').textContent.includes('revoked')")
    before = page.js("edgespecPage.model.runs.size")  # those of the pages before, which are kept for a minute
    page.type("#prompt", "Why is the sky blue?")
    assert "demo-worker" not in ended(page, before + 1)["sources"]
    page.wait("document.querySelector('#why-off').textContent.includes('No worker drafts')")
