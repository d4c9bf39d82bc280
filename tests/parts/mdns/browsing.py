"""Gateways as a browser of mDNS finds them."""

from __future__ import annotations

from edgespec.parts.mdns.browser import Browser
from edgespec.shared.nearby import Found


async def found_by(browser: Browser, key_hash: str, timeout_s: float) -> list[Found]:
    """The gateways of this key after waiting for at least one; empty when the time is over."""
    await browser.until(lambda: bool(browser.found(key_hash)), timeout_s)
    return browser.found(key_hash)
