"""The port for peers over real sockets: pairing, presence, tunnels, whom it refuses, and floods of both ends."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import cast

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.protocol import SERVER

from edgespec.core.errors import RemoteProtocolError
from edgespec.core.pairing.exchange import Party
from edgespec.core.pairing.messages import PairingFailed, Reason
from edgespec.core.protocol.inflow import InflowLimits
from edgespec.core.protocol.messages import VERSION
from edgespec.parts.peer_relay import port as peer_port
from edgespec.parts.peer_relay import tunnel
from edgespec.parts.peer_relay.addresses import PEER_PROTOCOL
from edgespec.parts.peer_relay.handshake import MAX_CHUNK_BYTES, PeerUnavailable
from edgespec.parts.peer_relay.settings import RelaySection
from edgespec.shared.address import PAIR_PATH, Address
from edgespec.shared.tls import client_context
from edgespec.worker.pair import pair
from tests.parts.peer_relay.daemons import GATEWAY, by_hand, echo, exchanged, peer, relaying, shaken, two
from tests.support.floods import closed, count_frames, frame, pour
from tests.support.links import make_certificate
from tests.support.pairing import Operator
from tests.support.sockets import dial
from tests.support.until import until

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
            await pair(
                await person.code(), Party(caller.key, "caller", purpose="link"), caller.peers.add, [relay.address]
            )
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
        met = caller.meets(other)
        thirds = third.meets(other)
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
            cast(asyncio.Transport, channel.writer.transport).pause_reading()
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
        for seconds in (0.95, 1.65):  # before and after the limit
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


@pytest.mark.claim("half-open-connections-of-one-address-keep-no-peer-out")
async def test_half_open_connections_keep_no_peer_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Half of them begin a TLS handshake, the others send nothing; none hangs up."""
    monkeypatch.setattr(peer_port, "HANDSHAKE_S", 3.0)
    async with relaying(tmp_path) as (caller, relay), AsyncExitStack() as stack:
        acceptor = relay.port._server._acceptor
        half_open = [stack.enter_context(dial(relay.address.port, "127.0.0.2")) for _ in range(2 * peer_port.UNPROVEN)]
        for sock in half_open[::2]:
            sock.sendall(b"\x16\x03\x01\x02\x00")  # header of a record of 512 bytes
        end = await caller.caller.tunnel(caller.meets(relay), relay.address, GATEWAY)
        assert await exchanged(end, b"there") == b"there"
        assert len(acceptor.unproven) == peer_port.UNPROVEN - 1 and len(acceptor.proven) == 1
        assert [r.getMessage().split(": ")[-1] for r in caplog.records if "refused" in r.getMessage()] == [
            "a connection from 127.0.0.2 that had proven no key was dropped for a newer one (busy)",
        ]
        await until(lambda: not acceptor.unproven)
        assert await exchanged(end, b"still") == b"still"


@pytest.mark.claim("a-stranger-that-floods-is-dropped")
async def test_a_stranger_that_floods_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    processed = count_frames(monkeypatch)
    async with two(tmp_path) as (_, relay):
        async with connect(relay.address.url(PAIR_PATH), ssl=client_context(), proxy=None, compression=None) as ws:
            await pour(ws, frame(9))
            assert await closed(ws) in (4429, 1006)
        assert processed[SERVER] <= InflowLimits().unproven_frames
        await until(lambda: [r for r in caplog.records if "before it has proven a key" in r.getMessage()])


@pytest.mark.claim("a-proven-peer-that-does-not-hang-up-is-dropped")
async def test_a_proven_peer_that_does_not_hang_up_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_port, "PRESENCE_S", 0.1)
    async with two(tmp_path) as (caller, relay):
        caller.meets(relay)
        async with by_hand(relay) as channel:
            await shaken(channel, caller, relay, "presence")
            async with asyncio.timeout(20):
                assert await channel.reader.read() == b""


async def presence_at(tmp_path: Path, answer: object) -> Exception:
    """Calls a machine that accepts and then floods; returns the error."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await answer(writer)  # type: ignore[operator]
        await reader.read()
        writer.close()

    context, _ = make_certificate(tmp_path)
    context.set_alpn_protocols([PEER_PROTOCOL])
    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=context)
    async with server, peer(tmp_path / "caller") as caller, peer(tmp_path / "relay") as relay:
        there = Address("127.0.0.1", server.sockets[0].getsockname()[1])
        with pytest.raises((RemoteProtocolError, PeerUnavailable)) as error:
            await caller.caller.presence(caller.meets(relay), there)
    return error.value


@pytest.mark.claim("a-machine-that-floods-before-its-proof-is-dropped")
async def test_a_chunk_longer_than_a_handshakes_is_not_read(tmp_path: Path) -> None:
    async def long(writer: asyncio.StreamWriter) -> None:
        writer.write(b"\x40\x00" + bytes(1 << 14))

    error = await presence_at(tmp_path, long)
    assert isinstance(error, RemoteProtocolError) and error.reason == "oversize"
