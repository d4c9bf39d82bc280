"""A trace says who made it, and nothing of it can be changed unnoticed."""

from __future__ import annotations

import zlib
from dataclasses import fields

import msgspec
import pytest

from cloud_gateway.core.policies.actions import Costs, LinkView, Outcome
from cloud_gateway.core.policies.settings import PolicySettings
from cloud_gateway.core.trace import format as trace
from cloud_gateway.core.trace.format import AnyEvent, Header, Trace, salted, seal, unseal
from edgespec.core.errors import TraceError
from edgespec.core.protocol.signing import GATEWAY_FRAME, SigningKey

KEY = SigningKey(b"k" * 32)
HEADER = Header("0.1", 1, 7, "wanspec", PolicySettings(phi=0.1), 12, False, ["ab"], "stop", True)
EVENTS: list[AnyEvent] = [
    trace.PassCosts({1: 0.1 + 0.2, 3: 1e-3}),
    trace.DraftCosts(None, 0.0, 0.0, 16),
    trace.Link(0.01, 0.02, 0.003, True),
    trace.Frame(0, 1, 12, True, 1, [0, 1], [900, 31], [5, 6], [7, 8]),
    trace.Received(1.5),
    trace.Local(2, 900, 0.5, 0.6),
    trace.Decided(1e9 + 1 / 3, 2, trace.Verified([1, 2])),
    trace.Decided(1.0, 2, trace.Drafted([2], 4)),
    trace.Decided(1.0, 2, trace.CaughtUp()),
    trace.Decided(1.0, 2, trace.Waited(1 / 3)),
    trace.Committed([31, 900], [0.25, 1 / 7]),
    trace.RoundEnded(2.0, 1, False),
    trace.Forgotten(1),
    trace.Discarded(0),
    trace.Unlinked(),
]
TRACE = Trace(HEADER, EVENTS)


def test_every_event_comes_back_to_the_last_bit() -> None:
    assert unseal(seal(TRACE, KEY)) == (TRACE, KEY.public)
    assert {type(event) for event in EVENTS} == set(AnyEvent.__args__)  # type: ignore[attr-defined]


def test_one_changed_byte_anywhere_is_refused() -> None:
    data = seal(TRACE, KEY)
    for place in range(len(data)):
        altered = bytearray(data)
        altered[place] ^= 1 << place % 8
        with pytest.raises(TraceError, match="altered"):
            unseal(bytes(altered))


@pytest.mark.parametrize("keep", [0, 5, 17, 113, 114, -1])
def test_a_file_cut_short_is_refused(keep: int) -> None:
    with pytest.raises(TraceError):
        unseal(seal(TRACE, KEY)[:keep])


def test_a_signature_for_something_else_does_not_make_a_trace() -> None:
    data = seal(TRACE, KEY)
    body = data[len(trace.MAGIC) + 96 :]
    forged = trace.MAGIC + KEY.public + KEY.sign(GATEWAY_FRAME, KEY.public + body) + body
    with pytest.raises(TraceError, match="does not verify"):
        unseal(forged)


def test_a_key_that_verifies_anything_is_refused() -> None:
    body = zlib.compress(b"")
    weak = bytes(32)
    with pytest.raises(TraceError):
        unseal(trace.MAGIC + weak + bytes(64) + body)


@pytest.mark.parametrize(
    "body",
    [b"no zlib", zlib.compress(b"no msgpack"), zlib.compress(msgspec.msgpack.encode([1, 2, 3]))],
)
def test_signed_nonsense_is_one_sentence(body: bytes) -> None:
    with pytest.raises(TraceError, match="cannot be read"):
        unseal(trace.MAGIC + KEY.public + KEY.sign(trace.KIND, KEY.public + body) + body)


def test_a_body_that_swells_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "MAX_BYTES", 1000)
    body = zlib.compress(bytes(2000))
    with pytest.raises(TraceError, match="more than 1000 bytes"):
        unseal(trace.MAGIC + KEY.public + KEY.sign(trace.KIND, KEY.public + body) + body)


def test_salted_ids_say_only_when_a_token_first_appeared() -> None:
    assert [getattr(event, "tokens", None) or getattr(event, "token", None) for event in salted(EVENTS)] == [
        None, None, None, [1, 2], None, 1, None, None, None, None, [2, 1], None, None, None, None,
    ]  # fmt: skip


def test_all_that_a_policy_can_see_has_a_place_in_a_trace() -> None:
    """A new field of these must be recorded too (core/trace/record.py), or replays decide by its default."""
    costs = [field.name for field in fields(Costs)]
    assert costs[0] == "verify_s", "that one is recorded as points"
    recorded = trace.DraftCosts.__struct_fields__
    named = {"step_s": "local_step_s", "backlog_s": "local_backlog_s", "batch_s": "batch_backlog_s"}
    local = {"leaves": "local_leaves", "points": "local_points", "token_s": "local_token_s"}
    assert [(named | local).get(name, name) for name in recorded] == costs[1:]
    assert [field.name for field in fields(LinkView)] == list(trace.Link.__struct_fields__)
    assert [field.name for field in fields(Outcome)] == ["depth", "emitted", "at_leaf", "entropy", "position"]
