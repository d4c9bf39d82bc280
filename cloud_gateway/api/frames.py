"""The even form of a stream: frames of one size on a clock, whatever is generated, drafted or accepted.

Sizes and times of events show an observer which drafts were right, and so which of some known prompts was asked (Wei et
al., arXiv 2411.01076). Of frames only the number can be seen, and it is one of few. Times are passed in, in seconds.
"""

from __future__ import annotations

TICK_S = 0.05
"""Between frames. Text waits half of it in the mean, which a reader does not notice."""
FRAME_BYTES = 1024
"""Of one choice: an event without text has about 270 bytes, so this has room for 15 kB of text a second."""
LOGPROBS_FRAMES = 8
"""Times larger where log-probabilities were requested, with 20 alternatives 1.5 kB a token."""


class Frames:
    """Takes events at any time and returns a frame at each place of a clock that started with the stream."""

    def __init__(self, size: int, now: float) -> None:
        """`size` in bytes; it must not depend on prompt or completion."""
        self.size, self._began, self._place = size, now, 0
        self._waiting = bytearray()
        self._last: bytes | None = None
        self.ended = False
        """Whether the last event is in the frame that was returned last."""

    @property
    def due(self) -> float:
        """When the next frame is to be sent."""
        return self._began + (self._place + 1) * TICK_S

    @property
    def full(self) -> bool:
        """Whether more waits than the next frame takes."""
        return len(self._waiting) > self.size

    def add(self, event: bytes) -> None:
        """An event that is to be sent as soon as possible; a frame may end within it."""
        self._waiting += event

    def end(self, event: bytes) -> None:
        """The last event, at which clients close the connection: sent at an end of the clock, see `_ends_between`."""
        self._last = event

    def frame(self, now: float) -> bytes:
        """The frame that is due. Places that have passed meanwhile are left out."""
        before, self._place = self._place, max(self._place + 1, int((now - self._began) / TICK_S))
        last = self._last or b""
        if self._last is None or len(self._waiting) + len(last) > self.size or not _ends_between(before, self._place):
            last = b""
        else:
            self.ended = True
        data = bytes(self._waiting[: self.size])
        del self._waiting[: self.size]
        return data + padding(self.size - len(data) - len(last)) + last


def padding(size: int) -> bytes:
    """An empty line, or a comment, which clients ignore (WHATWG HTML, section 9.2.6)."""
    return b"\n" * size if size < len(b":\n\n") else b":" + b" " * (size - len(b":\n\n")) + b"\n\n"


def _ends_between(before: int, place: int) -> bool:
    """Whether a stream may end at a place in (before, place]: 1, 2, 4, 8 and so on.

    Completions of one length take times that differ by less than a factor of two, as more or fewer drafts are right.
    """
    return place.bit_length() > before.bit_length()
