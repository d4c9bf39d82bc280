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

import hashlib
from collections.abc import Callable

from edgespec.core.errors import LocalProtocolError, RemoteProtocolError
from edgespec.core.peers.messages import (
    Ask,
    Granted,
    PeerChallenge,
    PeerHello,
    PeerMessage,
    PeerReason,
    PeerRefused,
    PeerUnavailable,
    Purpose,
)
from edgespec.core.protocol.messages import PROTOCOL
from edgespec.core.protocol.names import key_id
from edgespec.core.protocol.signing import SigningKey, check_public_key, verify

CHALLENGE, ASK = "peer-challenge", "peer-ask"
"""Domains (core/protocol/signing.py) of the two signatures."""


class CallerHandshake:
    """The side that dials: `hello`, then `challenged`, then `answered`."""

    def __init__(self, key: SigningKey, peer: bytes, name: str, spki_hash: bytes, nonce: bytes) -> None:
        """`peer`: the paired key (32 bytes) that must be at the other end, and its `name`; `spki_hash`: of the TLS key
        that it shows; `nonce`: 32 fresh random bytes.
        """
        self._key, self._peer, self._name, self._spki = key, peer, name, spki_hash
        self.hello = PeerHello(PROTOCOL, key.public, nonce)

    def challenged(self, message: PeerMessage, what: Purpose, gateway: bytes) -> Ask:
        """The answer to the challenge. Raises RemoteProtocolError (`pin`, `bad-signature`, `unexpected`)."""
        self._raise_refusal(message)
        if not isinstance(message, PeerChallenge):
            raise _unexpected(message)
        if message.key != self._peer:
            raise RemoteProtocolError("pin", f"the key is not that of {self._name}, {key_id(self._peer)}")
        digest = transcript(self.hello, message, self._spki)
        verify(self._peer, CHALLENGE, digest, message.signature)
        return Ask(what, gateway, self._key.sign(ASK, _asked(digest, what, gateway)))

    def answered(self, message: PeerMessage) -> Granted:
        """What was granted. Raises PeerUnavailable, RemoteProtocolError (`unexpected`)."""
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
        refused, None where it is not.
        """
        self._key, self._spki, self._nonce, self._refusal = key, spki_hash, nonce, refusal
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
        self._digest = transcript(message, PeerChallenge(self._key.public, self._nonce, bytes(64)), self._spki)
        return PeerChallenge(self._key.public, self._nonce, self._key.sign(CHALLENGE, self._digest))

    def asked(self, message: PeerMessage) -> Ask | PeerRefused:
        """What the caller asks for, or the refusal of its key.

        Raises RemoteProtocolError (`bad-signature`, `unexpected`); LocalProtocolError before a challenge.
        """
        if not self._digest:
            raise LocalProtocolError("a peer is asked before it was challenged")
        if not isinstance(message, Ask):
            raise _unexpected(message)
        verify(self.peer, ASK, _asked(self._digest, message.what, message.gateway), message.signature)
        refusal = self._refusal(self.peer)
        return message if refusal is None else PeerRefused(refusal)


def transcript(hello: PeerHello, challenge: PeerChallenge, spki_hash: bytes) -> bytes:
    """SHA-256 over version, keys, nonces and the listener's TLS key, each preceded by its length."""
    fields = (hello.protocol.encode(), hello.key, hello.nonce, challenge.key, challenge.nonce, spki_hash)
    framed = b"".join(len(field).to_bytes(4, "big") + field for field in fields)
    return hashlib.sha256(b"edgespec/1 peer transcript\0" + framed).digest()


def _asked(digest: bytes, what: str, gateway: bytes) -> bytes:
    return digest + gateway + what.encode()


def _unexpected(message: PeerMessage) -> RemoteProtocolError:
    return RemoteProtocolError("unexpected", f"a {type(message).__name__} that the handshake does not allow here")
