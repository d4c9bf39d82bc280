"""The guarded port of a worker for its peers, and a peer that is called and floods its caller."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from edgespec.core.errors import RemoteProtocolError
from edgespec.parts.flood_guard import PART
from edgespec.shared.address import Address
from edgespec.shared.guards import Guards
from edgespec.shared.part import guards_of
from tests.support.links import make_certificate

REMOVED = "the part that opens the port is removed"
addresses = pytest.importorskip("edgespec.parts.peer_relay.addresses", reason=REMOVED)
peer_port = pytest.importorskip("edgespec.parts.peer_relay.port", reason=REMOVED)
daemons = pytest.importorskip("tests.parts.peer_relay.daemons", reason=REMOVED)


def guards() -> Guards:
    """Those of a worker."""
    return guards_of([PART])


@pytest.mark.claim("a-machine-that-floods-before-its-proof-is-dropped")
async def test_tiny_tls_records_of_a_peer_that_is_called_are_counted(tmp_path: Path) -> None:
    async def slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\x04\x00")
        for _ in range(1000):  # of 1024: the chunk never ends
            if writer.transport.is_closing():
                return
            writer.write(b"x")
            await asyncio.sleep(0)
        await reader.read()
        writer.close()

    context, _ = make_certificate(tmp_path)
    context.set_alpn_protocols([addresses.PEER_PROTOCOL])
    server = await asyncio.start_server(slowly, "127.0.0.1", 0, ssl=context)
    async with (
        server,
        daemons.peer(tmp_path / "caller", guards=guards()) as caller,
        daemons.peer(tmp_path / "relay") as relay,
    ):
        there = Address("127.0.0.1", server.sockets[0].getsockname()[1])
        with pytest.raises(RemoteProtocolError) as error:
            await caller.caller.presence(caller.meets(relay), there)
    assert re.fullmatch(r"\d+ TLS records, more than are allowed", str(error.value))
