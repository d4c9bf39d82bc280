"""A worker's change of key: who has to sign it, and what a gateway does with statements that lie, repeat or go back."""

from __future__ import annotations

import itertools

import pytest
from msgspec.structs import replace

from edgespec.core.errors import RemoteProtocolError
from edgespec.core.protocol import messages as m
from edgespec.core.protocol import signing
from edgespec.core.protocol.gateway_session import GatewaySession
from edgespec.core.protocol.handshake import Standing, WorkerIdentity, check_succession, rotation, up_to
from edgespec.core.protocol.session import Linked
from edgespec.core.protocol.signing import SigningKey
from tests.support.sessions import GATEWAY, MODEL, TOKENIZER, deliver, worker

A, B, C, THIEF = (SigningKey(seed * 32) for seed in (b"a", b"b", b"c", b"t"))
A_TO_B, B_TO_C = rotation(A, B), rotation(B, C)


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
