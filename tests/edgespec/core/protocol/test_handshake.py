"""The handshake: admission, signatures of both sides, and which refusals a worker accepts."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from edgespec.core.errors import EdgespecError, PairingError, RemoteProtocolError, TokenizerMismatch
from edgespec.core.protocol import messages as m
from edgespec.core.protocol import signing
from edgespec.core.protocol.gateway_session import GatewaySession
from edgespec.core.protocol.handshake import (
    CloseCode,
    GatewayIdentity,
    Pin,
    Standing,
    WorkerIdentity,
    final_error,
    notice_of,
    session_id,
    transcript,
)
from edgespec.core.protocol.session import SessionState, WorkerSession
from edgespec.core.protocol.signing import SigningKey
from tests.support.sessions import (
    GATEWAY,
    GATEWAY_KEY,
    GATEWAY_NONCE,
    MODEL,
    PIN,
    SPKI,
    TOKENIZER,
    WORKER,
    WORKER_KEY,
    WORKER_NONCE,
    deliver,
    gateway,
    linked,
    reason_of,
    worker,
)


def test_a_correct_handshake_opens_both_sides_with_one_session_id() -> None:
    w, g = linked()
    assert w.state is g.state is SessionState.OPEN
    assert w.session == g.session and len(w.session) == 16
    assert w.peer_key == GATEWAY_KEY.public and g.peer_key == WORKER_KEY.public
    assert g.hello is not None and g.hello.name == "lab-7"


@pytest.mark.claim("every-field-of-the-hello-is-bound")
@pytest.mark.parametrize("field", [name for name in m.Hello.__struct_fields__ if name != "protocol"])
def test_every_field_of_the_hello_is_bound(field: str) -> None:
    """A relay that changes anything in the Hello makes the worker refuse the Challenge."""
    w = worker()
    g = gateway()
    hello = m.decode_handshake(w.outgoing()[0])
    value = getattr(hello, field)
    others = {"name": "other", "vocab_size": 5, "sequences": 5, "worker_key": SigningKey(b"x" * 32).public}
    changed = others.get(field, b"x" * 32)
    assert value != changed
    if field == "tokenizer_digest":
        g = GatewaySession(
            GatewayIdentity(GATEWAY_KEY, "gw", SPKI, b"x" * 32), lambda key: "paired", GATEWAY_NONCE, 0.0
        )
    g.receive(m.encode(msgspec.structs.replace(hello, **{field: changed})), 0.0)
    assert reason_of(w, g.outgoing()[0]).reason == "bad-signature"


@pytest.mark.claim("every-field-of-the-hello-is-bound")
@pytest.mark.parametrize(
    ("field", "reason"),
    [
        ("gateway_key", "gateway-key"),
        ("nonce", "bad-signature"),
        ("spki_hash", "pin"),
        ("tokenizer_digest", "bad-signature"),
    ],
)
def test_every_field_of_the_challenge_is_bound(field: str, reason: str) -> None:
    w = worker()
    g = gateway()
    deliver(w, g)
    challenge = m.decode_handshake(g.outgoing()[0])
    changed = msgspec.structs.replace(challenge, **{field: b"x" * 32})
    assert reason_of(w, m.encode(changed)).reason == reason


def test_a_gateway_that_lets_another_tokenizer_in_is_not_served() -> None:
    w = worker()
    hello = m.decode_handshake(w.outgoing()[0])
    assert isinstance(hello, m.Hello)
    challenge = m.Challenge(GATEWAY_KEY.public, GATEWAY_NONCE, SPKI, b"x" * 32, bytes(64))
    signature = GATEWAY_KEY.sign(signing.GATEWAY_CHALLENGE, transcript(hello, challenge))
    rightly_signed = msgspec.structs.replace(challenge, signature=signature)
    assert reason_of(w, m.encode(rightly_signed)).reason == "tokenizer"


def test_a_relay_that_ends_tls_is_detected_before_anything_is_sent() -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        worker(seen=b"r" * 32)
    assert caught.value.reason == "pin"


def test_a_proof_of_another_key_does_not_get_in() -> None:
    w = worker()
    g = gateway()
    deliver(w, g)
    deliver(g, w)
    forged = SigningKey(b"x" * 32).sign(signing.WORKER_PROOF, g._transcript)
    assert reason_of(g, m.encode(m.Proof(forged))).reason == "bad-signature"


@pytest.mark.claim("a-recorded-proof-is-worth-nothing-in-the-next-session")
def test_a_recorded_proof_is_worth_nothing_in_the_next_session() -> None:
    w = worker()
    g = gateway()
    deliver(w, g)
    deliver(g, w)
    recorded = w.outgoing()[0]
    w2 = worker()
    g2 = gateway(nonce=b"3" * 32)
    deliver(w2, g2)
    assert reason_of(g2, recorded).reason == "bad-signature"


@pytest.mark.parametrize(
    ("standing", "code", "final"),
    [
        ("unpaired", 4401, None),
        ("revoked", 4403, PairingError),
        ("expired", 4410, PairingError),
        ("version", 4426, RemoteProtocolError),
    ],
)
def test_a_worker_that_may_not_link_gets_a_signed_bye(
    standing: Standing, code: int, final: type[EdgespecError] | None
) -> None:
    """It stops for what the gateway has a record of, and goes on trying if there is none."""
    w = worker()
    g = gateway(standing)
    deliver(w, g)
    deliver(g, w)
    raised = reason_of(g, w.outgoing()[0])
    assert (raised.reason, raised.close_code) == (standing, code)
    (bye,) = deliver(g, w)
    assert bye == m.Bye(standing) and w.state is SessionState.CLOSED
    ended = final_error(bye.reason, "The gateway ended the link.")
    assert ended is None if final is None else isinstance(ended, final)
    notice = notice_of(bye.reason, "7ba1073c5e2f9d40")
    assert (notice is not None) == (final is None)
    assert notice is None or ("7ba1073c5e2f9d40" in notice.text and "`edgespec pair`" in notice.text)


@pytest.mark.claim("who-is-paired-cannot-be-asked-with-a-public-key")
@pytest.mark.parametrize("standing", ["paired", "unpaired", "revoked"])
def test_without_its_secret_a_keys_pairing_status_is_not_revealed(standing: Standing) -> None:
    """The same challenge, and the same error for a wrong proof: the lookup does not take place."""
    asked: list[bytes] = []

    def lookup(key: bytes) -> Standing:
        asked.append(key)
        return standing

    g = GatewaySession(GATEWAY, lookup, GATEWAY_NONCE, 0.0)
    deliver(worker(), g)
    (challenge,) = g.outgoing()
    same = gateway()
    deliver(worker(), same)
    assert same.outgoing() == [challenge]
    error = reason_of(g, m.encode(m.Proof(bytes(64))))
    assert (error.reason, error.close_code, g.outgoing(), asked) == ("bad-signature", 4400, [], [])


def test_another_tokenizer_is_refused_naming_both_digests() -> None:
    w = worker(tokenizer_digest=b"\xab" * 32)
    g = gateway()
    assert reason_of(g, w.outgoing()[0]).close_code == CloseCode.TOKENIZER
    (refuse,) = deliver(g, w)
    error = final_error(refuse.reason, refuse.message)
    assert isinstance(error, TokenizerMismatch)
    assert ("ab" * 8) in str(error) and TOKENIZER.hex()[:16] in str(error)


OTHER_TOKENIZER = {"tokenizer_digest": b"\xab" * 32}


@pytest.mark.claim("a-forged-refusal-does-not-stop-the-worker")
@pytest.mark.parametrize("forged", [{"reason": "version"}, {"message": "Fetch another draft model at example.org."}])
def test_a_forged_refusal_does_not_stop_the_worker(forged: dict[str, str]) -> None:
    w = worker(**OTHER_TOKENIZER)
    g = gateway()
    reason_of(g, w.outgoing()[0])
    refuse = m.decode_handshake(g.outgoing()[0])
    assert isinstance(refuse, m.Refuse)
    assert reason_of(w, m.encode(msgspec.structs.replace(refuse, **forged))).reason == "bad-signature"


@pytest.mark.claim("a-forged-refusal-does-not-stop-the-worker")
def test_a_forged_or_recorded_bye_does_not_stop_the_worker() -> None:
    w = worker()
    g = gateway("revoked")
    deliver(w, g)
    deliver(g, w)
    reason_of(g, w.outgoing()[0])
    recorded = g.outgoing()[0]
    later = WorkerSession(WORKER, PIN, SPKI, b"9" * 32, 0.0)
    again = gateway("revoked", nonce=b"3" * 32)
    deliver(later, again)
    deliver(again, later)
    assert reason_of(later, recorded).reason == "session"
    forged = worker()
    own = gateway()
    deliver(forged, own)
    deliver(own, forged)
    bye = m.encode(m.Frame(forged.session, 1, [m.Bye("revoked")]))
    assert reason_of(forged, signing.seal(WORKER_KEY, signing.GATEWAY_FRAME, bye)).reason == "bad-signature"


@pytest.mark.claim("a-forged-refusal-does-not-stop-the-worker")
def test_a_recorded_refusal_does_not_stop_the_worker_later() -> None:
    g = gateway()
    reason_of(g, worker(**OTHER_TOKENIZER).outgoing()[0])
    recorded = g.outgoing()[0]
    later = WorkerSession(WORKER, PIN, SPKI, b"9" * 32, 0.0)
    assert reason_of(later, recorded).reason == "bad-signature"


@pytest.mark.parametrize(
    "hello",
    [
        ["hello", "edgespec/1", b"", "another shape"],
        ["hello", "edgespec/2.1", WORKER_KEY.public, WORKER_NONCE, TOKENIZER, MODEL, 49152, 4, "lab-7"],
        ["hello", "edgespec/3", *range(30)],
    ],
)
def test_another_version_gets_a_refusal_whatever_its_hello_contains(hello: list[Any]) -> None:
    g = gateway()
    error = reason_of(g, m.encode(hello))
    assert (error.reason, error.close_code) == ("version", 4426)
    refuse = m.decode_handshake(g.outgoing()[0])
    assert isinstance(refuse, m.Refuse) and "edgespec/2" in refuse.message and hello[1] in refuse.message


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "malformed"),
        (b"\xff" * 40, "malformed"),
        (b"\x91" * 2000, "malformed"),
        (m.encode(["hello", "edgespec/2"]), "malformed"),
        (m.encode(["hello", "\x1b[31m"]), "malformed"),
        (b"\x92\xa5hello\xa2\xff\xfe", "malformed"),
        (bytes(2049), "oversize"),
        (m.encode(m.Proof(bytes(64))), "unexpected"),
    ],
)
def test_a_bad_first_message_ends_it(data: bytes, reason: str) -> None:
    assert reason_of(gateway(), data).reason == reason


def test_a_small_order_key_is_refused_before_the_list_is_asked() -> None:
    def never(key: bytes) -> Standing:
        raise AssertionError("asked")

    g = GatewaySession(GATEWAY, never, GATEWAY_NONCE, 0.0)
    hello = m.decode_handshake(worker().outgoing()[0])
    assert reason_of(g, m.encode(msgspec.structs.replace(hello, worker_key=b"\1" + bytes(31)))).reason == "weak-key"


@pytest.mark.claim("what-does-not-fit-is-refused-at-the-edge")
def test_the_text_of_a_refusal_quotes_no_control_characters_of_the_peer() -> None:
    error = reason_of(gateway(), m.encode(["\x1b[2Jhello\n", "x"]))
    assert str(error).isprintable()


# --- the worked example of docs/protocol.md ----------------------------------------------------------------------


def vector() -> dict[str, str]:
    """The example link of docs/protocol.md, byte for byte."""
    worker_key = SigningKey(bytes(range(32)))
    gateway_key = SigningKey(bytes(range(32, 64)))
    tokenizer, model, spki = (hashlib.sha256(name).digest() for name in (b"tokenizer", b"model", b"spki"))
    me = WorkerIdentity(worker_key, "lab-7", tokenizer, model, 49152, 4)
    w = WorkerSession(me, Pin(gateway_key.public, spki), spki, bytes([0x11]) * 32, 0.0)
    identity = GatewayIdentity(gateway_key, "gw", spki, tokenizer)
    g = GatewaySession(identity, lambda key: "paired", bytes([0x22]) * 32, 0.0)
    (hello,) = w.outgoing()
    g.receive(hello, 0.0)
    (challenge,) = g.outgoing()
    w.receive(challenge, 0.0)
    (proof,) = w.outgoing()
    g.receive(proof, 0.0)
    (welcome,) = g.outgoing()
    w.receive(welcome, 0.0)
    both = transcript(m.decode_handshake(hello), m.decode_handshake(challenge))
    assert session_id(both) == g.session
    prefix = hashlib.sha256(b"".join(t.to_bytes(4, "little") for t in (1, 2, 3))).digest()
    tree = w.send(m.Tree(1, 1, 3, prefix, 1, [0, 1], [5, 6], [105, 223], [700, 900]))
    return {
        "worker public key": worker_key.public.hex(),
        "gateway public key": gateway_key.public.hex(),
        "Hello": hello.hex(),
        "transcript": both.hex(),
        "session id": g.session.hex(),
        "Challenge": challenge.hex(),
        "Proof": proof.hex(),
        "Welcome frame": welcome.hex(),
        "Tree frame": tree.hex(),
    }


def test_the_worked_example_of_the_specification_is_what_the_code_does() -> None:
    text = (Path(__file__).parents[4] / "docs" / "protocol.md").read_text()
    squeezed = "".join(text.split())
    values = vector()
    for name in ("worker public key", "gateway public key", "Hello", "transcript", "session id", "Proof", "Tree frame"):
        print(f"{name}: {values[name]}")
        assert values[name].rstrip("0") in squeezed, name


def test_an_implementation_of_the_specification_makes_the_same_bytes() -> None:
    """The slow twin: hashlib, struct, msgpack and another Ed25519 library, following docs/protocol.md word by word."""
    worker_key = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    gateway_key = Ed25519PrivateKey.from_private_bytes(bytes(range(32, 64)))
    w, g = (key.public_key().public_bytes_raw() for key in (worker_key, gateway_key))
    tokenizer, model, spki = (hashlib.sha256(name).digest() for name in (b"tokenizer", b"model", b"spki"))
    pack = msgspec.msgpack.encode

    def lengths(*fields: bytes) -> bytes:
        return b"".join(struct.pack(">I", len(field)) + field for field in fields)

    hello = ["hello", "edgespec/2", w, b"\x11" * 32, tokenizer, model, 49152, 4, "lab-7"]
    numbers = struct.pack(">Q", 49152), struct.pack(">Q", 4)
    said = lengths(
        b"edgespec/2", w, b"\x11" * 32, tokenizer, model, *numbers, b"lab-7", g, b"\x22" * 32, spki, tokenizer
    )
    both = hashlib.sha256(b"edgespec/2 transcript\0" + said).digest()
    session = hashlib.sha256(b"edgespec/2 session\0" + both).digest()[:16]
    challenged = gateway_key.sign(b"edgespec/2 gateway-challenge\0" + both)
    proven = worker_key.sign(b"edgespec/2 worker-proof\0" + both)

    def envelope(key: Ed25519PrivateKey, kind: bytes, message: list[Any]) -> bytes:
        payload = pack([session, 1, [message]])
        rest = struct.pack(">H", len(payload)) + payload
        rest += bytes(512 - 64 - len(rest))
        return key.sign(b"edgespec/2 " + kind + b"\0" + rest) + rest

    prefix = hashlib.sha256(struct.pack("<III", 1, 2, 3)).digest()
    tree = ["tree", 1, 1, 3, prefix, 1, [0, 1], [5, 6], [105, 223], [700, 900]]
    theirs = {
        "Hello": pack(hello),
        "Challenge": pack(["challenge", g, b"\x22" * 32, spki, tokenizer, challenged]),
        "Proof": pack(["proof", proven]),
        "Welcome frame": envelope(gateway_key, b"gateway-frame", ["welcome", "gw", 4]),
        "Tree frame": envelope(worker_key, b"worker-frame", tree),
    }
    ours = vector()
    assert {name: data.hex() for name, data in theirs.items()} == {name: ours[name] for name in theirs}
