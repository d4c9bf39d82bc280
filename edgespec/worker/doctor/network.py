"""The checks that go over the network: addresses, the pinned key, the handshake, mDNS."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field

from edgespec.core.errors import EdgespecError, NoGatewayError, RemoteProtocolError
from edgespec.core.protocol.handshake import Pin, WorkerIdentity
from edgespec.shared.address import Address
from edgespec.shared.tls import client_context, trusted
from edgespec.worker.discovery import Browser
from edgespec.worker.doctor.findings import DO, Finding
from edgespec.worker.link import Handler, Link, keep_linked

CONNECT_S = 3.0
"""A TCP connection on a campus takes milliseconds; a packet that is lost twice, 3 s (RFC 6298)."""
MDNS_S = 3.0
"""An announcement answers a query within 120 ms (RFC 6762, section 6), unless packets are lost."""
LINK_S = 15.0
"""Time for the handshake; the gateway's own limit is shorter."""


async def address(where: Address, pin: Pin) -> Finding:
    """Whether the paired gateway is at this address: name, TCP, TLS, the pinned key or its successor."""
    check = f"address {where}"
    try:
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_connection(where.host, where.port, ssl=client_context())
    except TimeoutError:
        do = f"open TCP port {where.port} in the firewalls between this machine and the gateway, or correct the address"
        return Finding(check, "nothing answers, not even with a refusal: a firewall may drop the packets", do, 69)
    except ConnectionRefusedError:
        do = "start the gateway, or correct host and port (`gateway.address` in worker.toml)"
        return Finding(check, "the machine is there, but no program listens on this port", do, 69)
    except socket.gaierror:
        return Finding(check, "this name has no address", "correct the name, or use the machine's IP address", 69)
    except ssl.SSLError:
        return Finding(check, "what listens there does not use TLS 1.3, so it is no gateway", "correct the address", 69)
    except OSError as error:
        do = "check the network cable, the route and the firewall of this machine"
        return Finding(check, f"no connection can be made ({error.strerror or type(error).__name__})", do, 69)
    with contextlib.closing(writer):
        return pinned(check, pin, writer.get_extra_info("ssl_object"))


def pinned(check: str, pin: Pin, connection: ssl.SSLObject) -> Finding:
    """Whether the machine at the other end has the TLS key of the paired gateway."""
    try:
        found = trusted(pin, connection)
    except RemoteProtocolError as error:
        do = "correct the address; if the gateway got new keys, ask its operator for a code and pair again"
        return Finding(check, f"another machine answers than the paired gateway: {error}", do, 77)
    if found == pin:
        return Finding(check, "the paired gateway answers")
    return Finding(check, "the paired gateway answers; it has rotated its identity, which the next link stores")


async def multicast(browser: Browser, needed: bool, wait_s: float = MDNS_S) -> Finding:
    """Whether mDNS shows the wanted gateway; `needed`: no other address is available."""
    await browser.start()
    try:
        await browser.until(lambda: bool(browser.found()), wait_s)
        found, problem = browser.found(), browser.problem
    finally:
        await browser.close()
    if found:
        return Finding("mDNS", f"shows the gateway at {found[0].addresses[0]}")
    says = f"mDNS does not work here ({problem})" if problem else "mDNS works, but nobody announces the paired gateway"
    do = (
        "allow UDP port 5353 and multicast 224.0.0.251 in firewall and wireless network; routers do not pass it on, so "
        "set `gateway.address` in worker.toml to the gateway's address"
    )
    return Finding("mDNS", says, do if needed else "", 69 if needed else 0)


@dataclass(slots=True)
class _Once(Handler):
    """A link's handler that ends the link as soon as it is authenticated."""

    up: asyncio.Event = field(default_factory=asyncio.Event)

    def on_up(self, link: Link) -> None:
        self.up.set()


async def handshake(me: WorkerIdentity, pin: Pin, addresses: Sequence[Address]) -> Finding:
    """One link: pairing, protocol version and vocabulary, as the gateway judges them."""
    handler = _Once()

    async def one_round(wait_s: float) -> None:
        raise NoGatewayError("The gateway ends the link before it is authenticated.")

    async def where() -> Sequence[Address]:
        return addresses

    link = asyncio.ensure_future(keep_linked(where, me, pin, handler, rng=random.Random(), sleep=one_round))
    up = asyncio.ensure_future(handler.up.wait())
    await asyncio.wait([link, up], timeout=LINK_S, return_when=asyncio.FIRST_COMPLETED)
    try:
        if handler.up.is_set():
            return Finding("handshake", "the gateway takes this worker: pairing, version and vocabulary agree")
        if link.done():
            link.result()
        return Finding("handshake", f"no end within {LINK_S:g} s", "see the gateway's log", 69)
    except RemoteProtocolError as error:
        do = (
            "install the same release of edgespec on both machines"
            if error.reason == "version"
            else "see docs/protocol.md"
        )
        return Finding("handshake", str(error), do, error.exit_code)
    except EdgespecError as error:
        return Finding("handshake", str(error), DO.get(error.exit_code, "see the gateway's log"), error.exit_code)
    finally:
        for task in (link, up):
            task.cancel()
        await asyncio.gather(link, up, return_exceptions=True)
