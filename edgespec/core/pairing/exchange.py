"""The pairing exchange (docs/protocol.md): two machines authenticate each other's keys with a one-time code.

    worker                                        gateway
      | Start: its key, name, SPAKE2 message        |
      | ------------------------------------------> |
      |     Reply: its key, name, SPAKE2 message    |
      | <------------------------------------------ |
      | Confirm: MAC and signature                  |   proves to the gateway: same code, same TLS key, same keys,
      | ------------------------------------------> |   and that the worker holds its private key
      |                     Confirm, the other way  |   proves the same to the worker
      | <------------------------------------------ |
      | Accepted: MAC                               |   the gateway stores
      | ------------------------------------------> |
      |                              Accepted: MAC  |   the worker stores
      | <------------------------------------------ |

SPAKE2 (RFC 9382, library `spake2`) gives both sides a key that is equal only if the code was; an attacker without the
code has one attempt per exchange. The library has no key confirmation, so MACs under keys derived for each direction
and step cover a transcript of all messages. Each side adds the hash of the TLS key that it saw: a relay that ends the
TLS connection changes the transcript. The wall clock is not used.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from nacl.bindings import crypto_core_ed25519_is_valid_point
from spake2 import SPAKE2_A, SPAKE2_B, SPAKEError

from edgespec.core.errors import LocalProtocolError, RemoteProtocolError
from edgespec.core.pairing.messages import (
    Accepted,
    Code,
    Confirm,
    PairingFailed,
    PairingMessage,
    Reason,
    Refused,
    Reply,
    Start,
)
from edgespec.core.protocol.messages import PROTOCOL, VERSION, Message
from edgespec.core.protocol.signing import SigningKey, check_public_key, verify

LINK = "link"
"""The purpose of a pairing of worker and gateway. Two machines of another kind pair for another purpose: the caller has
the worker's role then, and the other the gateway's."""
Entropy = Callable[[int], bytes]
"""Number of bytes -> that many random bytes."""


@dataclass(frozen=True, slots=True)
class Party:
    key: SigningKey
    name: str
    version: int = VERSION
    min_version: int = VERSION
    purpose: str = LINK
    """The purpose of the pairing. It is in all that is proven, so that a code for one never pairs for the other."""


@dataclass(frozen=True, slots=True)
class Peer:
    """The other side, once proven: its Ed25519 key, its name, and the minimum version for later connections."""

    key: bytes
    name: str
    version: int


class ExchangeState(enum.Enum):
    """The state of an exchange. `PROVEN` (gateway only): everything is checked, the worker is not stored yet."""

    NEW = "new"
    STARTED = "started"
    REPLIED = "replied"
    CONFIRMED = "confirmed"
    ACCEPTED = "accepted"
    PROVEN = "proven"
    PAIRED = "paired"
    FAILED = "failed"


Side = Literal["worker", "gateway"]
KINDS: Mapping[Side, str] = {"worker": "worker-pair", "gateway": "gateway-pair"}
"""Domains (signing.py) of the signatures by which each side proves that it holds its key."""
Table = Mapping[tuple[ExchangeState, type[Message]], ExchangeState]


class Exchange:
    """What both roles share: the table of transitions, the transcript, and the proofs over it."""

    SIDE: ClassVar[Side]
    OTHER: ClassVar[Side]
    TABLE: ClassVar[Table]

    def __init__(self, code: Code, me: Party, spki_hash: bytes, entropy: Entropy) -> None:
        """`spki_hash`: SHA-256 of the public key of the gateway's end of this TLS connection, as this side sees it."""
        self.state = ExchangeState.NEW
        self._code = code
        self._me = me
        self._spki = spki_hash
        spake = SPAKE2_A if self.SIDE == "worker" else SPAKE2_B
        prefix = f"edgespec {prefix_of(me.purpose)}"
        ends = f"{prefix}worker".encode(), f"{prefix}gateway".encode()
        self._spake = spake(str(code).encode(), *ends, entropy_f=entropy)
        self._sent_spake: bytes = self._spake.start()
        self._peer = Peer(bytes(32), "", 0)
        self._transcript = self._key = b""

    @property
    def peer(self) -> Peer:
        """The other side. Raises LocalProtocolError before its proofs are checked."""
        if self.state not in (ExchangeState.PROVEN, ExchangeState.PAIRED):
            raise LocalProtocolError(f"the peer of a pairing in state {self.state.value} is not proven")
        return self._peer

    def receive(self, message: PairingMessage) -> PairingMessage | None:
        """Handles one message and returns the answer to send, if any; the table defines which is allowed when.

        Raises PairingFailed for a failure that the user has to see, RemoteProtocolError for a forbidden message.
        Either way the exchange has ended, and the code is used up.
        """
        state = self.state
        self.state = ExchangeState.FAILED
        if isinstance(message, Refused):
            raise PairingFailed(message.reason, self._why_refused(message.reason))

        following = self.TABLE.get((state, type(message)))
        if following is None:
            label = type(message).__name__
            raise RemoteProtocolError(
                "pairing-order",
                f"the {self.OTHER} sent {label} while pairing was {state.value}",
            )

        answer = self._handle(message)
        self.state = following
        return answer

    def fail(self) -> None:
        """Ends the exchange from outside: connection lost, time limit passed, or nothing could be stored."""
        self.state = ExchangeState.FAILED

    def _handle(self, message: PairingMessage) -> PairingMessage | None:
        raise NotImplementedError

    def _why_refused(self, reason: Reason) -> str:
        """What this side can add to the other's reason: the one that refuses a version speaks no older one."""
        if reason is Reason.VERSION:
            return f"this machine is the older one, it speaks version {self._me.version}"
        return ""

    def _agree(self, start: Start, reply: Reply, peer: Peer, spake: bytes) -> None:
        """Checks the other's key, finishes SPAKE2 and fixes the transcript. Raises PairingFailed."""
        try:
            check_public_key(peer.key)
        except RemoteProtocolError as error:
            raise PairingFailed(Reason.KEY, str(error)) from None
        if not crypto_core_ed25519_is_valid_point(spake[1:]):  # the library accepts some non-canonical encodings
            raise PairingFailed(Reason.PROTOCOL, "malformed SPAKE2 message")

        try:
            self._key = self._spake.finish(spake)
        except SPAKEError:  # this side's own message, reflected
            raise PairingFailed(Reason.PROTOCOL, "reflected SPAKE2 message") from None
        self._peer = peer
        self._transcript = pairing_transcript(start, reply, self._spki, self._me.purpose)

    def _confirm(self) -> Confirm:
        signature = self._me.key.sign(KINDS[self.SIDE], self._transcript)
        return Confirm(self._mac("confirm", self.SIDE, signature), signature)

    def _check_confirm(self, confirm: Confirm) -> None:
        if not hmac.compare_digest(confirm.mac, self._mac("confirm", self.OTHER, confirm.signature)):
            raise PairingFailed(Reason.CODE)
        try:
            verify(self._peer.key, KINDS[self.OTHER], self._transcript, confirm.signature)
        except RemoteProtocolError as error:
            raise PairingFailed(Reason.KEY, str(error)) from None

    def _accepted(self) -> Accepted:
        return Accepted(self._mac("accepted", self.SIDE))

    def _check_accepted(self, accepted: Accepted) -> None:
        if not hmac.compare_digest(accepted.mac, self._mac("accepted", self.OTHER)):
            raise PairingFailed(Reason.CODE)

    def _mac(self, step: str, sender: Side, signature: bytes = b"") -> bytes:
        info = f"{PROTOCOL} pair {step} {sender}".encode()
        key = HKDF(SHA256(), length=32, salt=self._transcript, info=info).derive(self._key)
        return hmac.digest(key, self._transcript + signature, "sha256")


