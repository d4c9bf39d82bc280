"""The pairing exchange: the conditions of success, and every fault that must make it fail."""

from __future__ import annotations

import hashlib
import random

import msgspec
import pytest

from edgespec.core.errors import LocalProtocolError, RemoteProtocolError
from edgespec.core.pairing.exchange import ExchangeState, GatewayExchange, Party, WorkerExchange, pairing_transcript
from edgespec.core.pairing.messages import (
    MAX_PAIRING_BYTES,
    SENTENCES,
    Accepted,
    Code,
    Confirm,
    PairingFailed,
    PairingMessage,
    Reason,
    Refused,
    Reply,
    Start,
    decode_pairing,
)
from edgespec.core.protocol.messages import encode
from edgespec.core.protocol.signing import SigningKey

SPKI = hashlib.sha256(b"the gateway's TLS key").digest()
OTHER_SPKI = hashlib.sha256(b"a relay's TLS key").digest()
CODE = Code(4821, ("acorn", "album", "amber"), 7305)
WRONG = Code(4821, ("acorn", "album", "ankle"), 7305)
SMALL_ORDER = bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05")


def party(seed: int, name: str, version: int = 1, min_version: int = 1) -> Party:
    return Party(SigningKey(bytes([seed]) * 32), name, version, min_version)


WORKER = party(1, "lab-7")
GATEWAY = party(2, "dept gateway")
MALLORY = party(3, "mallory")


def worker(code: Code = CODE, me: Party = WORKER, spki: bytes = SPKI, seed: int = 11) -> WorkerExchange:
    return WorkerExchange(code, me, spki, random.Random(seed).randbytes)


def gateway(code: Code = CODE, me: Party = GATEWAY, spki: bytes = SPKI, seed: int = 12) -> GatewayExchange:
    return GatewayExchange(code, me, spki, random.Random(seed).randbytes)


def answer(side: WorkerExchange | GatewayExchange, message: PairingMessage | None) -> PairingMessage:
    assert message is not None
    reply = side.receive(decode_pairing(encode(message)))
    assert reply is not None
    return reply


def until_confirm(w: WorkerExchange, g: GatewayExchange) -> Confirm:
    """Runs Start and Reply; returns the worker's Confirm."""
    confirm = answer(w, answer(g, w.start()))
    assert isinstance(confirm, Confirm)
    return confirm


def test_the_right_code_pairs_and_each_side_gets_the_others_key_and_name() -> None:
    w = worker()
    g = gateway()
    accepted = answer(w, answer(g, until_confirm(w, g)))
    assert isinstance(accepted, Accepted)
    assert w.state is ExchangeState.ACCEPTED  # the worker stores only once the gateway has
    assert g.receive(accepted) is None
    assert g.state is ExchangeState.PROVEN
    assert w.receive(g.stored()) is None
    assert (w.state, g.state) == (ExchangeState.PAIRED, ExchangeState.PAIRED)
    assert (w.peer.key, w.peer.name, w.peer.version) == (GATEWAY.key.public, "dept gateway", 1)
    assert (g.peer.key, g.peer.name, g.peer.version) == (WORKER.key.public, "lab-7", 1)


def test_the_worker_finds_a_gateway_that_does_not_know_the_code() -> None:
    """A false gateway cannot check the worker's proof, so it makes one up or reflects it."""
    for forge in (lambda c: c, lambda c: Confirm(bytes(32), c.signature)):
        w = worker()
        g = gateway(WRONG, me=MALLORY)
        confirm = until_confirm(w, g)
        with pytest.raises(PairingFailed) as failure:
            w.receive(forge(confirm))
        assert failure.value.reason is Reason.CODE


@pytest.mark.claim("a-relay-that-ends-tls-and-forwards-every-message-is-detected")
def test_a_relay_that_ends_tls_and_forwards_every_message_is_detected() -> None:
    w = worker(spki=OTHER_SPKI)
    g = gateway(spki=SPKI)
    confirm = until_confirm(w, g)
    with pytest.raises(PairingFailed) as failure:
        g.receive(confirm)
    assert failure.value.reason is Reason.CODE


