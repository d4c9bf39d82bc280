"""A trace says who made it, and nothing of it can be changed unnoticed."""

from __future__ import annotations

import zlib
from typing import get_args

import msgspec
import pytest
from msgspec.structs import replace

from cloud_gateway.core.policies.estimators import StepCurve
from cloud_gateway.core.policies.policy import Costs, LinkView, Wait
from cloud_gateway.core.policies.settings import PolicySettings
from cloud_gateway.core.requests import events
from cloud_gateway.engine.exchange import PolicyStart
from cloud_gateway.parts.request_traces import format as trace
from cloud_gateway.parts.request_traces import input_log
from cloud_gateway.parts.request_traces.format import Header, Trace, TraceError, seal, unseal
from cloud_gateway.parts.request_traces.input_log import InputLog
from edgespec.core.protocol.signing import GATEWAY_FRAME, SigningKey
from tests.cloud_gateway.core.requests.test_generation import decoding

START = PolicyStart(PolicySettings(), StepCurve({1: 0.03}))
KEY = SigningKey(b"k" * 32)
HEADER = Header("0.1", 1, 7, PolicySettings(phi=0.1), 12, 40, 4096, True, False, [31], ["ab"], "stop", True)
COSTS = Costs(None, 0.004, local_points=((1, 1e-3),))
LINK = LinkView(1 / 3, 0.02, 0.003, True)
EVENTS: list[trace.AnyEvent] = [
    events.Admitted(11),
    events.Read(1, 0.1),
    events.Preempted(),
    events.WorkerChanged("ab", "assigned"),
    events.Failed("own-pass", ""),
    events.Ended("left"),
    trace.Frame("ab", 12, True, 1, [0, 1], [900, 31], [5, 6], [7, 8]),
    trace.Drafted([2], [([900, 7], [0.5, 1 / 7], 0.6)]),
    trace.Decided(LINK, COSTS, {1: 0.1 + 0.2, 3: 1e-3}, 2, trace.Act("verify", [1, 2])),
    trace.Guided([2], [5]),
    trace.Verified([31, 900], [0.25, 1 / 7], [31]),
    trace.Decided(None, COSTS, {}, 2, trace.Act("wait", value=1 / 3)),
    trace.Suggested("lookup", [-1, 0], [900, 31], [0.5, 1 / 7]),
]
TRACE = Trace(HEADER, [(1e9 + number / 3, event) for number, event in enumerate(EVENTS)])


def test_every_event_comes_back_to_the_last_bit() -> None:
    again, signer = unseal(seal(TRACE, KEY))
    assert signer == KEY.public and trace.encode(again) == trace.encode(TRACE)
    assert {type(event) for event in EVENTS} == {*get_args(trace.AnyEvent)}


def test_a_trace_has_a_place_for_every_event_of_the_machine() -> None:
    of_machine = get_args(events.Event)
    named = {kind.__name__ for kind in get_args(trace.AnyEvent)}
    assert {kind.__name__ for kind in of_machine} - named == {"FrameArrived"} and "Frame" in named


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
    "body", [b"no zlib", zlib.compress(b"no msgpack"), zlib.compress(msgspec.msgpack.encode([1, 2, 3]))]
)
def test_signed_nonsense_is_one_sentence(body: bytes) -> None:
    with pytest.raises(TraceError, match="cannot be read"):
        unseal(trace.MAGIC + KEY.public + KEY.sign(trace.KIND, KEY.public + body) + body)


def test_a_body_that_swells_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "MAX_BYTES", 1000)
    body = zlib.compress(bytes(2000))
    with pytest.raises(TraceError, match="more than 1000 bytes"):
        unseal(trace.MAGIC + KEY.public + KEY.sign(trace.KIND, KEY.public + body) + body)


@pytest.mark.claim("a-trace-has-a-bounded-number-of-events-and-times")
@pytest.mark.parametrize("now", [-1.0, 2.0**32 + 1, 5e15, float("inf"), float("nan")])
def test_a_time_that_no_clock_shows_is_refused(now: float) -> None:
    with pytest.raises(TraceError, match="cannot be read"):
        unseal(seal(Trace(HEADER, [(now, events.Admitted(11))]), KEY))


@pytest.mark.claim("a-trace-has-a-bounded-number-of-events-and-times")
def test_as_many_events_as_allowed_are_read_and_one_more_is_refused() -> None:
    entries: list[trace.Entry] = [(1.0, events.Read(1))] * trace.MAX_EVENTS
    assert len(unseal(seal(Trace(HEADER, entries), KEY))[0].entries) == trace.MAX_EVENTS
    with pytest.raises(TraceError, match="cannot be read"):
        unseal(seal(Trace(HEADER, [*entries, entries[0]]), KEY))


def test_a_request_of_too_many_events_is_recorded_up_to_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_log, "MAX_EVENTS", 3)
    log = InputLog(decoding("plain", worker=None), START, 0, 1 << 20)
    for number in range(4):
        log.decided(None, COSTS, float(number), Wait(2.0))
        assert log.complete == (number < 3)
    assert len(log.entries) == 3 and not log.as_trace("0", "stop").header.complete


def test_a_trace_of_another_version_is_refused_by_name() -> None:
    body = seal(TRACE, KEY)[len(trace.MAGIC) :]
    with pytest.raises(TraceError, match=r"not of the format `edgespec-trace/3`: another version .* Record"):
        unseal(b"edgespec-trace/2\n" + body)


def test_all_that_a_policy_can_see_is_written() -> None:
    generation = decoding("plain", worker=None)
    log = InputLog(generation, START, 0, 1 << 20)
    log.decided(LINK, COSTS, 1.0, Wait(2.0))
    log.decided(None, COSTS, 1.5, Wait(2.0))
    (_, first), (now, second) = log.as_trace("0", "open").entries
    assert isinstance(first, trace.Decided) and isinstance(second, trace.Decided)
    assert (first.link, replace(first.costs, verify_s=COSTS.verify_s), first.curve) == (LINK, COSTS, {1: 0.03})
    assert (now, second.link, second.curve, second.act) == (1.5, None, {}, trace.Act("wait", value=2.0))
