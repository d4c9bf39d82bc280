"""The port for workers: this machine's identity, its list of workers, pairing, and the links once it is open."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace

from cloud_gateway.links.judge import Judge
from cloud_gateway.links.link import TokenizerOffer
from cloud_gateway.links.paired import PairedWorkers
from cloud_gateway.links.server import Links, link_bounds
from cloud_gateway.process.config import LinkSection
from edgespec.core.errors import AddressError, KeyStoreError
from edgespec.core.protocol.handshake import GatewayIdentity
from edgespec.shared.address import Address
from edgespec.shared.fields import machine_name
from edgespec.shared.guards import PLAIN, Guards
from edgespec.shared.nearby import ALONE, GATEWAY, Announced, Announcer, Nearby
from edgespec.shared.pairing_listener import PairingListener
from edgespec.shared.server_keys import ServerKeyStore


class LinkPort:
    """Lives on the event loop; open from `open` until its stack is left."""

    def __init__(self, settings: LinkSection, store: ServerKeyStore, nearby: Nearby = ALONE) -> None:
        """Raises KeyStoreError."""
        self._settings = settings
        self._nearby = nearby
        self.key = store.identity()
        self.tls = store.tls_identity()
        self.name = machine_name(settings.name)
        self.paired = PairedWorkers(store.folder)
        self.pairing = PairingListener(self.key, self.name, self.tls.spki_hash, self.paired.add)
        self.links: Links | None = None
        """None until the port is open."""
        self._announcer: Announcer | None = None
        self.number = 0
        self._quarantined = 0

    def make_links(
        self,
        tokenizer_digest: bytes,
        vocab_size: int,
        connections: int,
        *,
        offer: TokenizerOffer | None = None,
        refused: Callable[[str], None] = lambda reason: None,
        judges: Sequence[Judge] = (),
        quarantined: Callable[[str, str, str], None] = lambda worker, name, why: None,
        guards: Guards = PLAIN,
    ) -> Links:
        """The links for a target with this tokenizer; the rest is as of `Links`."""
        me = GatewayIdentity(self.key, self.name, self.tls.spki_hash, tokenizer_digest)
        if offer is not None:
            me = replace(me, sends_tokenizer=offer.sends, advice=offer.advice)
        return Links(
            me,
            vocab_size,
            self.paired,
            refused,
            pair=self.pairing.handle,
            bounds=link_bounds(connections),
            guards=guards,
            offer=offer,
            judges=judges,
            quarantined=quarantined,
        )

    async def open(self, links: Links, closing: AsyncExitStack) -> None:
        """Listens for workers, and announces that if a part does. Raises AddressError."""
        settings = self._settings
        try:
            self.number = await links.start(settings.host, settings.port, self.tls.context())
        except AddressError as error:
            raise AddressError(f"{error} Change `link.port` in the configuration.") from error
        closing.push_async_callback(links.stop)
        self.links = links

        machine = Announced(self.name, self.key.public, self.tls.spki_hash, settings.host, self.number)
        self._announcer = self._nearby.announcer(GATEWAY, machine)
        if self._announcer is not None:
            self._announcer.start()
            closing.push_async_callback(self._announcer.close)

    @property
    def is_announced(self) -> bool:
        """Whether a worker on the gateway's own network finds it without its address."""
        return self._announcer is not None and self._announcer.works

    def quarantined(self) -> int:
        """How many workers are quarantined; as many as before while their list cannot be read."""
        with contextlib.suppress(KeyStoreError):
            self._quarantined = self.paired.quarantined()
        return self._quarantined

    @property
    def url(self) -> str:
        return f"wss://{Address(reachable_host(self._settings.host), self.number)}"

    @property
    def local(self) -> Address:
        """Its address for a worker on this machine."""
        host = self._settings.host
        return Address({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), self.number)  # noqa: S104


def reachable_host(configured: str) -> str:
    """The configured host, or for a wildcard this machine's address on its route out."""
    if configured not in ("0.0.0.0", "::"):  # noqa: S104 - compared, not bound
        return configured
    return _outgoing_address(socket.AF_INET6 if configured == "::" else socket.AF_INET) or socket.gethostname()


def _outgoing_address(family: socket.AddressFamily) -> str | None:
    """This machine's source address for packets to other networks; nothing is sent."""
    target = "2001:db8::1" if family == socket.AF_INET6 else "192.0.2.1"  # documentation addresses, RFC 3849 and 5737
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((target, 9))
            return str(probe.getsockname()[0])
        except OSError:
            return None