class WorkerExchange(Exchange):
    """The worker's side: `start()`, then `receive` until the state is `PAIRED`; then store `peer` and the TLS key."""

    SIDE = "worker"
    OTHER = "gateway"
    TABLE: ClassVar[Table] = {
        (ExchangeState.STARTED, Reply): ExchangeState.CONFIRMED,
        (ExchangeState.CONFIRMED, Confirm): ExchangeState.ACCEPTED,
        (ExchangeState.ACCEPTED, Accepted): ExchangeState.PAIRED,
    }

    def start(self) -> Start:
        if self.state is not ExchangeState.NEW:
            raise LocalProtocolError("a pairing exchange starts once")
        self.state = ExchangeState.STARTED
        me = self._me
        self._start = Start(me.version, self._code.nameplate, me.key.public, me.name, self._sent_spake)
        return self._start

    def _handle(self, message: PairingMessage) -> PairingMessage | None:
        if isinstance(message, Reply):
            if not self._me.min_version <= message.version <= self._me.version:
                why = f"the gateway speaks version {message.version} and is the older one"
                raise PairingFailed(Reason.VERSION, f"{why}; this machine speaks {self._me.version}")
            self._agree(
                self._start,
                message,
                Peer(message.gateway_key, message.name, message.version),
                message.spake,
            )
            return self._confirm()
        if isinstance(message, Confirm):
            self._check_confirm(message)

            return self._accepted()

        assert isinstance(message, Accepted)  # by the table
        self._check_accepted(message)
        return None


