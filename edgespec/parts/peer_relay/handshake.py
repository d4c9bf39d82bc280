"""The handshake of two paired daemons: each proves its key over this very TLS connection (docs/peers.md).

    caller                                            listener
      | PeerHello: its key, a nonce                     |
      | ----------------------------------------------> |
      |   PeerChallenge: its key, a nonce, a signature  |   proves the listener's key, bound to its TLS key
      | <---------------------------------------------- |
      | Ask: what for, a signature                      |   proves the caller's key; only then is it looked up
      | ----------------------------------------------> |
      |                      Granted, or PeerRefused    |   authentic by TLS, whose key was signed
      | <---------------------------------------------- |

Both sign a transcript of all fields and of the TLS key that they see, each under a domain of its own. So a third
machine between the two changes the transcript, a recorded message has an old nonce, and a signature for another
machine names another key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from edgespec.core.errors import AddressError, LocalProtocolError, RemoteProtocolError
from edgespec.core.protocol.messages import PROTOCOL, Bytes32, Bytes64, Message, Name, Text, decoded
from edgespec.core.protocol.names import key_id
from edgespec.core.protocol.signing import SigningKey, check_public_key, digest, verify

MAX_PEER_BYTES = 2048
"""No message of the handshake is longer; the longest, `Granted` with 16 gateways, has about 600 bytes."""
MAX_CHUNK_BYTES = 16 * 1024
"""Bytes in one chunk of a tunnel: a TLS record."""
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
"""The meaning of each reason; the name of the peer stands before it."""


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


def decode_peer(data: bytes) -> PeerMessage:
    """One message off the wire. Raises RemoteProtocolError (`malformed`), whatever the bytes are."""
    return decoded(_DECODER.decode, data, "a message of a peer")


CHALLENGE = "peer-challenge"
ASK = "peer-ask"
"""Domains (core/protocol/signing.py) of the two signatures."""


class CallerHandshake:
    """The side that dials: `hello`, then `challenged`, then `answered`."""

    def __init__(self, key: SigningKey, peer: bytes, name: str, spki_hash: bytes, nonce: bytes) -> None:
        """`peer`: the paired key (32 bytes) that must be at the other end, and its `name`; `spki_hash`: of the TLS key
        that it shows; `nonce`: 32 fresh random bytes.
        """
        self._key = key
        self._peer = peer
        self._name = name
        self._spki = spki_hash
        self.hello = PeerHello(PROTOCOL, key.public, nonce)

    def challenged(self, message: PeerMessage, what: Purpose, gateway: bytes) -> Ask:
        """The answer to the challenge. Raises RemoteProtocolError (`pin`, `bad-signature`, `unexpected`)."""
        self._raise_refusal(message)
        if not isinstance(message, PeerChallenge):
            raise _unexpected(message)
        if message.key != self._peer:
            raise RemoteProtocolError("pin", f"the key is not that of {self._name}, {key_id(self._peer)}")

        both = peer_transcript(self.hello, message, self._spki)
        verify(self._peer, CHALLENGE, both, message.signature)
        return Ask(what, gateway, self._key.sign(ASK, _asked(both, what, gateway)))

    def answered(self, message: PeerMessage) -> Granted:
        """The grant. Raises PeerUnavailable, RemoteProtocolError (`unexpected`)."""
        self._raise_refusal(message)
        if not isinstance(message, Granted):
            raise _unexpected(message)
        return message

    def _raise_refusal(self, message: PeerMessage) -> None:
        if isinstance(message, PeerRefused):
            raise PeerUnavailable.refused(self._name, message.reason)


class ListenerHandshake:
    """The side that listens: `challenge`, then `asked`."""

    def __init__(
        self, key: SigningKey, spki_hash: bytes, nonce: bytes, refusal: Callable[[bytes], PeerReason | None]
    ) -> None:
        """`spki_hash`: of the TLS key that it serves with; `nonce`: 32 fresh random bytes; `refusal`: why a key is
        refused, None if it is not.
        """
        self._key = key
        self._spki = spki_hash
        self._nonce = nonce
        self._refusal = refusal
        self._digest = b""
        self.peer = b""
        """The caller's key, proven once `asked` has returned."""

    def challenge(self, message: PeerMessage) -> PeerChallenge | PeerRefused:
        """The answer to the hello, the same for every key. Raises RemoteProtocolError (`weak-key`, `unexpected`)."""
        if self._digest or not isinstance(message, PeerHello):
            raise _unexpected(message)
        if message.protocol != PROTOCOL:
            return PeerRefused("version")

        check_public_key(message.key)
        self.peer = message.key
        self._digest = peer_transcript(message, PeerChallenge(self._key.public, self._nonce, bytes(64)), self._spki)
        return PeerChallenge(self._key.public, self._nonce, self._key.sign(CHALLENGE, self._digest))

    def asked(self, message: PeerMessage) -> Ask | PeerRefused:
        """The caller's request, or the refusal of its key.

        Raises RemoteProtocolError (`bad-signature`, `unexpected`); LocalProtocolError before a challenge.
        """
        if not self._digest:
            raise LocalProtocolError("a peer is asked before it was challenged")
        if not isinstance(message, Ask):
            raise _unexpected(message)

        verify(self.peer, ASK, _asked(self._digest, message.what, message.gateway), message.signature)
        refusal = self._refusal(self.peer)
        if refusal is None:
            return message
        return PeerRefused(refusal)


def peer_transcript(hello: PeerHello, challenge: PeerChallenge, spki_hash: bytes) -> bytes:
    """SHA-256 over version, keys, nonces and the listener's TLS key, each preceded by its length."""
    fields = hello.protocol.encode(), hello.key, hello.nonce, challenge.key, challenge.nonce, spki_hash
    return digest("peer transcript", *fields)


def _asked(both: bytes, what: str, gateway: bytes) -> bytes:
    return both + gateway + what.encode()


def _unexpected(message: PeerMessage) -> RemoteProtocolError:
    return RemoteProtocolError("unexpected", f"a {type(message).__name__} that the handshake does not allow here")
