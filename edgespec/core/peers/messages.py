"""The messages between two paired daemons before a tunnel, and why one can refuse (docs/peers.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from edgespec.core.errors import UNDECODABLE, AddressError, RemoteProtocolError
from edgespec.core.protocol.messages import Bytes32, Bytes64, Message, Name, Text

MAX_PEER_BYTES = 2048
"""No message of the handshake is longer; the longest, `Granted` with 16 gateways, has about 600 bytes."""
MAX_CHUNK_BYTES = 16 * 1024
"""Bytes in one message of a tunnel: a TLS record."""
MAX_GATEWAYS = 16
NO_GATEWAY = bytes(32)
"""The gateway of an `Ask` for presence."""

Purpose = Literal["relay", "presence"]
PeerReason = Literal["unpaired", "version", "off", "gateway", "busy", "unreachable"]
SENTENCES: Mapping[PeerReason, str] = {
    "unpaired": "is not paired with this machine any more; pair the two again",
    "version": "speaks another version of the protocol, or a later one was agreed at pairing; update the older one",
    "off": "does not relay; its admin can set `relay.offer`",
    "gateway": "is not paired with this gateway itself, so it does not relay to it",
    "busy": "relays as many machines as it is allowed to",
    "unreachable": "cannot reach the gateway at present",
}
"""What each reason means; the name of the peer stands before it."""


class PeerUnavailable(AddressError):
    """A peer does not do what it was asked for; `reason` is the closed label."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason

    @classmethod
    def refused(cls, peer: str, reason: PeerReason) -> PeerUnavailable:
        """The error for a refusal; `peer` is its name."""
        return cls(reason, f"The peer {peer} {SENTENCES[reason]}.")


class PeerHello(Message, tag="peer-hello", frozen=True):
    """Caller to listener, first message."""

    protocol: Text
    key: Bytes32
    nonce: Bytes32


class PeerChallenge(Message, tag="peer-challenge", frozen=True):
    """Listener to caller: its key and nonce, signed over the transcript."""

    key: Bytes32
    nonce: Bytes32
    signature: Bytes64


class Ask(Message, tag="peer-ask", frozen=True):
    """Caller to listener: what it wants, signed with the transcript; `gateway` is a key, or `NO_GATEWAY`."""

    what: Purpose
    gateway: Bytes32
    signature: Bytes64


class Granted(Message, tag="peer-granted", frozen=True):
    """Listener to caller: the tunnel is open, or for presence who it is and what it does."""

    name: Name
    relays: bool
    """Whether it relays at all."""
    gateways: Annotated[list[Bytes32], Meta(max_length=MAX_GATEWAYS)]
    """Keys of the gateways that it is linked to, and drafts for."""


class PeerRefused(Message, tag="peer-refused", frozen=True):
    """Listener to caller, last message."""

    reason: PeerReason


PeerMessage = PeerHello | PeerChallenge | Ask | Granted | PeerRefused
_DECODER: msgspec.msgpack.Decoder[PeerMessage] = msgspec.msgpack.Decoder(PeerMessage)


def decode_peer(data: bytes | str) -> PeerMessage:
    """One message off the wire. Raises RemoteProtocolError (`malformed`, `oversize`), whatever the bytes are."""
    if isinstance(data, str) or len(data) > MAX_PEER_BYTES:
        raise RemoteProtocolError("oversize", "a message of a peer that is too long, or is text")
    try:
        return _DECODER.decode(data)
    except UNDECODABLE:
        raise RemoteProtocolError("malformed", "a message of a peer that does not decode") from None
