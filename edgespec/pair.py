"""The worker's end of pairing: connect to a gateway whose key is not known yet, prove the code, store the gateway."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import ssl
from collections.abc import Sequence

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, WebSocketException

from edgespec.core.errors import NoGatewayError, PairingError, RemoteProtocolError
from edgespec.core.messages import encode
from edgespec.core.pairing import Entropy, Party, Peer, State, WorkerExchange
from edgespec.core.pairing_messages import (
    MAX_PAIRING_BYTES,
    Code,
    PairingFailed,
    PairingMessage,
    Reason,
    Refused,
    decode_pairing,
)
from edgespec.core.signing import SigningKey
from edgespec.shared.address import PAIR_PATH, Address
from edgespec.shared.paired import PairedGateway, PairedGateways
from edgespec.shared.tls import client_context, peer_spki_hash

_quiet = logging.getLogger("edgespec.pair.websockets")
_quiet.setLevel(logging.CRITICAL)  # what it would report is raised here, in one sentence

_NOT_WAITING = (Reason.WINDOW, Reason.EXPIRED, Reason.BURNT)
CONNECT_S = 10.0
EXCHANGE_S = 30.0
"""For the whole exchange; the gateway gives up earlier."""


async def pair(
    addresses: Sequence[Address],
    code: Code,
    key: SigningKey,
    name: str,
    gateways: PairedGateways,
    entropy: Entropy = os.urandom,
) -> PairedGateway:
    """Pairs with the gateway at the first of `addresses` where one waits for a worker, and stores it in `gateways`.

    Addresses may be of several gateways: one with no window open is passed over, which costs no code.
    Raises NoGatewayError (nothing there, or something else), PairingError (wrong, expired or burnt code, no window
    open, versions that do not meet) and KeyStoreError (it cannot be stored).
    """
    unreachable: list[str] = []
    not_waiting: PairingFailed | None = None
    for address in addresses:
        try:
            peer, spki = await _pair_at(address, code, Party(key, name), entropy)
        except NoGatewayError as error:
            unreachable.append(str(error))
        except PairingFailed as failure:
            if failure.reason not in _NOT_WAITING:
                raise
            not_waiting = not_waiting or failure
        else:
            return gateways.add(peer.key, spki, peer.name, str(address), peer.version)
    raise not_waiting or NoGatewayError(" ".join(unreachable) or "No address of a gateway was given.")


async def _pair_at(address: Address, code: Code, me: Party, entropy: Entropy) -> tuple[Peer, bytes]:
    async with await _connect(address) as ws:
        try:
            async with asyncio.timeout(EXCHANGE_S):
                spki = peer_spki_hash(ws.transport.get_extra_info("ssl_object"))
                exchange = WorkerExchange(code, me, spki, entropy)
                await _run(ws, exchange)
                return exchange.peer, spki
        except (ConnectionClosed, TimeoutError):
            raise PairingFailed(Reason.ABANDONED) from None
        except RemoteProtocolError as error:
            await _say(ws, Refused(Reason.PROTOCOL))
            raise PairingFailed(Reason.PROTOCOL, str(error)) from None


async def _run(ws: ClientConnection, exchange: WorkerExchange) -> None:
    await _say(ws, exchange.start())
    while exchange.state is not State.PAIRED:
        message = _decode(await ws.recv())
        try:
            answer = exchange.receive(message)
        except PairingFailed as failure:
            if not isinstance(message, Refused):
                await _say(ws, Refused(failure.reason))
            raise
        if answer is not None:
            await _say(ws, answer)


async def _say(ws: ClientConnection, message: PairingMessage) -> None:
    with contextlib.suppress(ConnectionClosed):  # its reason may wait to be received
        await ws.send(encode(message))


async def _connect(address: Address) -> ClientConnection:
    route = {"proxy": None, "host": address.host, "port": address.port} if address.near else {"proxy": True}
    try:
        return await connect(
            address.url(PAIR_PATH),
            ssl=client_context(),
            compression=None,
            max_size=MAX_PAIRING_BYTES,
            open_timeout=CONNECT_S,
            close_timeout=2.0,
            ping_interval=None,
            logger=_quiet,
            **route,
        )
    except InvalidStatus as error:
        if error.response.status_code == 404:
            raise PairingError(
                f"The gateway at {address} does not pair: it is older than this worker, or pairing is not set up there."
            ) from None
        raise NoGatewayError(f"What answers at {address} refuses with HTTP {error.response.status_code}.") from None
    except TimeoutError:
        raise NoGatewayError(f"No gateway answered at {address} within {CONNECT_S:.0f} s.") from None
    except (ssl.SSLError, InvalidHandshake, WebSocketException):
        raise NoGatewayError(f"What answers at {address} is not an edgespec gateway; check host and port.") from None
    except (OSError, EOFError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error or "hung up"
        raise NoGatewayError(f"No gateway can be reached at {address} ({why}).") from None


def _decode(data: bytes | str) -> PairingMessage:
    with contextlib.suppress(msgspec.DecodeError):
        if isinstance(data, bytes):
            return decode_pairing(data)
    raise RemoteProtocolError("malformed", "the gateway sent what this version does not understand")
