"""The counter of TLS records: any pieces, a total before the proof, a rate after it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edgespec.parts.flood_guard.records import MAX_UNPROVEN_RECORDS, RECORDS_BURST, RECORDS_PER_S, Records


def record(size: int) -> bytes:
    return bytes([23, 3, 3]) + size.to_bytes(2, "big") + bytes(size)


def take(records: Records, data: bytes, proven: bool = False, now: float = 0.0) -> bool:
    """Whether so much is allowed."""
    return records.take(memoryview(data), proven, now) is None


@given(st.lists(st.sampled_from([0, 1, 17, 300, 16640]), max_size=30), st.lists(st.integers(1, 5000), max_size=30))
def test_records_are_counted_whatever_the_chunks(sizes: list[int], chunks: list[int]) -> None:
    records = Records()
    data = b"".join(map(record, sizes))
    at = 0
    for chunk in [*chunks, len(data)]:
        take(records, data[at : at + chunk])
        at += chunk
    assert records.count == len(sizes)


@given(st.integers(0, 300))
def test_before_the_proof_there_is_a_total(count: int) -> None:
    assert take(Records(), record(17) * count) == (count <= MAX_UNPROVEN_RECORDS)


def test_after_it_there_is_a_rate_with_a_burst() -> None:
    records = Records()
    now = 0.0
    assert take(records, record(1) * RECORDS_BURST, True, now)
    for _ in range(1000):
        now += 0.01
        assert take(records, record(1) * int(RECORDS_PER_S / 100), True, now)
    assert not take(records, record(1) * 100, True, now)
