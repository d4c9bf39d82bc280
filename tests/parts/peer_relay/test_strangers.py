"""Who is no peer gets nothing of a daemon's port; what the protocol's name in TLS and the bound on chunks keep out."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from edgespec.parts.peer_relay import tunnel
from edgespec.parts.peer_relay.handshake import PeerRefused, PeerUnavailable
from edgespec.parts.peer_relay.tunnel import Channel
from edgespec.shared.address import Address
from edgespec.shared.tls import client_context
from tests.parts.peer_relay.daemons import GATEWAY, by_hand, calling, echo, relaying, shaken, two
from tests.support.links import make_certificate


@pytest.mark.claim("a-machine-that-is-not-paired-gets-nothing")
async def test_the_port_itself_refuses_a_key_that_is_not_paired(tmp_path: Path) -> None:
    """The refusal that the port gives to each of its handshakes, for a stranger, a peer and one that was forgotten."""
    async with two(tmp_path) as (caller, relay):
        judge = relay.port._refusal
        assert judge(caller.key.public) == "unpaired"
        caller.meets(relay)
        assert judge(caller.key.public) is None
        assert judge(b"x" * 32) == "unpaired", "another key than the paired one"
        relay.peers.forget(caller.key.public)
        assert judge(caller.key.public) == "unpaired"


@pytest.mark.claim("a-machine-that-is-not-paired-gets-nothing")
@pytest.mark.parametrize("former_peer", [False, True])
async def test_a_machine_that_is_not_paired_gets_neither_presence_nor_tunnel(tmp_path: Path, former_peer: bool) -> None:
    """It has paired the relay on its own side only, or was forgotten there."""
    async with two(tmp_path) as (caller, relay), echo() as behind:
        relay.gateways[GATEWAY] = [behind]
        met = caller.meets(relay)
        if former_peer:
            await caller.caller.presence(met, relay.address)
        relay.peers.forget(caller.key.public)

        with pytest.raises(PeerUnavailable) as refused:
            await caller.caller.presence(met, relay.address)
        assert refused.value.reason == "unpaired"
        with pytest.raises(PeerUnavailable) as refused:
            await caller.caller.tunnel(met, relay.address, GATEWAY)
        assert refused.value.reason == "unpaired"
        assert not relay.port.tunnels and not relay.port.forwarded_bytes


@pytest.mark.claim("a-machine-that-is-not-paired-gets-nothing")
async def test_all_that_a_stranger_receives_is_a_challenge_and_a_refusal(tmp_path: Path) -> None:
    """Byte by byte: neither the daemon's name nor its gateways are in it."""
    async with two(tmp_path) as (caller, relay), by_hand(relay) as channel:
        relay.gateways[GATEWAY] = []
        handshake = calling(channel, caller, relay)
        await channel.send_message(handshake.hello)
        challenge = await channel.next_message()
        await channel.send_message(handshake.challenged(challenge, "presence", GATEWAY))
        assert await channel.next_message() == PeerRefused("unpaired")
        async with asyncio.timeout(20):
            assert await channel.reader.read() == b""


async def test_a_machine_that_does_not_agree_on_the_protocol_is_sent_nothing(tmp_path: Path) -> None:
    """One that speaks HTTP, or an earlier version, may take the bytes of a handshake for something else."""
    received = bytearray()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.extend(await reader.read(1))
        writer.close()

    context, _ = make_certificate(tmp_path)
    server = await asyncio.start_server(listen, "127.0.0.1", 0, ssl=context)
    async with server, two(tmp_path) as (caller, relay):
        there = Address("127.0.0.1", server.sockets[0].getsockname()[1])
        with pytest.raises(PeerUnavailable) as refused:
            await caller.caller.presence(caller.meets(relay), there)
    assert refused.value.reason == "version" and received == b""


async def test_a_caller_that_names_no_protocol_gets_no_peers_handshake(tmp_path: Path) -> None:
    async with two(tmp_path) as (caller, relay):
        caller.meets(relay)
        where = relay.address
        streams = await asyncio.open_connection(where.host, where.port, ssl=client_context(), server_hostname="")
        channel = Channel(*streams)
        await channel.send_message(calling(channel, caller, relay).hello)
        async with asyncio.timeout(20):
            answer = await streams[0].read()
        assert not answer or answer.startswith(b"HTTP/1.1 400"), "the port takes it for a request for pairing"
        streams[1].transport.abort()


@pytest.mark.claim("a-stranger-that-floods-is-dropped")
async def test_a_tunnel_reads_a_thousand_chunks_a_second(tmp_path: Path) -> None:
    """Chunks of one byte, which the relay's rate in bytes does not slow down."""
    count = tunnel.CHUNKS_BURST + round(tunnel.CHUNKS_PER_S)
    async with relaying(tmp_path) as (caller, relay):
        caller.meets(relay)
        async with by_hand(relay) as channel:
            await shaken(channel, caller, relay)
            loop = asyncio.get_running_loop()
            began = loop.time()
            channel.writer.write(b"\x00\x01x" * count)
            returned = 0
            async with asyncio.timeout(30):
                while returned < count:
                    returned += len(await channel.receive())
            assert loop.time() - began >= 0.95
    assert tunnel.CHUNKS_PER_S == 1000, "as docs/threats.md promises"
