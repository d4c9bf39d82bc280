"""A request chooses classic rejection sampling at the API, over real sockets and so in real time."""

from __future__ import annotations

from pathlib import Path

from cloud_gateway.core.requests.request import OPTIONS
from cloud_gateway.part import choices_of
from cloud_gateway.parts.rejection import PART
from tests.support.echo import CHAT, echo_gateway, post
from tools.doubles.limits import request_limits

CHOICES = choices_of([PART])


async def test_a_request_may_choose_it_only_without_a_seed(tmp_path: Path) -> None:
    chosen = {**CHAT, "edgespec": {"verification": "rejection"}}
    async with echo_gateway(tmp_path, request_limits(client_options=OPTIONS, choices=CHOICES)) as echo:
        status, _, _ = await post(echo, chosen)
        refused, body, _ = await post(echo, {**chosen, "seed": 1})
    assert [request.speculation.verification for request in echo.engine.requests] == ["rejection"]
    assert (status, refused, body["error"]["param"]) == (200, 400, "edgespec.verification")
    assert "leave 'seed' out" in body["error"]["message"]
