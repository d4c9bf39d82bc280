"""Changes of key, a worker's and a gateway's: who has to sign, and what statements do that lie, repeat or come late."""

from __future__ import annotations

import hashlib
import itertools

import pytest
from msgspec.structs import replace

from edgespec.core.errors import RemoteProtocolError
from edgespec.core.protocol import messages as m
from edgespec.core.protocol import signing
from edgespec.core.protocol.gateway_session import GatewaySession
from edgespec.core.protocol.handshake import (
    GRACE_S,
    GatewayIdentity,
    GatewayRotation,
    Pin,
    Standing,
    WorkerIdentity,
    check_succession,
    gateway_rotation,
    rotation,
    successor,
    up_to,
)
from edgespec.core.protocol.session import Linked
from edgespec.core.protocol.signing import SigningKey
from tests.support.sessions import GATEWAY, MODEL, TOKENIZER, deliver, worker

A, B, C, THIEF = (SigningKey(seed * 32) for seed in (b"a", b"b", b"c", b"t"))
A_TO_B = rotation(A, B)
B_TO_C = rotation(B, C)


class Listed(dict[bytes, Standing]):
    """A gateway's list; `rotate` is what it does with a successor."""

    def rotate(self, old: bytes, new: bytes) -> None:
        self[new] = self.pop(old)


def link(listed: Listed, key: SigningKey, *rotations: m.Rotation) -> str:
    """What becomes of a handshake with this key: `linked`, or the label of its end."""
    me = WorkerIdentity(key, "lab-7", TOKENIZER, MODEL, 49152, 4, rotations)
    session = worker(**{name: getattr(me, name) for name in WorkerIdentity.__slots__})
    gateway = GatewaySession(
        GATEWAY, lambda public: listed.get(public, "unpaired"), b"2" * 32, 0.0, rotate=listed.rotate
    )
    deliver(session, gateway)
    deliver(gateway, session)
    try:
        events = deliver(session, gateway)
    except RemoteProtocolError as error:
        return error.reason
    return "linked" if Linked() in events else "nothing"


def test_a_gateway_that_missed_a_rotation_follows_both() -> None:
    listed = Listed({A.public: "paired"})
    assert link(listed, C, A_TO_B, B_TO_C) == "linked" and listed == {C.public: "paired"}
    assert link(Listed({B.public: "paired"}), C, A_TO_B, B_TO_C) == "linked"


@pytest.mark.claim("a-statement-is-taken-once-and-a-key-that-is-gone-stays-out")
def test_a_statement_is_taken_once_and_a_key_that_is_gone_stays_out() -> None:
    listed = Listed({A.public: "paired"})
    assert link(listed, B, A_TO_B) == "linked"
    assert link(listed, A, rotation(B, A)) == "linked", "signed by both: the owner goes back on purpose"
    assert link(listed, B) == "unpaired"
    assert link(listed, B, A_TO_B) == "linked"
    assert link(listed, THIEF, rotation(A, THIEF)) == "unpaired", "a stolen old key"


@pytest.mark.claim("forged-statements-change-nothing")
def test_forged_statements_change_nothing() -> None:
    forged = [
        m.Rotation(A.public, THIEF.public, THIEF.sign(signing.KEY_ROTATION, A.public + THIEF.public), bytes(64)),
        replace(rotation(A, THIEF), old_signature=A_TO_B.old_signature),
        replace(rotation(A, THIEF), new_signature=A_TO_B.new_signature),
        replace(rotation(A, THIEF), old_signature=A.sign(signing.WORKER_PROOF, A.public + THIEF.public)),
    ]
    for one in forged:
        listed = Listed({A.public: "paired"})
        assert link(listed, THIEF, one) == "bad-signature" and listed == {A.public: "paired"}


