"""Two daemons prove their keys to each other, and what a third machine can try between them."""

from __future__ import annotations

import msgspec
import pytest

from edgespec.core.errors import LocalProtocolError, RemoteProtocolError
from edgespec.core.protocol.messages import encode
from edgespec.core.protocol.signing import SigningKey
from edgespec.parts.peer_relay.handshake import (
    NO_GATEWAY,
    Ask,
    CallerHandshake,
    Granted,
    ListenerHandshake,
    PeerChallenge,
    PeerHello,
    PeerMessage,
    PeerRefused,
    PeerUnavailable,
    decode_peer,
)

CALLER, LISTENER, THIRD = (SigningKey(letter * 32) for letter in (b"c", b"l", b"t"))
SPKI = b"s" * 32
OTHER_SPKI = b"o" * 32
GATEWAY = b"g" * 32


def calling(
    key: SigningKey = CALLER, peer: SigningKey = LISTENER, spki: bytes = SPKI, nonce: int = 1
) -> CallerHandshake:
    return CallerHandshake(key, peer.public, "lab-8", spki, bytes([nonce]) * 32)


def listening(
    key: SigningKey = LISTENER, paired: SigningKey | None = CALLER, spki: bytes = SPKI, nonce: int = 2
) -> ListenerHandshake:
    known = None if paired is None else paired.public
    return ListenerHandshake(key, spki, bytes([nonce]) * 32, lambda one: None if one == known else "unpaired")


def sent(message: PeerMessage) -> PeerMessage:
    """The message after a journey over the wire."""
    return decode_peer(encode(message))


def asked(caller: CallerHandshake, listener: ListenerHandshake) -> Ask | PeerRefused:
    ask = caller.challenged(sent(listener.challenge(sent(caller.hello))), "relay", GATEWAY)
    return listener.asked(sent(ask))


def test_both_sides_prove_their_keys() -> None:
    caller = calling()
    listener = listening()
    ask = asked(caller, listener)
    assert isinstance(ask, Ask)
    assert (ask.what, ask.gateway, listener.peer) == ("relay", GATEWAY, CALLER.public)
    granted = Granted("lab-8", True, [GATEWAY])
    assert caller.answered(sent(granted)) == granted


@pytest.mark.claim("a-machine-that-is-not-paired-gets-nothing")
def test_a_key_that_is_not_paired_is_refused_after_its_proof_only() -> None:
    stranger = calling(key=THIRD)
    listener = listening()
    challenge = listener.challenge(stranger.hello)
    assert isinstance(challenge, PeerChallenge)  # as for any key
    assert listener.asked(stranger.challenged(challenge, "relay", GATEWAY)) == PeerRefused("unpaired")


@pytest.mark.claim("a-machine-in-the-middle-of-a-pairing-fails")
def test_a_machine_in_the_middle_of_the_tls_connection_is_seen_by_both() -> None:
    caller = calling(spki=OTHER_SPKI)
    listener = listening()
    challenge = listener.challenge(caller.hello)
    with pytest.raises(RemoteProtocolError) as error:
        caller.challenged(challenge, "relay", GATEWAY)
    assert error.value.reason == "bad-signature"
    careless = calling(spki=SPKI)  # a caller that signs what the listener expects, and one that does not
    ask = careless.challenged(challenge_for(listening(), careless), "relay", GATEWAY)
    with pytest.raises(RemoteProtocolError, match="does not verify"):
        again = listening(spki=OTHER_SPKI)
        again.challenge(careless.hello)
        again.asked(ask)


def challenge_for(listener: ListenerHandshake, caller: CallerHandshake) -> PeerChallenge:
    challenge = listener.challenge(caller.hello)
    assert isinstance(challenge, PeerChallenge)
    return challenge


@pytest.mark.claim("a-replayed-challenge-is-refused")
def test_a_replayed_challenge_is_refused() -> None:
    recorded = challenge_for(listening(), calling(nonce=1))
    with pytest.raises(RemoteProtocolError, match="does not verify"):
        calling(nonce=3).challenged(recorded, "relay", GATEWAY)


@pytest.mark.claim("a-replayed-challenge-is-refused")
def test_a_replayed_ask_is_refused() -> None:
    caller = calling()
    listener = listening(nonce=2)
    ask = caller.challenged(challenge_for(listener, caller), "relay", GATEWAY)
    later = listening(nonce=4)
    later.challenge(caller.hello)
    with pytest.raises(RemoteProtocolError, match="does not verify"):
        later.asked(ask)


@pytest.mark.parametrize("change", [{"gateway": NO_GATEWAY}, {"what": "presence"}, {"signature": bytes(64)}])
def test_a_changed_ask_is_refused(change: dict[str, object]) -> None:
    caller = calling()
    listener = listening()
    ask = caller.challenged(challenge_for(listener, caller), "relay", GATEWAY)
    with pytest.raises(RemoteProtocolError, match="does not verify"):
        listener.asked(msgspec.structs.replace(ask, **change))


@pytest.mark.claim("a-peer-cannot-pass-for-another-one")
def test_a_peer_cannot_pass_for_another_one() -> None:
    """Unknown-key share: a third peer forwards the hello to the wanted one, or answers for it with its own key."""
    with pytest.raises(RemoteProtocolError) as error:
        asked(calling(peer=LISTENER), listening(key=THIRD))
    assert error.value.reason == "pin"
    caller = calling(peer=THIRD)  # dials the third machine, which forwards to the listener
    forwarded = challenge_for(listening(), caller)
    with pytest.raises(RemoteProtocolError) as error:
        caller.challenged(msgspec.structs.replace(forwarded, key=THIRD.public), "relay", GATEWAY)
    assert error.value.reason == "bad-signature"


def test_a_small_order_key_is_refused() -> None:
    with pytest.raises(RemoteProtocolError) as error:
        listening().challenge(PeerHello("edgespec/2", bytes(32), bytes(32)))
    assert error.value.reason == "weak-key"


def test_another_version_is_refused() -> None:
    refused = listening().challenge(PeerHello("edgespec/1", CALLER.public, bytes(32)))
    assert refused == PeerRefused("version")
    with pytest.raises(PeerUnavailable, match="The peer lab-8 speaks another version of the protocol"):
        calling().challenged(refused, "relay", GATEWAY)


def test_messages_out_of_their_order_are_refused() -> None:
    listener = listening()
    with pytest.raises(LocalProtocolError):
        listener.asked(Ask("relay", GATEWAY, bytes(64)))
    with pytest.raises(RemoteProtocolError) as error:
        listener.challenge(Granted("lab-8", True, []))
    assert error.value.reason == "unexpected"
    caller = calling()
    listener.challenge(caller.hello)
    for step in (lambda: listener.challenge(caller.hello), lambda: listener.asked(caller.hello)):
        with pytest.raises(RemoteProtocolError):
            step()
    with pytest.raises(RemoteProtocolError):
        caller.challenged(Granted("lab-8", True, []), "relay", GATEWAY)  # without a proof
    with pytest.raises(RemoteProtocolError):
        caller.answered(caller.hello)


@pytest.mark.parametrize("data", [b"", b"\xc1", b"x" * 3000, encode(calling().hello)[:-1]])
def test_what_does_not_decode_is_refused(data: bytes | str) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_peer(data)
