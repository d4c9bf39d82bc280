"""Budgets of bytes and frames: a prefix passes, independent of the chunks, and never more than the limits allow."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.core.errors import RemoteProtocolError
from edgespec.core.protocol.inflow import FRAMES_AT_ONCE, MAX_HEAD_BYTES, Inflow, InflowLimits

HEAD = b"GET /link HTTP/1.1\r\nHost: gw\r\n\r\n"
WIDE = InflowLimits(10**9, 10**9, 1e9, 10**9, 1e12, 10**12, 1e9, 10**9)


def frame(payload: int, opcode: int = 2, masked: bool = True, fin: bool = True) -> bytes:
    mask = 0x80 if masked else 0
    if payload < 126:
        length = bytes([mask | payload])
    elif payload < 1 << 16:
        length = bytes([mask | 126]) + payload.to_bytes(2, "big")
    else:
        length = bytes([mask | 127]) + payload.to_bytes(8, "big")
    return bytes([(0x80 if fin else 0) | opcode]) + length + bytes(4 if masked else 0) + bytes(payload)


@dataclass
class Driven:
    """An inflow with the buffer and the clock of a connection."""

    inflow: Inflow
    now: float = 0.0

    def __post_init__(self) -> None:
        self.held = bytearray()
        self.passed = bytearray()
        self.calls = 0

    def feed(self, data: bytes, wait: bool = True) -> None:
        """Feeds all data and calls `take` whenever it is due; `wait` advances the clock until then."""
        self.held += data
        while self.held:
            before = self.inflow.frames
            count = self.inflow.take(self.held, self.now)
            assert self.inflow.frames - before <= FRAMES_AT_ONCE
            self.passed += self.held[:count]
            del self.held[:count]
            self.calls += 1
            wake_at = self.inflow.wake_at
            if wake_at is None or (wake_at > self.now and not wait):
                return
            assert count or wake_at > self.now
            self.now = max(self.now, wake_at)


frames = st.lists(
    st.builds(
        frame, st.sampled_from([0, 1, 5, 125, 126, 300, 65536]), st.sampled_from([0, 1, 2, 8, 9, 10]), st.booleans()
    ),
    max_size=40,
)


@given(frames, st.lists(st.integers(1, 200), max_size=30), st.sampled_from([HEAD, b"HTTP/1.1 101 ok\r\n\r\n"]))
def test_all_that_came_is_passed_on_in_order_whatever_the_chunks(
    some: list[bytes], sizes: list[int], head: bytes
) -> None:
    data = head + b"".join(some)
    driven = Driven(Inflow(WIDE))
    at = 0
    for size in [*sizes, len(data)]:
        driven.feed(data[at : at + size])
        at += size
    assert bytes(driven.passed) == data and driven.inflow.frames == len(some) and driven.inflow.bytes == len(data)


@pytest.mark.claim("an-unproven-connection-has-64-frames")
@given(
    st.integers(0, 300),
    st.sampled_from([0, 1, 2, 8, 9, 10]),
    st.sampled_from([0, 1, 700, 2000, 8000, 65_536]),
    st.sampled_from([100, 1460, 1 << 20]),
)
def test_before_the_proof_no_more_than_the_totals_pass(count: int, opcode: int, payload: int, chunk: int) -> None:
    limits = InflowLimits()
    driven = Driven(Inflow(limits))
    one = frame(payload, opcode)
    allowed = count <= limits.unproven_frames and len(HEAD) + count * len(one) <= limits.unproven_bytes
    data = HEAD + one * count
    try:
        for start in range(0, len(data), chunk):
            driven.feed(data[start : start + chunk])
        assert allowed
    except RemoteProtocolError as error:
        assert error.reason == "flood" and not allowed
    assert len(driven.passed) <= limits.unproven_bytes
    assert len(driven.passed) <= len(HEAD) + limits.unproven_frames * len(one)


def test_what_comes_together_with_the_proof_is_not_counted_before_it() -> None:
    inflow = Inflow(InflowLimits())
    proof = frame(500)
    more = frame(40_000) * 3
    held = bytearray(HEAD + proof + more)
    count = inflow.take(held, 0.0)
    assert (count, inflow.wake_at) == (len(HEAD + proof), 0.0), "alone, so that the session can take it in"
    inflow.proven = True
    del held[:count]
    assert inflow.take(held, 0.0) == len(more)


@pytest.mark.claim("a-flood-is-read-no-faster-than-allowed")
@given(st.integers(1, 2000), st.sampled_from([1, 300, 5000]))
def test_messages_pass_at_their_rate_and_none_is_lost(count: int, payload: int) -> None:
    limits = InflowLimits(frames_per_s=100.0, frames_burst=50, bytes_per_s=100_000.0, bytes_burst=20_000)
    driven = Driven(Inflow(limits))
    driven.feed(HEAD)
    driven.inflow.proven = True
    one = frame(payload)
    driven.feed(one * count)
    size = count * len(one)
    assert len(driven.passed) == len(HEAD) + size
    at_rate_s = max((count - 50 - FRAMES_AT_ONCE) / 100, (size - 20_000 - len(one) * FRAMES_AT_ONCE) / 100_000)
    assert driven.now >= at_rate_s - 1e-6


def test_frames_without_messages_have_a_burst_and_then_end_the_connection() -> None:
    driven = Driven(Inflow(InflowLimits()))
    driven.feed(HEAD)
    driven.inflow.proven = True
    driven.feed(frame(0, 9) * 100)
    for _ in range(100):
        driven.now += 0.05
        driven.feed(frame(4, 10))
    with pytest.raises(RemoteProtocolError, match="20 frames without a message"):
        driven.feed(frame(1, 0) * 20)


def test_a_head_is_bounded_and_a_refusal_may_have_a_body() -> None:
    driven = Driven(Inflow(InflowLimits()))
    with pytest.raises(RemoteProtocolError, match="HTTP head"):
        for _ in range(MAX_HEAD_BYTES + 2):
            driven.feed(b"x")
    refused = Driven(Inflow(InflowLimits()))
    answer = b"HTTP/1.1 404 Not Found\r\nContent-Length: 300\r\n\r\n" + b"\x89\x00" * 150
    refused.feed(answer)
    assert bytes(refused.passed) == answer and refused.inflow.frames == 0


def test_a_frame_that_promises_more_than_can_come_takes_no_memory() -> None:
    driven = Driven(Inflow(WIDE))
    driven.feed(HEAD + bytes([0x82, 0xFF]) + b"\xff" * 8 + bytes(4))
    for _ in range(100):
        driven.feed(bytes(1000))
    assert not driven.held and driven.inflow.frames == 1
