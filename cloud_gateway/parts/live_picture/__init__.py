"""The live picture at `/ui`: who drafted each token, the trees of the passes, and the time axis of the links.

`view` turns what a request's machine was given and decided into JSON events, live and of a past request; `pages` keeps
those of each API key for its open pages and serves them and the files of `static`. The page draws events and nothing
else, so a past request looks like the completion did.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cloud_gateway.core.requests.request import RequestBounds
from cloud_gateway.part import Foundation, GatewayPart, PastRequest, Running
from edgespec.shared.part import Settings
from edgespec.shared.settings import Section


class PageSection(Section, frozen=True, kw_only=True):
    """[api]: whether there is a page."""

    ui: bool = False


def conflicts(settings: Settings) -> Iterator[tuple[str, str]]:
    """The sizes and times of the page's events show drafts, which an even stream hides."""
    if settings.of(PageSection).ui and settings.of(RequestBounds).stream == "even":
        yield "api.ui", 'false if `api.stream` is "even": the sizes and times of its events show drafts'


def start_page(gateway: Foundation) -> Running:
    """The page's routes and feeds, if it is on."""
    if not gateway.settings.of(PageSection).ui:
        return Running()

    from cloud_gateway.parts.live_picture.pages import Pages

    parts = [part for part in gateway.settings.parts if isinstance(part, GatewayPart)]
    return Pages(gateway.keys, parts)


def page(request: PastRequest) -> str:
    """The page that plays one past request."""
    from cloud_gateway.parts.live_picture.view import alone, played

    return alone(played(request))


def page_address(status: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """The line of `cloud-gateway status`."""
    if "page" in status:
        yield "page", str(status["page"])


PART = GatewayPart(
    "live_picture",
    {"api": PageSection},
    check=conflicts,
    example=Path(__file__).with_name("gateway.toml"),
    start=start_page,
    page=page,
    own_engine_only=("api.ui",),
    report=page_address,
)