@pytest.mark.claim("forged-statements-change-nothing")
def test_a_statement_for_another_key_or_a_broken_chain_changes_nothing() -> None:
    for chain in ([A_TO_B], [A_TO_B, rotation(C, THIEF)], [rotation(A, A), A_TO_B], [B_TO_C, A_TO_B, B_TO_C]):
        listed = Listed({A.public: "paired"})
        assert link(listed, THIEF, *chain) == "rotation" and listed == {A.public: "paired"}


@pytest.mark.claim("a-rotation-lifts-no-refusal")
@pytest.mark.parametrize("standing", ["revoked", "quarantined", "expired"])
def test_a_rotation_lifts_no_refusal(standing: Standing) -> None:
    listed = Listed({A.public: standing})
    assert link(listed, B, A_TO_B) == standing and listed == {A.public: standing}
    both = Listed({A.public: "paired", B.public: standing})
    assert link(both, B, A_TO_B) == standing and both[A.public] == "paired"


@pytest.mark.claim("forged-statements-change-nothing")
def test_a_key_of_small_order_signs_no_rotation() -> None:
    weak = bytes(32)
    with pytest.raises(RemoteProtocolError) as caught:
        check_succession([m.Rotation(weak, B.public, bytes(64), bytes(64))], B.public)
    assert caught.value.reason == "weak-key"


def test_the_latest_four_statements_that_lead_to_a_key_are_kept() -> None:
    keys = [SigningKey(bytes([n]) * 32) for n in range(8)]
    chain = [rotation(*pair) for pair in itertools.pairwise(keys)]
    assert up_to(chain, keys[7].public) == tuple(chain[3:7])
    assert up_to(chain, keys[2].public) == tuple(chain[:2]), "one that was written without its key is left out"
    assert up_to(chain, keys[0].public) == ()


TLS = {key.public: hashlib.sha256(key.public).digest() for key in (A, B, C, THIEF)}
"""TLS key of each identity."""
LINKED_AT = 1_700_000_000.0
SOON = LINKED_AT + 3600


def pin(key: SigningKey) -> Pin:
    return Pin(key.public, TLS[key.public], LINKED_AT)


def signed(old: SigningKey, new: SigningKey) -> GatewayRotation:
    return gateway_rotation(old, new, TLS[new.public])


TO_B = signed(A, B)
TO_C = signed(B, C)


def meets(paired: SigningKey, seen: SigningKey, *rotations: GatewayRotation, now: float = SOON) -> str:
    """What becomes of a worker paired with one key that meets the TLS key of another: `linked`, or why not."""
    try:
        now_pinned = successor(pin(paired), TLS[seen.public], rotations, now)
    except RemoteProtocolError as error:
        return error.reason
    assert now_pinned == Pin(seen.public, TLS[seen.public], now)
    return proven(now_pinned, seen)


def proven(pinned: Pin, key: SigningKey) -> str:
    """The end of the session of a worker with this pin and a gateway that signs with this key."""
    session = worker(pin=pinned, seen=pinned.spki_hash)
    me = GatewayIdentity(key, "gw", pinned.spki_hash, TOKENIZER)
    gateway = GatewaySession(me, lambda key: "paired", b"2" * 32, 0.0)
    deliver(session, gateway)
    try:
        deliver(gateway, session)
        deliver(session, gateway)
        return "linked" if Linked(me.branching) in deliver(gateway, session) else "nothing"
    except RemoteProtocolError as error:
        return error.reason


@pytest.mark.claim("a-new-identity-that-the-paired-one-signed-is-accepted")
def test_a_new_identity_that_the_paired_one_signed_is_accepted() -> None:
    assert meets(A, B, TO_B) == "linked"


def test_a_worker_that_missed_a_rotation_follows_both() -> None:
    assert meets(A, C, TO_B, TO_C) == meets(B, C, TO_B, TO_C) == "linked"


@pytest.mark.claim("a-new-identity-that-the-paired-one-signed-is-accepted")
def test_the_statement_alone_does_not_link() -> None:
    """A machine with the new TLS key must prove the new signing key too."""
    found = successor(pin(A), TLS[B.public], [TO_B], SOON)
    assert proven(found, A) == proven(found, THIEF) == "gateway-key"


