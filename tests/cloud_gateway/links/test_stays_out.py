"""Peers that the link port refuses: what they are sent, and that no other link is affected."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed

from edgespec.core.protocol import messages as m
from edgespec.core.protocol.handshake import Standing
from edgespec.core.protocol.names import key_id
from edgespec.core.protocol.session import DEFAULT_TIMERS, Timers, WorkerSession
from edgespec.shared.tls import peer_spki_hash
from tests.support.hostile import HONEST, OTHER, refused_once, serves_on
from tests.support.links import VOCAB, Client, GatewayUnderTest, raw, serving, worker_identity

pytestmark = pytest.mark.usefixtures("nothing_escapes")


@pytest.fixture
def handshake_s() -> float:
    """Tests that wait for it set a shorter one."""
    return DEFAULT_TIMERS.handshake_s


@pytest.fixture
async def gateway(tmp_path: Path, handshake_s: float) -> AsyncIterator[GatewayUnderTest]:
    async with serving(tmp_path, timers=Timers(handshake_s=handshake_s), paired=[HONEST, OTHER]) as serving_gateway:
        yield serving_gateway


async def stays_out(
    gateway: GatewayUnderTest,
    honest: Client,
    caplog: pytest.LogCaptureFixture,
    first: bytes,
    reason: str,
    code: int,
    refused: bool = True,
) -> None:
    async with raw(gateway) as ws:
        await ws.send(first)
        if refused:
            refuse = m.decode_handshake(await ws.recv())
            assert isinstance(refuse, m.Refuse) and refuse.reason == reason
        with pytest.raises(ConnectionClosed) as caught:
            async with asyncio.timeout(20):
                await ws.recv()
        assert caught.value.rcvd is not None and caught.value.rcvd.code == code
    await refused_once(gateway, caplog, reason, "peer 127.0.0.1")
    assert gateway.seen.of("down") == []
    await serves_on(gateway, honest)


def hello(key: bytes = worker_identity().key.public, tokenizer: bytes = b"t" * 32, protocol: str = m.PROTOCOL) -> bytes:
    return m.encode(m.Hello(protocol, key, b"n" * 32, tokenizer, b"m" * 32, VOCAB, 4, "lab-7"))


@pytest.mark.claim("a-wrong-vocabulary")
async def test_a_wrong_vocabulary(gateway: GatewayUnderTest, honest: Client, caplog: pytest.LogCaptureFixture) -> None:
    await stays_out(gateway, honest, caplog, hello(tokenizer=b"\xab" * 32), "tokenizer", 4415)
    assert "ab" * 8 in caplog.text and (b"t" * 8).hex() in caplog.text


@pytest.mark.claim("an-unpaired-key")
@pytest.mark.parametrize(("standing", "code"), [("unpaired", 4401), ("revoked", 4403)])
async def test_an_unpaired_key(
    gateway: GatewayUnderTest, honest: Client, caplog: pytest.LogCaptureFixture, standing: Standing, code: int
) -> None:
    """Only a worker that has proven its key gets, signed, the pairing status of that key."""
    gateway.standing[OTHER.key.public] = standing
    async with raw(gateway) as ws:
        seen_spki = peer_spki_hash(ws.transport.get_extra_info("ssl_object"))
        stranger = Client(ws, WorkerSession(OTHER, gateway.pin, seen_spki, bytes(32), 0.0), OTHER)
        await stranger.flush()
        assert await stranger.receive() == []  # the challenge
        assert await stranger.receive() == [m.Bye(standing)]
        assert await stranger.closed() == code
    await refused_once(gateway, caplog, standing, "peer 127.0.0.1")
    assert key_id(OTHER.key.public) in caplog.text
    await serves_on(gateway, honest)


@pytest.mark.claim("an-unpaired-key")
async def test_another_version(gateway: GatewayUnderTest, honest: Client, caplog: pytest.LogCaptureFixture) -> None:
    await stays_out(gateway, honest, caplog, hello(protocol="edgespec/1"), "version", 4426)


async def test_junk_instead_of_tls(gateway: GatewayUnderTest, honest: Client, caplog: pytest.LogCaptureFixture) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(b"GET / HTTP/1.1\r\n\r\n")
    async with asyncio.timeout(20):
        await reader.read()
    writer.close()
    assert caplog.text == ""
    await serves_on(gateway, honest)
