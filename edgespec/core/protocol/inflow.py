"""Inflow limits of one connection: budgets of bytes and of WebSocket frames of every opcode.

A WebSocket library answers pings and accepts empty frames by itself. So the bytes from a peer are counted before they
reach the library, by parsing the frame headers (RFC 6455 section 5.2). Until the peer has proven a key, the totals are
limited; afterwards the rates, and most strictly the rate of frames without a message. Pure: `now` is passed in, in
seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgespec.core.errors import RemoteProtocolError
from edgespec.core.protocol.handshake import CloseCode

TREES_PER_S = 180.0
"""Tree frames that a worker sends at most; nodes drafted in between wait in its tree and share the next frame."""
TREES_BURST = 32
"""Tree frames at once, as after a commit for each of many requests; below the gateway's own burst."""
MAX_HEAD_BYTES = 8192
"""Of the HTTP request or response before the first frame; in this protocol they have about 250."""
FRAMES_AT_ONCE = 16
"""Frames processed at once; more wait for the next iteration of the event loop, so that others are served."""
_HEAD_END = b"\r\n\r\n"
_BINARY_AND_TEXT = (1, 2)


@dataclass(frozen=True, slots=True)
class InflowLimits:
    """Bounds of one connection. `unproven_*` are totals, from the first byte until the peer has proven its key."""

    unproven_bytes: int = 65_536
    """The handshake takes less than 4 KiB."""
    unproven_frames: int = 64
    """The handshake takes two."""
    frames_per_s: float = 1000.0
    """A gateway sends a commit per round of each request; more wait in the peer's own buffers."""
    frames_burst: int = 64
    bytes_per_s: float = 4e6
    """A worker's trees make 0.5 MB/s at 1000 frames a second; a prompt of 8192 tokens is 40 KB."""
    bytes_burst: int = 1 << 20
    idle_per_s: float = 20.0
    """Frames without a message (ping, pong, close, continuation, empty), which this protocol does not use."""
    idle_burst: int = 100
    """Five seconds at the rate; one frame more ends the connection."""


class Bucket:
    """A rate limit with a burst (GCRA, ITU-T I.371 annex A)."""

    __slots__ = ("_burst_s", "_paid_at", "_step_s")

    def __init__(self, per_s: float, burst: float) -> None:
        self._step_s = 1 / per_s
        self._burst_s = burst / per_s
        self._paid_at = float("-inf")

    def take(self, count: int, now: float) -> None:
        """Counts `count` items at `now`."""
        self._paid_at = max(self._paid_at, now) + count * self._step_s

    @property
    def free_at(self) -> float:
        """The time from which on more may be taken."""
        return self._paid_at - self._burst_s


class Inflow:
    """Counts what one connection sends, from its first byte; raises RemoteProtocolError (`flood`) beyond the limits."""

    def __init__(self, limits: InflowLimits) -> None:
        self.frames = 0
        self.bytes = 0
        """Passed on so far."""
        self.proven = False
        """Set once the peer has proven its key; from then on rates are limited instead of totals."""
        self.wake_at: float | None = None
        """When to call `take` again for waiting bytes; None if none wait, or more bytes are needed."""
        self._limits = limits
        self._in_head = True
        self._scanned = 0
        self._is_websocket = True
        self._payload = 0
        self._frame_rate = Bucket(limits.frames_per_s, limits.frames_burst)
        self._byte_rate = Bucket(limits.bytes_per_s, limits.bytes_burst)
        self._idle_rate = Bucket(limits.idle_per_s, limits.idle_burst)

    def take(self, data: bytearray, now: float) -> int:
        """How many of the first bytes of `data` may be processed now; `data` is all that was not passed on yet."""
        self.wake_at = None
        start = 0
        if self._in_head:
            start = self._head(data)
            if self._in_head:
                return 0

        free_at = max(self._frame_rate.free_at, self._byte_rate.free_at)
        if self.proven and free_at > now:
            self.wake_at = free_at
            return 0
        if not self._is_websocket:
            return self._passed(len(data), 0, now)

        max_frames = 1  # what follows the frame that proves the peer is held to the rates
        if self.proven:
            max_frames = FRAMES_AT_ONCE
        end, frames = self._walk(data, start, max_frames, now)
        if frames == max_frames:
            self.wake_at = now
        return self._passed(end, frames, now)

    def _head(self, data: bytearray) -> int:
        """Returns the position after the HTTP head, if it is complete."""
        end = data.find(_HEAD_END, max(0, self._scanned - len(_HEAD_END)))
        self._scanned = len(data)
        self._in_head = end < 0
        if self._in_head:
            end = len(data)
        if end > MAX_HEAD_BYTES:
            raise flood(f"an HTTP head of more than {MAX_HEAD_BYTES} bytes")

        self._is_websocket = not data.startswith(b"HTTP/") or data.startswith(b"HTTP/1.1 101")
        return end + len(_HEAD_END)

    def _walk(self, data: bytearray, start: int, max_frames: int, now: float) -> tuple[int, int]:
        """The end of what may be processed, and the number of frames that begin before it, at most `max_frames`."""
        position = start
        frames = 0
        while True:
            step = min(self._payload, len(data) - position)
            position += step
            self._payload -= step
            if frames >= max_frames:
                return position, frames

            header = _header(data, position)
            if header is None:
                return position, frames

            size, self._payload = header
            if data[position] & 0x0F not in _BINARY_AND_TEXT or not self._payload:
                self._idle(now)
            position += size
            frames += 1

    def _idle(self, now: float) -> None:
        """Counts a frame without a message."""
        self._idle_rate.take(1, now)
        if self.proven and self._idle_rate.free_at > now:
            raise flood(f"more than {self._limits.idle_per_s:g} frames without a message a second")

    def _passed(self, count: int, frames: int, now: float) -> int:
        """Counts what is passed on; returns `count`."""
        self.bytes += count
        self.frames += frames
        if self.proven:
            self._frame_rate.take(frames, now)
            self._byte_rate.take(count, now)
        elif self.frames > self._limits.unproven_frames or self.bytes > self._limits.unproven_bytes:
            raise flood(f"{self.frames} frames and {self.bytes} bytes before it has proven a key")

        return count


def _header(data: bytearray, at: int) -> tuple[int, int] | None:
    """Sizes of the frame header at `at` and of the payload that follows; None while the header is incomplete."""
    if len(data) < at + 2:
        return None

    length = data[at + 1] & 0x7F
    size = 2
    if length > 125:
        size = 4 if length == 126 else 10
        length = int.from_bytes(data[at + 2 : at + size], "big")
    if data[at + 1] & 0x80:  # masked
        size += 4
    if len(data) < at + size:
        return None

    return size, length


def flood(text: str) -> RemoteProtocolError:
    """The error of a peer that has sent more than allowed, which is `text`."""
    return RemoteProtocolError("flood", text, close_code=CloseCode.FLOOD)
