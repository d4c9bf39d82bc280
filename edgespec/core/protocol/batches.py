"""Which messages share a frame."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from edgespec.core.protocol.messages import MAX_PARTS, Body, encode

FRAME_BYTES = 31
"""Of a frame's payload that are no message: session 18, number at most 9, heads of both arrays 4."""


def together(bodies: Sequence[Body], max_bytes: int) -> Iterator[Sequence[Body]]:
    """The same messages in their order, as few frames as hold them; `max_bytes`: of one frame's payload."""
    start, size = 0, FRAME_BYTES
    for end, body in enumerate(bodies):
        more = len(encode(body))
        if end > start and (end - start == MAX_PARTS or size + more > max_bytes):
            yield bodies[start:end]
            start, size = end, FRAME_BYTES
        size += more
    yield bodies[start:]
