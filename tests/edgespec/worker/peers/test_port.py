"""The port for peers over real sockets: pairing, presence, tunnels, and whom it refuses."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from edgespec.core.pairing.messages import PairingFailed, Reason
from edgespec.core.protocol.messages import VERSION
from edgespec.core.protocol.peer_handshake import MAX_CHUNK_BYTES, CallerHandshake, PeerUnavailable, Purpose
from edgespec.shared.address import PEER_PROTOCOL, Address
from edgespec.shared.tls import client_context, peer_spki_hash
from edgespec.worker.config import RelaySection
from edgespec.worker.pair import pair
from edgespec.worker.peers import port as peer_port
from edgespec.worker.peers import tunnel
from edgespec.worker.peers.tunnel import Channel
from tests.support.pairing import Operator
from tests.support.peers import Peer, echo, peer
from tests.support.until import until

GATEWAY = b"g" * 32


@asynccontextmanager
async def two(tmp_path: Path, relay: RelaySection | None = None) -> AsyncIterator[tuple[Peer, Peer]]:
    """A caller and a relay, not paired yet."""
    async with peer(tmp_path / "caller") as one, peer(tmp_path / "relay", relay) as other:
        yield one, other


@asynccontextmanager
async def relaying(tmp_path: Path) -> AsyncIterator[tuple[Peer, Peer]]:
    """A caller, and a relay to a machine that returns what it gets."""
    async with two(tmp_path) as (caller, relay), echo() as behind:
        relay.gateways[GATEWAY] = [behind]
        yield caller, relay


async def exchanged(end: socket.socket, data: bytes) -> bytes:
    loop, got = asyncio.get_running_loop(), b""
    sending = asyncio.create_task(loop.sock_sendall(end, data))
    async with asyncio.timeout(20):
        while len(got) < len(data) and (more := await loop.sock_recv(end, 65536)):
            got += more
    await sending
    return got


# --- pairing ---------------------------------------------------------------------------------------------------------


async def test_two_daemons_pair_by_code(tmp_path: Path) -> None:
    async with two(tmp_path) as (caller, relay):
        person = Operator(relay.desk)
        met = await caller.pair(relay, await person.code())
        await person.done
        assert (met.key, met.name, met.address) == (relay.key.public, "relay", str(relay.address))
        (stored,) = relay.peers.all()
        assert (stored.key, stored.name, stored.address) == (caller.key.public, "caller", "")
        said, host = await caller.caller.presence(met, relay.address)
        assert (said.name, said.relays, said.gateways, host) == ("relay", True, [], "127.0.0.1")


@pytest.mark.claim("wrong-words-burn-the-code")
async def test_a_peers_code_does_not_pair_a_worker_with_a_gateway(tmp_path: Path) -> None:
    """What is proven names its purpose: with the right words, but for a link, the confirmation fails."""
    async with two(tmp_path) as (caller, relay):
        person = Operator(relay.desk)
        with pytest.raises(PairingFailed) as failed:
            await pair([relay.address], await person.code(), caller.key, "caller", caller.peers, purpose="link")
        assert failed.value.reason is Reason.CODE
        assert not relay.peers.all()
        person.done.cancel()


# --- the relay -------------------------------------------------------------------------------------------------------


async def test_a_tunnel_carries_bytes_both_ways_unchanged(tmp_path: Path) -> None:
    async with two(tmp_path) as (caller, relay), echo() as behind:
        relay.gateways[GATEWAY] = [behind]
        end = await caller.caller.tunnel(caller.meets(relay), relay.address, GATEWAY)
        data = os.urandom(200_000)
        assert await exchanged(end, data) == data
        assert relay.port.forwarded_bytes == 2 * len(data)
        assert list(relay.port.tunnels) == [caller.key.public]
        end.close()
        await until(lambda: not relay.port.tunnels)


@pytest.mark.claim("a-relay-says-why-it-refuses")
@pytest.mark.parametrize(
    ("relay", "gateway", "reason"),
    [
        (RelaySection(), GATEWAY, "off"),
        (RelaySection(offer=True), b"x" * 32, "gateway"),
        (RelaySection(offer=True), b"d" * 32, "unreachable"),
    ],
)
async def test_a_relay_says_why_it_refuses(tmp_path: Path, relay: RelaySection, gateway: bytes, reason: str) -> None:
    async with two(tmp_path, relay) as (caller, other), echo() as behind:
        other.gateways |= {GATEWAY: [behind], b"d" * 32: [Address("127.0.0.1", 1)]}
        met = caller.meets(other)
        with pytest.raises(PeerUnavailable) as refused:
            await caller.caller.tunnel(met, other.address, gateway)
        assert refused.value.reason == reason
        assert not other.port.tunnels


@pytest.mark.claim("tunnels-are-limited-and-a-callers-new-one-replaces-its-former")
async def test_tunnels_are_limited_and_a_callers_new_one_replaces_its_former(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tunnel, "SILENT_S", 60.0)
    monkeypatch.setattr(peer_port, "TUNNELS", 1)
    async with two(tmp_path) as (caller, other), peer(tmp_path / "third") as third, echo() as behind:
        other.gateways[GATEWAY] = [behind]
        met, thirds = caller.meets(other), third.meets(other)
        former = await caller.caller.tunnel(met, other.address, GATEWAY)
        with pytest.raises(PeerUnavailable) as refused:
            await third.caller.tunnel(thirds, other.address, GATEWAY)
        assert refused.value.reason == "busy"
        newer = await caller.caller.tunnel(met, other.address, GATEWAY)
        assert await exchanged(newer, b"new") == b"new"
        async with asyncio.timeout(20):
            assert await asyncio.get_running_loop().sock_recv(former, 1) == b""


@pytest.mark.claim("who-was-paired-at-a-later-version-is-refused")
async def test_peers_do_not_fall_back_to_an_earlier_version(tmp_path: Path) -> None:
    async with two(tmp_path) as (caller, relay):
        met = caller.meets(relay)
        await caller.caller.presence(met, relay.address)
        later = caller.peers.add(relay.key.public, b"", "relay", str(relay.address), VERSION + 1)
        relay.peers.add(caller.key.public, b"", "caller", "", VERSION + 1)
        for record, address in ((met, relay.address), (later, Address("127.0.0.1", 1))):  # the second is not dialled
            with pytest.raises(PeerUnavailable) as refused:
                await caller.caller.presence(record, address)
            assert refused.value.reason == "version"


@pytest.mark.claim("a-relay-that-falls-silent-is-left")
async def test_a_relay_that_falls_silent_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sockets stay open, as those of a stopped process, or of a machine that lost its power."""
    async with two(tmp_path) as (caller, relay), echo() as behind:
        relay.gateways[GATEWAY] = [behind]
        end = await caller.caller.tunnel(caller.meets(relay), relay.address, GATEWAY)
        assert await exchanged(end, b"there") == b"there"
        loop = asyncio.get_running_loop()
        for channel in relay.port.tunnels.values():
            channel.writer.transport.pause_reading()
            monkeypatch.setattr(channel, "send", lambda data: asyncio.sleep(3600))
        began = loop.time()
        async with asyncio.timeout(20):
            assert await loop.sock_recv(end, 1) == b""
        assert loop.time() - began >= tunnel.SILENT_S - tunnel.HEARTBEAT_S - 0.1
        assert 3 * tunnel.HEARTBEAT_S < tunnel.SILENT_S < 1, "as docs/protocol.md promises"