@pytest.mark.claim("a-worker-does-not-go-back")
def test_a_worker_does_not_go_back() -> None:
    assert meets(B, A) == "pin"
    assert meets(C, B, TO_B) == "pin", "the certificate of a former identity"
    assert meets(C, B, TO_B, TO_C) == "pin", "its statements with a former TLS key"


@pytest.mark.claim("a-worker-does-not-go-back")
def test_a_stolen_old_key_moves_no_worker_that_has_the_new_one() -> None:
    assert meets(B, THIEF, signed(A, THIEF)) == "pin"
    assert meets(B, THIEF, TO_B, signed(A, THIEF)) == "pin"
    assert meets(A, THIEF, TO_B, signed(A, THIEF)) == "rotation"


@pytest.mark.claim("a-new-identity-that-the-paired-one-signed-is-accepted")
def test_a_repeated_statement_serves_only_the_machine_that_it_names() -> None:
    assert meets(A, THIEF, TO_B) == "pin", "shown with another TLS key"


@pytest.mark.claim("forged-statements-are-refused")
def test_forged_statements_are_refused() -> None:
    said = A.public + THIEF.public + TLS[THIEF.public]
    true = signed(A, THIEF)
    forged = [
        replace(true, old_signature=THIEF.sign(signing.GATEWAY_ROTATION, said)),
        replace(true, old_signature=TO_B.old_signature),
        replace(true, new_signature=TO_B.new_signature),
        replace(true, old_signature=A.sign(signing.KEY_ROTATION, said)),
        replace(true, old_signature=rotation(A, THIEF).old_signature),
        replace(gateway_rotation(A, THIEF, TLS[B.public]), spki_hash=TLS[THIEF.public]),
    ]
    for one in forged:
        with pytest.raises(RemoteProtocolError, match="a rotation of the gateway's identity is forged") as caught:
            successor(pin(A), TLS[THIEF.public], [one], SOON)
        assert caught.value.reason == "bad-signature"
    assert meets(A, THIEF, true) == "linked", "who has the old key can sign, within the grace"


@pytest.mark.claim("forged-statements-are-refused")
def test_a_broken_chain_or_a_weak_key_is_refused() -> None:
    assert meets(A, C, TO_B, signed(THIEF, C)) == "rotation"
    assert meets(A, A, replace(signed(A, A), spki_hash=TLS[A.public])) == "rotation"
    weak = GatewayRotation(A.public, bytes(32), TLS[B.public], A.sign(signing.GATEWAY_ROTATION, b""), bytes(64))
    with pytest.raises(RemoteProtocolError) as caught:
        successor(pin(A), TLS[B.public], [weak], SOON)
    assert caught.value.reason in ("weak-key", "bad-signature")


@pytest.mark.claim("a-worker-that-was-away-too-long-follows-nobody")
@pytest.mark.parametrize("away_s", [GRACE_S + 1, -GRACE_S - 1])
def test_a_worker_that_was_away_too_long_follows_nobody(away_s: float) -> None:
    """A stolen old key is of no use then either; a clock that was set back does not prolong it for ever."""
    with pytest.raises(RemoteProtocolError, match="more than 90 days ago; ask the gateway's operator for a code"):
        successor(pin(A), TLS[B.public], [TO_B], LINKED_AT + away_s)
    assert meets(A, THIEF, signed(A, THIEF), now=LINKED_AT + away_s) == "rotation"
    assert meets(A, B, TO_B, now=LINKED_AT + GRACE_S) == "linked"


def test_a_pin_without_a_date_follows_nobody() -> None:
    with pytest.raises(RemoteProtocolError, match="rotated"):
        successor(Pin(A.public, TLS[A.public]), TLS[B.public], [TO_B], SOON)
