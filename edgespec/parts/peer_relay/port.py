"""The port for peers: pairing while its window is open, presence, and the relay. Without pairing it does nothing for
anybody.

Peers speak over a TLS stream, and pairing over a WebSocket on the same port, by ALPN. A caller is proven in
time or dropped, and before its proof it competes with others for few places (`BOUNDS`).
The relay connects to the gateways only with which this machine is paired, and at those addresses only at which it has
authenticated them itself or that its admin configured; it forwards bytes of the TLS connection that caller and gateway
make inside, and has no key to read or change them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Sequence

from edgespec.core.errors import AddressError, EdgespecError
from edgespec.core.pairing.messages import MAX_PAIRING_BYTES
from edgespec.core.protocol.inflow import Bucket, InflowLimits
from edgespec.core.protocol.messages import VERSION, encode
from edgespec.core.protocol.names import key_id
from edgespec.core.protocol.signing import SigningKey
from edgespec.parts.peer_relay.addresses import PEER_PATH, PEER_PROTOCOL
from edgespec.parts.peer_relay.handshake import MAX_GATEWAYS, Ask, Granted, ListenerHandshake, PeerReason, PeerRefused
from edgespec.parts.peer_relay.paired import PairedPeers
from edgespec.parts.peer_relay.settings import KIB_PER_S, TUNNELS, PeersSection, RelaySection
from edgespec.parts.peer_relay.tunnel import Channel, forward
from edgespec.shared.acceptor import AdmittedConnection
from edgespec.shared.address import PAIR_PATH, Address
from edgespec.shared.guards import PLAIN, Guards, PortBounds
from edgespec.shared.limited_port import LimitedConnection, LimitedPort
from edgespec.shared.log_text import LimitedLog
from edgespec.shared.pairing_listener import PairingListener
from edgespec.shared.server_keys import ServerIdentity

log = logging.getLogger("edgespec.parts.peer_relay")

HANDSHAKE_S = 5.0
"""Time for TLS, and for the handshake of peers or the upgrade to WebSocket for pairing, each."""
PRESENCE_S = 1.0
"""Time for the caller to hang up once it has its answer."""
DIAL_S = 2.0
"""Time for TCP to the gateway."""
UNPROVEN = 32
"""Connections that have proven no key, TLS handshakes included."""
PRESENT = 32
"""Connections of proven peers beside tunnels; each lasts `PRESENCE_S` at most."""
BOUNDS = PortBounds(UNPROVEN + PRESENT + TUNNELS, UNPROVEN)
BURST_S = 0.25
"""Bytes of this many seconds may go at once: an `Open` with a long prompt is one frame."""

PAIRING_OPTIONS = {"max_size": MAX_PAIRING_BYTES, "max_queue": 8, "ping_interval": None, "close_timeout": 1.0}
"""Options for `websockets`."""

Gateways = Callable[[bytes], Sequence[Address]]
"""Key of a gateway -> trusted addresses of it; none if this machine is not paired with it."""


class PeerPort:
    """Listens for peers. Everything runs on the event loop."""

    def __init__(
        self,
        key: SigningKey,
        name: str,
        tls: ServerIdentity,
        peers: PairedPeers,
        desk: PairingListener,
        gateways: Gateways,
        drafting_for: Callable[[], Sequence[bytes]],
        relay: RelaySection,
        guards: Guards = PLAIN,
    ) -> None:
        """`drafting_for`: keys of the gateways to which this daemon is linked at present."""
        self._key = key
        self._name = name
        self._tls = tls
        self._peers = peers
        self._desk = desk
        self._gateways = gateways
        self._drafting_for = drafting_for
        self._relay = relay
        self._rate = Bucket(KIB_PER_S * 1024, KIB_PER_S * 1024 * BURST_S)
        self._lines = LimitedLog(log)
        self._server = LimitedPort(
            "port for peers", self._pair, [PAIR_PATH, PEER_PATH], BOUNDS, InflowLimits(),
            PAIRING_OPTIONS, HANDSHAKE_S, log, streams=self._begin, guards=guards,
        )  # fmt: skip
        self.tunnels: dict[bytes, Channel] = {}
        """By the caller's key: a new one of the same caller replaces its former one, which it has given up."""
        self.forwarded_bytes = 0
        self._serving: set[asyncio.Task[None]] = set()

    async def start(self, where: PeersSection) -> int:
        """Listens; returns the port. Raises AddressError if it cannot be bound."""
        try:
            context = self._tls.context()
            context.set_alpn_protocols([PEER_PROTOCOL])
            return await self._server.start(where.host, where.port, context)
        except OSError as error:
            raise AddressError(
                f"Cannot listen for peers on {where.host} port {where.port}: {error.strerror or error}."
            ) from None

    async def close(self) -> None:
        await self._server.stop()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _pair(self, ws: LimitedConnection) -> None:
        try:
            if ws.request is not None and ws.request.path == PEER_PATH:
                await ws.send(encode(PeerRefused("version")))  # a daemon that speaks the first version
            else:
                await self._desk.handle(ws)
        finally:
            if ws.flooded is not None:
                self._lines.warning("flood", f"{ws.peer} was dropped: {ws.flooded}")

    def _begin(
        self, connection: AdmittedConnection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.create_task(self._serve(connection, Channel(reader, writer)))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, connection: AdmittedConnection, channel: Channel) -> None:
        try:
            await self._serve_peer(channel, connection)
        except (OSError, EOFError):
            pass  # a peer that stalls or disappears
        except EdgespecError as error:
            self._lines.warning(type(error).__name__, f"peer {connection.address} was dropped: {error}")
        finally:
            await channel.close()

    async def _serve_peer(self, channel: Channel, connection: AdmittedConnection) -> None:
        handshake = ListenerHandshake(self._key, self._tls.spki_hash, os.urandom(32), self._refusal)
        async with asyncio.timeout(HANDSHAKE_S):
            challenge = handshake.challenge(await channel.next_message())
            await channel.send_message(challenge)
            if isinstance(challenge, PeerRefused):
                return
            asked = handshake.asked(await channel.next_message())
        if isinstance(asked, PeerRefused):
            await channel.send_message(asked)
        elif not connection.prove():
            await channel.send_message(PeerRefused("busy"))
        elif asked.what == "presence":
            await channel.send_message(self._granted())
            async with asyncio.timeout(PRESENCE_S):
                await channel.reader.read(1)
        else:
            await self._relayed(channel, handshake.peer, asked)

    def _refusal(self, key: bytes) -> PeerReason | None:
        """Why nothing is done for the machine with this key; None if it is paired, and at no later version."""
        peer = self._peers.get(key)
        if peer is None:
            return "unpaired"
        return "version" if peer.min_version > VERSION else None

    def _granted(self) -> Granted:
        return Granted(self._name, self._relay.offer, list(self._drafting_for())[:MAX_GATEWAYS])

    async def _relayed(self, channel: Channel, caller: bytes, asked: Ask) -> None:
        refusal = self._why_not(caller, asked.gateway)
        if refusal is not None:
            await channel.send_message(PeerRefused(refusal))
            return

        former, self.tunnels[caller] = self.tunnels.get(caller), channel
        if former is not None:
            former.writer.transport.abort()
        try:
            await self._tunnel(channel, caller, asked.gateway)
        finally:
            if self.tunnels.get(caller) is channel:
                del self.tunnels[caller]

    async def _tunnel(self, channel: Channel, caller: bytes, gateway: bytes) -> None:
        dialled = await self._dial(self._gateways(gateway))
        if dialled is None:
            await channel.send_message(PeerRefused("unreachable"))
            return

        who = f"{self._peers.name_of(caller)} ({key_id(caller)})"
        log.info("relaying %s to gateway %s", who, key_id(gateway))
        try:
            await channel.send_message(self._granted())
            await forward(channel, *dialled, self._wait)
        finally:
            dialled[1].close()
            log.info("relaying %s has ended", who)

    def _why_not(self, caller: bytes, gateway: bytes) -> PeerReason | None:
        if not self._relay.offer:
            return "off"
        if not self._gateways(gateway):
            return "gateway"
        if caller not in self.tunnels and len(self.tunnels) >= TUNNELS:
            return "busy"

        return None

    def _wait(self, size: int) -> float:
        self.forwarded_bytes += size
        now = asyncio.get_running_loop().time()
        self._rate.take(size, now)
        return max(0.0, self._rate.free_at - now)

    async def _dial(self, addresses: Sequence[Address]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        for address in addresses:
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(DIAL_S):
                    return await asyncio.open_connection(address.host, address.port)
        return None