async def test_a_process_that_stood_still_keeps_its_tunnel(tmp_path: Path) -> None:
    """A machine under load may not run this process for a second; the silence is then its own."""
    async with two(tmp_path) as (caller, relay), echo() as behind:
        relay.gateways[GATEWAY] = [behind]
        end = await caller.caller.tunnel(caller.meets(relay), relay.address, GATEWAY)
        for seconds in (0.95, 1.65, 0.95):  # at any time since the latest heartbeat
            await asyncio.sleep(1.4 * tunnel.HEARTBEAT_S)
            time.sleep(seconds)  # noqa: ASYNC251  blocks both ends
        assert await exchanged(end, b"there") == b"there"


@pytest.mark.claim("tunnels-are-limited-and-a-callers-new-one-replaces-its-former")
async def test_a_fast_caller_waits_for_the_relays_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_port, "KIB_PER_S", 64)
    async with two(tmp_path) as (caller, relay), echo() as behind:
        relay.gateways[GATEWAY] = [behind]
        end = await caller.caller.tunnel(caller.meets(relay), relay.address, GATEWAY)
        loop = asyncio.get_running_loop()
        began = loop.time()
        await exchanged(end, bytes(40 * 1024))  # 80 KiB both ways: 16 at once, the others at 64 a second
        assert loop.time() - began > 0.8


async def test_a_chunk_that_is_too_long_ends_the_tunnel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tunnel, "SILENT_S", 60.0)
    async with relaying(tmp_path) as (caller, relay):
        caller.meets(relay)
        async with by_hand(relay) as channel:
            await shaken(channel, caller, relay)
            channel.writer.write((MAX_CHUNK_BYTES + 1).to_bytes(2, "big"))
            await until(lambda: not relay.port.tunnels)


async def test_other_paths_are_refused(tmp_path: Path) -> None:
    async with two(tmp_path) as (_, relay):
        with pytest.raises(InvalidStatus, match="404"):
            await connect(relay.address.url("/link"), ssl=client_context(), proxy=None)


@asynccontextmanager
async def by_hand(relay: Peer, host: str = "127.0.0.1") -> AsyncIterator[Channel]:
    context = client_context()
    context.set_alpn_protocols([PEER_PROTOCOL])
    where = relay.address
    streams = await asyncio.open_connection(
        where.host, where.port, ssl=context, server_hostname="", local_addr=(host, 0)
    )
    try:
        yield Channel(*streams)
    finally:
        streams[1].transport.abort()


def calling(channel: Channel, caller: Peer, relay: Peer) -> CallerHandshake:
    spki = peer_spki_hash(channel.writer.get_extra_info("ssl_object"))
    return CallerHandshake(caller.key, relay.key.public, "relay", spki, os.urandom(32))


async def shaken(channel: Channel, caller: Peer, relay: Peer, what: Purpose = "relay") -> None:
    handshake = calling(channel, caller, relay)
    await channel.send_message(handshake.hello)
    await channel.send_message(handshake.challenged(await channel.next_message(), what, GATEWAY))
    handshake.answered(await channel.next_message())
    await until(lambda: relay.port.tunnels or what == "presence")
