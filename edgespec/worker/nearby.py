"""Pairs with the gateway that shows the code, among all that mDNS announces on this network."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from edgespec.core.errors import NoGatewayError, PairingError
from edgespec.core.pairing.messages import Code
from edgespec.shared.address import Address
from edgespec.worker.discovery import Browser
from edgespec.worker.pair import Pairing, Record

LISTEN_S = 5.0
"""Time for gateways to announce themselves; most do within one second."""
MAX_KEYS = 64
"""Announced keys that are compared with one code: each fits by chance once in 10,000."""


async def pair_nearby(pairing: Pairing[Record], code: Code, browser: Browser, listen_s: float = LISTEN_S) -> Record:
    """Listens until the gateway that shows the code is paired. Announcements of other keys are not dialled.

    Raises NoGatewayError (none announces itself), PairingError and KeyStoreError, as `pair`.
    """

    fits: dict[bytes, bool] = {}

    def fitting() -> Sequence[Address]:
        found = browser.found()
        for one in found:
            if one.tls_hash not in fits and len(fits) < MAX_KEYS:
                fits[one.tls_hash] = code.fits(one.tls_hash)
        addresses = [address for one in found if fits.get(one.tls_hash) for address in one.addresses]
        return [address for address in addresses if not pairing.has_tried(address)]

    loop = asyncio.get_running_loop()
    ends_at = loop.time() + listen_s
    await browser.start()
    try:
        while not pairing.is_answered:
            await browser.until(lambda: bool(fitting()), ends_at - loop.time())
            addresses = fitting()
            if not addresses:
                break
            gateway = await pairing.at(addresses)
            if gateway is not None:
                return gateway
        announced = len(browser.found())
    finally:
        await browser.close()
    if not announced:
        raise NoGatewayError(
            f"No gateway announced itself by mDNS within {listen_s:g} s; give its address: "
            "`edgespec pair ADDRESS CODE`."
        )
    if not pairing.has_dialled:
        raise PairingError(
            f"mDNS shows {announced} gateway{'s' * (announced > 1)} on this network, and not the one that shows this "
            "code, so nothing was sent; check the code, or give the gateway's address."
        )
    return pairing.fail()
