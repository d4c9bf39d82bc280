"""The page without a gateway, in a real browser: a file is played, Markdown stays harmless, a tree becomes an SVG."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cloud_gateway.parts.live_picture.view import alone, played
from tests.support.browser import Browser, browser
from tests.support.past import past, shipped

pytestmark = pytest.mark.live
MARKDOWN = (
    "# Title\n\nSome **bold** and *slanted* `<b>code</b>`\n\n- one\n- [two](https://example.org/a)\n"
    "- [bad](javascript:alert(1))\n\n<img src=x onerror=alert(2)>\n\n```\n<script>alert(3)</script>\n```\n"
)
DROP = """(text => {
  const data = new DataTransfer();
  data.items.add(new File([text], "one.html"));
  document.dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));
})"""
COPIED = """Object.defineProperty(navigator, "clipboard", { value: {
  writeText: text => (globalThis.copied = text, Promise.resolve()) } }), 0"""


@pytest.fixture
def found() -> dict[str, Any]:
    """The shipped trace as the page plays it."""
    return played(past(shipped("worker-lost")))


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Browser]:
    with browser(tmp_path) as one:
        one.look()
        yield one
        assert one.said == []


def show(page: Browser, folder: Path, found: dict[str, Any]) -> None:
    (folder / "one.html").write_text(alone(found))
    page.open(f"file://{folder}/one.html")
    page.wait("document.querySelectorAll('.run .t').length")


def test_markdown_is_shown_and_its_html_stays_text(page: Browser, found: dict[str, Any], tmp_path: Path) -> None:
    texts = [token for event in found["events"] for token in event.get("tokens", ())]
    for token in texts:
        token["text"] = ""
    texts[0]["text"] = MARKDOWN
    show(page, tmp_path, found)
    page.js("document.querySelector('#formatted').click()")
    page.wait("document.querySelectorAll('.written h3').length")
    assert page.js("[...document.querySelectorAll('.written li')].map(one => one.textContent)") == [
        "one",
        "two",
        "[bad](javascript:alert(1))",
    ]
    assert page.js("[...document.querySelectorAll('.written a')].map(one => one.href)") == ["https://example.org/a"]
    assert page.js("document.querySelector('.written pre').textContent") == "<script>alert(3)</script>"
    assert page.js("document.querySelector('.written p code').textContent") == "<b>code</b>"
    assert page.js("document.querySelectorAll('main img, main script').length") == 0
    assert page.js("getComputedStyle(document.querySelector('.tokens')).display") == "none"
    page.js("document.querySelector('#formatted').click()")
    assert page.js("getComputedStyle(document.querySelector('.tokens')).display") != "none"


def test_the_tree_of_a_pass_is_copied_as_svg(page: Browser, found: dict[str, Any], tmp_path: Path) -> None:
    show(page, tmp_path, found)
    page.js(COPIED)
    page.wait("document.querySelectorAll('#tree .node').length > 1")
    page.js("document.querySelector('#copy').click()")
    drawing = ET.fromstring(page.wait("globalThis.copied"))
    names = [one.tag.partition("}")[2] for one in drawing.iter()]
    assert names.count("text") == page.js("document.querySelectorAll('#tree .node').length")
    assert "style" not in names and "script" not in names
    assert page.js("document.querySelectorAll('#tree .node').length > 1")


def test_a_file_of_a_replay_is_played_without_signing_in(page: Browser, found: dict[str, Any], tmp_path: Path) -> None:
    live = alone(found).replace('id="trace"', 'id="none"')  # the page as a gateway serves it, before it is signed in
    (tmp_path / "live.html").write_text(live)
    page.open(f"file://{tmp_path}/live.html")
    page.wait("!document.querySelector('#sign-in').hidden")
    page.js(f"{DROP}('<p>no trace</p>')")
    page.wait("document.querySelector('#refused').textContent.includes('is not one of')")
    page.js(f"{DROP}({json.dumps(alone(found))})")
    assert page.wait("document.querySelectorAll('.run .t').length") > 10
    page.js("document.querySelector('#close').click()")
    page.wait("!document.querySelector('#sign-in').hidden")
