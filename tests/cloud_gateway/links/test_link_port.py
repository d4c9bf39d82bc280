"""The link port under floods of connections, before and during TLS: which are accepted, and at what cost."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import pytest

from edgespec.shared.tls import client_context
from tests.support.links import client, raw, serving, some_tree
from tests.support.sockets import dial
from tests.support.until import until


@pytest.mark.claim("strangers-never-take-the-places-of-proven-connections")
async def test_a_linked_worker_stays_through_a_flood_of_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as gateway, client(gateway) as linked:
        acceptor, came = gateway.links._server._acceptor, list[int]()
        arrived = acceptor._arrived
        monkeypatch.setattr(acceptor, "_arrived", lambda *of: came.append(1) or arrived(*of))
        for wave in (1, 2, 3):
            with ExitStack() as stack:
                for n in range(100):
                    stack.enter_context(dial(gateway.port, f"127.0.1.{n + 1}"))
                await until(lambda: len(came) == 100 * wave)  # noqa: B023
        await linked.send(some_tree())
        await until(lambda: gateway.seen.of("tree"))
        assert not gateway.seen.of("down")


async def test_a_gateway_stops_at_once_though_handshakes_stall(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        async with serving(tmp_path) as gateway:
            stack.enter_context(dial(gateway.port))
            await stack.enter_async_context(raw(gateway))
            _, writer = await asyncio.open_connection("127.0.0.1", gateway.port, ssl=client_context())
            stack.callback(writer.close)
            began = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() - began < 5  # each of the handshakes may take 10 s
