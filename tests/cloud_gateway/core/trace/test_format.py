"""A trace says who made it, and nothing of it can be changed unnoticed."""

from __future__ import annotations

import zlib
from dataclasses import asdict, fields, replace
from typing import get_args, get_type_hints

import msgspec
import pytest

from cloud_gateway.core.policies.actions import Costs, LinkView, Wait
from cloud_gateway.core.policies.estimators import StepCurve
from cloud_gateway.core.policies.settings import PolicySettings
from cloud_gateway.core.requests import events
from cloud_gateway.core.trace import format as trace
from cloud_gateway.core.trace.format import AnyEvent, Header, Trace, salted, seal, unseal
from cloud_gateway.core.trace.record import NAMES, InputLog
from edgespec.core.errors import TraceError
from edgespec.core.protocol.signing import GATEWAY_FRAME, SigningKey
from tests.cloud_gateway.core.requests.test_generation import decoding

KEY = SigningKey(b"k" * 32)
HEADER = Header("0.1", 1, 7, PolicySettings(phi=0.1), 12, 40, 4096, True, False, [31], ["ab"], "stop", True)
EVENTS: list[AnyEvent] = [
    trace.Step(0.5, "Admitted", 11),
    trace.Step(0.6, "Assigned", 0),
    trace.PassCosts({1: 0.1 + 0.2, 3: 1e-3}),
    trace.Costs({"local_step_s": 0.004, "local_leaves": 16}),
    trace.Link({"rtt_s": 1 / 3, "rtt_high_s": 0.02, "step_s": 0.003, "ready": True}),
    trace.Frame(1.5, 12, True, 1, [0, 1], [900, 31], [5, 6], [7, 8], "used"),
    trace.Drafted(1.6, [2], [([900, 7], [0.5, 1 / 7], 0.6)]),
    trace.Decided(1e9 + 1 / 3, 2, trace.Verify([1, 2])),
    trace.Guided([2], [5]),
    trace.Verified(2.0, [31, 900], [0.25, 1 / 7], [0, 1], [31]),
    trace.Decided(1.0, 2, trace.Draft([2], 4)),
    trace.Decided(1.0, 2, trace.CatchUp()),
    trace.Decided(1.0, 2, trace.Wait(1 / 3)),
    trace.Link(None),
    trace.Suggested("lookup", [-1, 0], [900, 31], [0.5, 1 / 7]),
]
TRACE = Trace(HEADER, EVENTS)


def test_every_event_comes_back_to_the_last_bit() -> None:
    assert unseal(seal(TRACE, KEY)) == (TRACE, KEY.public)
    assert {type(event) for event in EVENTS} == set(AnyEvent.__args__)  # type: ignore[attr-defined]


@pytest.mark.claim("one-changed-byte-anywhere-is-refused")
def test_one_changed_byte_anywhere_is_refused() -> None:
    data = seal(TRACE, KEY)
    for place in range(len(data)):
        altered = bytearray(data)
        altered[place] ^= 1 << place % 8
        with pytest.raises(TraceError, match="altered|corrupt"):
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
    numbers: dict[int, int] = {}
    frame, drafted, guided, verified = (salted(EVENTS, numbers)[i] for i in (5, 6, 8, 9))
    assert frame == msgspec.structs.replace(EVENTS[5], tokens=[1, 2])
    assert drafted == msgspec.structs.replace(EVENTS[6], proposals=[([1, 3], [0.5, 1 / 7], 0.6)])
    assert guided == trace.Guided([2], [4])
    assert verified == msgspec.structs.replace(EVENTS[9], tokens=[2, 1], forced=[2])
    assert numbers == {900: 1, 31: 2, 7: 3, 5: 4}


def test_a_trace_of_another_version_is_refused_by_name() -> None:
    body = seal(TRACE, KEY)[len(trace.MAGIC) :]
    with pytest.raises(TraceError, match=r"not of the format `edgespec-trace/2`: another version"):
        unseal(b"edgespec-trace/1\n" + body)


def test_what_the_machine_does_not_book_has_a_place_in_a_trace() -> None:
    """A new input must be written too (core/trace/record.py), or replays miss it."""
    kinds = {kind for field in ("why", "scope") for kind in _literals(field)}
    assert kinds - {*NAMES} == {"none", "draft"}, "these change nothing that is decided"
    assert {*NAMES.values(), "Admitted", "Prefilled", "Preempted"} == {*get_args(trace.What)}


def _literals(field: str) -> set[str]:
    hints = [get_type_hints(kind) for kind in (events.WorkerChanged, events.Failed, events.Ended)]
    return {value for one in hints if field in one for value in get_args(one[field])}


def test_all_that_a_policy_can_see_is_written_when_it_changes() -> None:
    generation = decoding("plain", worker=None)
    log = InputLog(generation, PolicySettings(), StepCurve({1: 0.03}), 0, 1 << 20)
    log.decided(None, Costs(lambda rows: 0.03), 1.0, Wait(2.0))
    assert [type(event) for event in log.events] == [trace.PassCosts, trace.Decided], "defaults need no event"
    for field in fields(Costs)[1:]:
        log.decided(None, replace(Costs(lambda rows: 0.03), **{field.name: 7}), 1.0, Wait(2.0))  # type: ignore[arg-type]
        assert isinstance(log.events[-2], trace.Costs) and log.events[-2].changed[field.name] == 7
    link = LinkView(1.0, 2.0, 3.0, True)
    log.decided(link, Costs(lambda rows: 0.03), 1.0, Wait(2.0))
    assert log.events[-2] == trace.Link(asdict(link))