@pytest.mark.claim("knowing-the-code-is-not-enough-to-claim-another-machines-key")
def test_knowing_the_code_is_not_enough_to_claim_another_machines_key() -> None:
    """Mallory has the code but not the private keys of the public ones in its messages."""

    class Claimed(SigningKey):
        __slots__ = ()

        def __init__(self, seed: bytes, public: bytes) -> None:
            super().__init__(seed)
            self.public = public

    thief = Party(Claimed(b"3" * 32, WORKER.key.public), "lab-7", 1, 1)
    w = worker(me=thief)
    g = gateway()
    confirm = until_confirm(w, g)
    with pytest.raises(PairingFailed) as failure:
        g.receive(confirm)
    assert failure.value.reason is Reason.KEY


def test_messages_recorded_from_one_exchange_are_worth_nothing_in_another() -> None:
    """Same code, same keys: only the fresh SPAKE2 message differs."""
    w = worker()
    g = gateway()
    start = w.start()
    reply = answer(g, start)
    confirm = answer(w, reply)
    gateway_confirm = answer(g, confirm)

    fresh_gateway = gateway(seed=99)
    answer(fresh_gateway, start)
    with pytest.raises(PairingFailed):
        fresh_gateway.receive(confirm)

    fresh_worker = worker(seed=98)
    fresh_worker.start()
    assert answer(fresh_worker, reply) != confirm
    with pytest.raises(PairingFailed):
        fresh_worker.receive(gateway_confirm)


def test_reflecting_a_sides_own_messages_fails() -> None:
    w = worker()
    start = w.start()
    reflected = Reply(1, GATEWAY.key.public, "x", start.spake)
    with pytest.raises(PairingFailed) as failure:
        w.receive(reflected)
    assert failure.value.reason is Reason.PROTOCOL


@pytest.mark.parametrize("key", [bytes(32), b"\x01" + bytes(31), SMALL_ORDER, b"\xff" * 32])
def test_small_order_and_malformed_keys_are_refused(key: bytes) -> None:
    w = worker()
    g = gateway()
    with pytest.raises(PairingFailed) as failure:
        g.receive(msgspec.structs.replace(w.start(), worker_key=key))
    assert failure.value.reason is Reason.KEY
    w = worker()
    g = gateway()
    reply = answer(g, w.start())
    assert isinstance(reply, Reply)
    with pytest.raises(PairingFailed) as failure:
        w.receive(msgspec.structs.replace(reply, gateway_key=key))
    assert failure.value.reason is Reason.KEY


@pytest.mark.parametrize("point", [bytes(32), b"\x01" + bytes(31), SMALL_ORDER, b"\xff" * 32, b"\x02" + bytes(31)])
def test_malformed_spake2_messages_are_refused_without_a_crash(point: bytes) -> None:
    for side in b"A", b"B", b"S", b"\0":
        g = gateway()
        with pytest.raises(PairingFailed) as failure:
            g.receive(msgspec.structs.replace(worker().start(), spake=side + point))
        assert failure.value.reason is Reason.PROTOCOL


@pytest.mark.claim("versions-meet-at-the-lower-one-and-never-below-what-a-side-allows")
def test_versions_meet_at_the_lower_one_and_never_below_what_a_side_allows() -> None:
    w = worker(me=party(1, "w", version=3))
    g = gateway(me=party(2, "g", version=2))
    until_confirm(w, g)
    g = gateway(me=party(2, "g", version=3, min_version=2))
    with pytest.raises(PairingFailed) as failure:
        g.receive(worker().start())
    assert failure.value.reason is Reason.VERSION
    w = worker(me=party(1, "w", version=3, min_version=2))
    reply = answer(gateway(), w.start())
    with pytest.raises(PairingFailed, match="the gateway speaks version 1"):
        w.receive(reply)


def test_every_message_out_of_its_turn_ends_the_exchange() -> None:
    w = worker()
    g = gateway()
    start = w.start()
    reply = answer(g, start)
    confirm = answer(w, reply)
    gateway_confirm = answer(g, confirm)
    accepted = answer(w, gateway_confirm)
    script: list[PairingMessage] = [start, reply, confirm, gateway_confirm, accepted]
    turns: dict[type, list[list[PairingMessage]]] = {
        GatewayExchange: [[], [start], [start, confirm], [start, confirm, accepted]],
        WorkerExchange: [[], [reply], [reply, gateway_confirm]],
    }
    for make, histories in ((gateway, turns[GatewayExchange]), (worker, turns[WorkerExchange])):
        for history in histories:
            for message in script:
                side = make()
                if isinstance(side, WorkerExchange):
                    side.start()
                    with pytest.raises(LocalProtocolError):
                        side.start()
                for said in history:
                    side.receive(said)
                if (side.state, type(message)) in side.TABLE:
                    continue
                with pytest.raises(RemoteProtocolError) as error:
                    side.receive(message)
                assert error.value.reason == "pairing-order"
                assert side.state is ExchangeState.FAILED


