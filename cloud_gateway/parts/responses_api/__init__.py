"""OpenAI's Responses API, without state (docs/responses.md): one route more, whose body becomes a chat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cloud_gateway.part import Foundation, GatewayPart, Running

if TYPE_CHECKING:
    from cloud_gateway.api.routes import Route


class Responding(Running):
    """The route; nothing else runs."""

    def routes(self) -> Sequence[Route]:
        from cloud_gateway.parts.responses_api.endpoint import ROUTE

        return (ROUTE,)


def start(gateway: Foundation) -> Running:
    return Responding()


PART = GatewayPart("responses_api", start=start)
