"""The gateway's end of the link, and what it refuses; session.py has the common part."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec.structs import replace

from edgespec.core.errors import RemoteProtocolError
from edgespec.core.protocol import messages as m
from edgespec.core.protocol import signing
from edgespec.core.protocol.handshake import (
    NO_TOKENIZER,
    CloseCode,
    GatewayIdentity,
    Lookup,
    Rotate,
    Standing,
    check_succession,
    refusal_digest,
    session_id,
    transcript,
)
from edgespec.core.protocol.messages import (
    PROTOCOL,
    Challenge,
    Hello,
    Message,
    Proof,
    Refuse,
    RefuseReason,
    RotatedProof,
)
from edgespec.core.protocol.names import key_id
from edgespec.core.protocol.session import (
    DEFAULT_TIMERS,
    FRAMES_TO_WORKER,
    GATEWAY_RECEIVES,
    Event,
    Linked,
    RttSample,
    Session,
    SessionState,
    Timers,
)


class GatewaySession(Session):
    """The gateway's end: accepts or refuses the worker."""

    receives = GATEWAY_RECEIVES
    sends = FRAMES_TO_WORKER
    send_kind = signing.GATEWAY_FRAME
    receive_kind = signing.WORKER_FRAME
    max_sent = signing.MAX_PAYLOAD_BYTES
    max_received = m.MAX_TREE_BYTES

    def __init__(
        self,
        me: GatewayIdentity,
        lookup: Lookup,
        nonce: bytes,
        now: float,
        timers: Timers = DEFAULT_TIMERS,
        rotate: Rotate = lambda old, new: None,
    ) -> None:
        """`nonce`: 32 fresh random bytes; `rotate` stores that the worker of the first key now has the second one."""
        super().__init__(me.key, SessionState.HELLO, now, timers)
        self._me = me
        self._lookup = lookup
        self._nonce = nonce
        self._rotate = rotate
        self.hello: Hello | None = None
        """As received; authenticated once the state is OPEN."""
        self._transcript = b""
        self._challenged_at = now

    def _read_handshake(self, data: bytes) -> Message:
        try:
            return super()._read_handshake(data)
        except RemoteProtocolError:
            if self.state is SessionState.HELLO:
                theirs = foreign_version(data[:64])
            else:
                theirs = None
            if theirs is None:
                raise
            raise self._refused("version", refusal_of_version(theirs), data) from None

    def _handle(self, message: Message, data: bytes, now: float) -> list[Event]:
        match message:
            case Hello():
                refusal = admit(message, self._me)
                if refusal is not None:
                    raise self._refused(*refusal, data)
                self._challenge(message)
                self._challenged_at = now
                return []
            case Proof() | RotatedProof():
                signing.verify(
                    self.peer_key,
                    signing.WORKER_PROOF,
                    self._transcript,
                    message.signature,
                )
                standing = standing_of(self.peer_key, message, self._lookup, self._rotate)
                error = standing_error(standing, self.peer_key)
                if error is not None:
                    self._outgoing.append(self.send(m.Bye(error.reason)))
                    raise error
                self._outgoing.append(self.send(m.Welcome(self._me.name, self._me.branching)))
                self._ping_at = now
                return [RttSample(now - self._challenged_at), Linked()]
        return super()._handle(message, data, now)

    def _refused(self, reason: RefuseReason, text: str, hello: bytes) -> RemoteProtocolError:
        """The error that ends the session after the signed `Refuse`; `hello`: the Hello as received, whose nonce makes
        the signature valid only once."""
        signature = self._key.sign(signing.GATEWAY_REFUSE, refusal_digest(hello, reason, text))
        self._outgoing.append(m.encode(Refuse(reason, text, signature)))
        return _ended(reason, text)

    def _challenge(self, hello: Hello) -> None:
        me = self._me
        unsigned = Challenge(me.key.public, self._nonce, me.spki_hash, me.tokenizer_digest, bytes(64))
        self.hello = hello
        self.peer_key = hello.worker_key
        self._transcript = transcript(hello, unsigned)
        self.session = session_id(self._transcript)
        signature = self._key.sign(signing.GATEWAY_CHALLENGE, self._transcript)
        self._outgoing.append(m.encode(replace(unsigned, signature=signature)))


STANDINGS: Mapping[Standing, str] = {
    "unpaired": "The key {worker} is not paired.",
    "revoked": "The key {worker} was revoked.",
    "expired": "The pairing of the key {worker} has expired; `cloud-gateway workers expire {worker}` prolongs it.",
    "version": f"The key {{worker}} was paired at a later version than {PROTOCOL}; update the gateway, or pair again.",
    "quarantined": "The key {worker} is quarantined; `cloud-gateway workers release {worker}` ends that.",
}
"""Why the session of a worker with a proven key ends, by the key's standing."""


def _ended(reason: str, text: str) -> RemoteProtocolError:
    """The error of a reason that has a close code of its own."""
    return RemoteProtocolError(reason, text, close_code=CloseCode[reason.upper()])


def admit(hello: Hello, me: GatewayIdentity) -> tuple[RefuseReason, str] | None:
    """Why this worker is refused, if it is: label and sentence. Raises RemoteProtocolError (`weak-key`).

    Whether the key is paired is checked after the proof: only the owner of a key may learn its status.
    """
    if hello.protocol != PROTOCOL:
        return "version", refusal_of_version(hello.protocol)

    signing.check_public_key(hello.worker_key)
    fetches = hello.tokenizer_digest == NO_TOKENIZER and me.sends_tokenizer
    if hello.tokenizer_digest != me.tokenizer_digest and not fetches:
        theirs = hello.tokenizer_digest.hex()[:16]
        ours = me.tokenizer_digest.hex()[:16]
        text = f"The worker's draft model has tokenizer {theirs}, the gateway's target has {ours}; {me.advice}."
        return "tokenizer", text

    return None


def standing_error(standing: Standing, worker_key: bytes) -> RemoteProtocolError | None:
    """The error that ends the session of a worker with a proven key; None if the key is paired."""
    if standing == "paired":
        return None
    return _ended(standing, STANDINGS[standing].format(worker=key_id(worker_key)))


def refusal_of_version(theirs: str) -> str:
    """The sentence for a worker with another protocol version."""
    shown = theirs if re.fullmatch(r"edgespec/[0-9.]{1,8}", theirs) else "something else"  # untrusted text
    return f"The gateway speaks {PROTOCOL} and the worker {shown}: update the older one."


def foreign_version(data: bytes) -> str | None:
    """The version in a Hello of any version, if it is not PROTOCOL.

    Common to all versions: a msgpack array whose first elements are "hello" and the version.
    """
    found = re.match(rb"(?s)(?:[\x90-\x9f]|\xdc..)\xa5hello[\xa0-\xbf](edgespec/[0-9.]{1,8})", data)
    theirs = found[1].decode() if found else PROTOCOL
    if theirs != PROTOCOL:
        return theirs
    return None


def standing_of(key: bytes, proven_by: Proof | RotatedProof, lookup: Lookup, rotate: Rotate) -> Standing:
    """Of a proven key; one that is not listed may be the successor of a listed one, whose place it then takes.

    Raises RemoteProtocolError where that one has not signed it.
    """
    standing = lookup(key)
    if standing != "unpaired" or isinstance(proven_by, Proof):
        return standing

    for number, one in enumerate(proven_by.rotations):
        standing = lookup(one.old_key)
        if standing != "unpaired":
            check_succession(proven_by.rotations[number:], key)
            if standing == "paired":
                rotate(one.old_key, key)
            break

    return standing