def test_a_failed_exchange_stays_failed_and_names_no_peer() -> None:
    w = worker(WRONG)
    g = gateway()
    confirm = until_confirm(w, g)
    with pytest.raises(PairingFailed):
        g.receive(confirm)
    right = worker()
    for message in (right.start(), confirm):
        with pytest.raises(RemoteProtocolError):
            g.receive(message)
    with pytest.raises(LocalProtocolError):
        _ = g.peer
    with pytest.raises(LocalProtocolError):
        g.stored()


def test_a_refusal_ends_the_exchange_with_its_reason_at_any_time() -> None:
    for reason in Reason:
        w = worker()
        w.start()
        with pytest.raises(PairingFailed) as failure:
            w.receive(decode_pairing(encode(Refused(reason))))
        assert failure.value.reason is reason
        assert SENTENCES[reason] in str(failure.value)


def test_no_message_is_longer_than_the_stated_limit() -> None:
    name = "a" * 64
    start = Start(65535, 9999, bytes(32), name, bytes(33))
    reply = Reply(65535, bytes(32), name, bytes(33))
    for message in (start, reply, Confirm(bytes(32), bytes(64)), Accepted(bytes(32)), Refused(Reason.ABANDONED)):
        assert len(encode(message)) <= MAX_PAIRING_BYTES
        assert decode_pairing(encode(message)) == message


@pytest.mark.parametrize("name", ["", "a" * 65, "lab\x1b[2J", "lab\n", "a\u202eb"])
def test_names_that_could_fool_a_terminal_do_not_decode(name: str) -> None:
    with pytest.raises(RemoteProtocolError, match="not a message of a pairing"):
        decode_pairing(encode(Start(1, 4821, bytes(32), name, bytes(33))))


def test_the_transcript_separates_its_parts() -> None:
    """Two different exchanges whose parts, put end to end, are the same bytes."""
    spake = bytes(range(33))
    key = bytes(31) + b"x"
    one = Start(1, 7, bytes(32), "ab", spake), Reply(1, key, "cd", bytes(33))
    two = Start(1, 7, bytes(32), "a", b"b" + spake[:-1]), Reply(1, spake[-1:] + key[:-1], "xcd", bytes(33))
    assert pairing_transcript(*one, SPKI) != pairing_transcript(*two, SPKI)
    assert pairing_transcript(*one, SPKI) != pairing_transcript(*one, OTHER_SPKI)


@pytest.mark.parametrize(
    ("side", "change"),
    [
        (0, {"version": 2}),
        (0, {"nameplate": 8}),
        (0, {"worker_key": b"k" * 32}),
        (0, {"name": "x"}),
        (0, {"spake": b"s" * 33}),
        (1, {"version": 2}),
        (1, {"gateway_key": b"k" * 32}),
        (1, {"name": "x"}),
        (1, {"spake": b"s" * 33}),
    ],
)
def test_the_transcript_covers_every_field(side: int, change: dict[str, object]) -> None:
    start = Start(1, 7, bytes(32), "ab", bytes(33))
    reply = Reply(1, bytes(32), "cd", bytes(33))
    if side == 0:
        changed = pairing_transcript(msgspec.structs.replace(start, **change), reply, SPKI)
    else:
        changed = pairing_transcript(start, msgspec.structs.replace(reply, **change), SPKI)
    assert changed != pairing_transcript(start, reply, SPKI)


def test_a_forged_or_reflected_acceptance_stores_nothing() -> None:
    for forge in (lambda _: Accepted(bytes(32)), lambda own: own):
        w = worker()
        g = gateway()
        own = answer(w, answer(g, until_confirm(w, g)))
        with pytest.raises(PairingFailed):
            w.receive(forge(own))
        assert w.state is ExchangeState.FAILED
        with pytest.raises(PairingFailed):
            g.receive(Accepted(bytes(32)))
        assert g.state is ExchangeState.FAILED
