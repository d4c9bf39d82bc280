"""A played trace as one HTML file: the live picture's own page with its style, its modules and the events inside."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from importlib import resources
from typing import Any

import msgspec

STATIC = resources.files(__name__.rpartition(".")[0]) / "static"
MODULES = ("text.js", "model.js", "net.js", "player.js", "runs.js", "strip.js", "tree.js", "app.js")
"""Each after those that it imports. Joined they are one module, so their top-level names are all different."""


def alone(found: Mapping[str, Any]) -> str:
    """The file that shows `view.played`'s events without a gateway and without a network."""
    style, script = _text("style.css"), "\n".join(map(_plain, MODULES))
    events = msgspec.json.encode(found).decode().replace("<", "\\u003c")
    policy = f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; base-uri 'none'"
    head = (
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>{style}</style>\n'
        f'<script type="application/json" id="trace">{events}</script>\n<script type="module">{script}</script>'
    )
    return re.sub(r'<link rel="icon".*</script>', lambda _: head, _text("index.html"), count=1, flags=re.DOTALL)


def _text(name: str) -> str:
    return (STATIC / name).read_text(encoding="utf-8")


def _plain(name: str) -> str:
    """A module's text without what ties it to the other files."""
    text = re.sub(r"^import .*\n", "", _text(name), flags=re.MULTILINE)
    return re.sub(r"^export (?=\w)", "", text, flags=re.MULTILINE)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