class GatewayExchange(Exchange):
    """The gateway's side: `receive` until the state is `PROVEN`; then store `peer` and send what `stored()` returns."""

    SIDE = "gateway"
    OTHER = "worker"
    TABLE: ClassVar[Table] = {
        (ExchangeState.NEW, Start): ExchangeState.REPLIED,
        (ExchangeState.REPLIED, Confirm): ExchangeState.CONFIRMED,
        (ExchangeState.CONFIRMED, Accepted): ExchangeState.PROVEN,
    }

    def stored(self) -> Accepted:
        """The last message, once the worker's key is stored."""
        if self.state is not ExchangeState.PROVEN:
            raise LocalProtocolError(f"a worker cannot be stored while pairing is {self.state.value}")
        self.state = ExchangeState.PAIRED
        return self._accepted()

    def _handle(self, message: PairingMessage) -> PairingMessage | None:
        if isinstance(message, Start):
            return self._reply(message)
        if isinstance(message, Confirm):
            self._check_confirm(message)
            return self._confirm()

        assert isinstance(message, Accepted)  # by the table
        self._check_accepted(message)
        return None

    def _reply(self, start: Start) -> Reply:
        me = self._me
        version = min(start.version, me.version)
        if version < me.min_version:
            why = f"the worker speaks version {start.version} and is the older one"
            raise PairingFailed(Reason.VERSION, f"{why}; this gateway speaks {me.version}")
        if start.nameplate != self._code.nameplate:
            raise PairingFailed(Reason.NAMEPLATE)

        reply = Reply(version, me.key.public, me.name, self._sent_spake)
        self._agree(start, reply, Peer(start.worker_key, start.name, version), start.spake)
        return reply


def prefix_of(purpose: str) -> str:
    """Names a purpose in what is proven; a pairing of worker and gateway has no name there."""
    if purpose == LINK:
        return ""

    return f"{purpose} "


def pairing_transcript(start: Start, reply: Reply, spki_hash: bytes, purpose: str = LINK) -> bytes:
    """SHA-256 over both messages before the proofs and `spki_hash`; each part is preceded by its length."""
    parts = (
        f"{PROTOCOL} {prefix_of(purpose)}pairing".encode(),
        start.version.to_bytes(2, "big"),
        reply.version.to_bytes(2, "big"),
        start.nameplate.to_bytes(2, "big"),
        spki_hash,
        start.worker_key,
        start.name.encode(),
        start.spake,
        reply.gateway_key,
        reply.name.encode(),
        reply.spake,
    )
    return hashlib.sha256(b"".join(len(part).to_bytes(4, "big") + part for part in parts)).digest()
