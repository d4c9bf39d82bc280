"""Stored texts of one scope, and the places in them at which the end of another text occurs. Pure.

A segment holds some texts and a suffix array over them. Each text is stored backwards, its tokens as big-endian
numbers, so that the tokens before a place are a slice of bytes, and bytes compare as the tokens do. One binary search
finds the place whose preceding tokens agree with the end of a text for longest. Only the last REACH tokens are
compared: that a longer match is right more often is not learnt either (`lookup.Rates`).

A new text becomes a segment of its own, which is merged with the ones before it unless these are larger (a
log-structured merge). So a text is found as soon as it is stored, and each token is sorted about a dozen times in all.
The oldest texts are dropped by segments.

A suffix tree, as in SuffixDecoding, or an automaton, as of source `lookup`, takes 1 kB for a token in Python. This
takes 8 bytes, and some microseconds for a search in each segment.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

REACH = 16
"""Tokens of a match that are compared."""
TOKEN_BYTES = 4
MEMORY_BYTES = 2 * TOKEN_BYTES
"""Of one stored token: itself, and its place in the suffix array."""
RECORD_BYTES = 200
"""Memory of one text beside its tokens, roughly."""
END = b"\xff" * TOKEN_BYTES
"""Between texts; no token."""
MAX_ENDS = 32
"""Places of a match that are followed, the newest segments' first: more of them hardly change what is likely."""


@dataclass(frozen=True, slots=True)
class StoredText:
    """One stored text."""

    key: str
    """Id of the API key whose completion it is."""
    time: int
    """Unix seconds."""
    data: bytes
    """Its tokens as `backwards` makes them."""

    @property
    def memory_bytes(self) -> int:
        return len(self.data) * MEMORY_BYTES // TOKEN_BYTES + RECORD_BYTES


def backwards(tokens: Sequence[int]) -> bytes:
    """Tokens in reverse order, each as a big-endian number."""
    return np.asarray(tokens, dtype=">u4")[::-1].tobytes()


class Segment:
    """Texts and the suffix array of them; never changed."""

    def __init__(self, records: Iterable[StoredText]) -> None:
        """Oldest first. Sorts all tokens."""
        stored = list(records)
        self._lengths = [(record.key, len(record.data)) for record in stored]
        self.data = END.join([b"", *(record.data for record in stored), b""])
        self.memory_bytes = sum(record.memory_bytes for record in stored)
        self.keys = frozenset(record.key for record in stored)
        """API keys that have texts in it."""
        self.times = [record.time for record in stored]
        self._places: memoryview[int] = _sorted_places(np.frombuffer(self.data, dtype=">u4")).data

    def __len__(self) -> int:
        """Texts."""
        return len(self._lengths)

    def records(self) -> Iterator[StoredText]:
        """Its texts, oldest first."""
        start = TOKEN_BYTES
        for (key, length), time in zip(self._lengths, self.times, strict=True):
            yield StoredText(key, time, self.data[start : start + length])
            start += length + TOKEN_BYTES

    def longest(self, context: bytes) -> tuple[int, int]:
        """How many of the tokens of `context` (`backwards`, at most REACH) precede a place here, and the index of this
        place in the suffix array."""
        index = bisect_left(self._places, context, key=self._before)
        best = (0, index)
        for near in (index - 1, index):
            if 0 <= near < len(self._places):
                best = max(best, (_common(context, self._before(self._places[near])), near))
        return best

    def ends(self, context: bytes, near: int, most: int) -> Sequence[int]:
        """At most `most` of the places behind exactly these tokens. `near`: one of them in the suffix array."""
        last = context + END * (REACH - len(context) // TOKEN_BYTES)
        low = bisect_left(self._places, context, 0, near + 1, key=self._before)
        high = bisect_right(self._places, last, near, key=self._before)
        step = -(-(high - low) // most)
        return self._places[low:high:step].tolist()

    def following(self, place: int, distance: int) -> int | None:
        """The token so far behind a place, 0 for the next one; None at the end of its text, which was passed at no
        smaller distance."""
        start = TOKEN_BYTES * (place - 1 - distance)
        token = self.data[start : start + TOKEN_BYTES]
        if token == END:
            return None
        return int.from_bytes(token)

    def _before(self, place: int) -> bytes:
        """The REACH tokens that precede a place, the nearest one first."""
        start = TOKEN_BYTES * place
        return self.data[start : start + TOKEN_BYTES * REACH]


@dataclass(frozen=True, slots=True)
class Match:
    """The places at which the end of a text occurs."""

    length: int
    """Tokens, at most REACH."""
    ends: Sequence[tuple[Segment, int]]


NO_MATCH = Match(0, ())


class Texts:
    """The texts of one scope. One thread changes it; others may search it meanwhile."""

    def __init__(self, max_segment: int) -> None:
        """`max_segment`: bytes of memory that a segment has at most if it is merged."""
        self.segments: tuple[Segment, ...] = ()
        """Oldest first; replaced as a whole."""
        self._max_segment = max_segment

    def __len__(self) -> int:
        """Texts."""
        return sum(map(len, self.segments))

    @property
    def memory_bytes(self) -> int:
        return sum(segment.memory_bytes for segment in self.segments)

    def add(self, records: Sequence[StoredText]) -> None:
        """Stores texts that are newer than all others, and not empty."""
        new = Segment(records)
        kept = list(self.segments)
        while kept and self._merges(kept[-1], new):
            new = Segment([*kept.pop().records(), *new.records()])
        self.segments = (*kept, new)

    def drop_oldest(self) -> None:
        """Drops the oldest segment."""
        self.segments = self.segments[1:]

    def keep(self, wanted: Callable[[StoredText], bool]) -> None:
        """Drops the texts that are not wanted."""
        kept: list[Segment] = []
        for segment in self.segments:
            records = [record for record in segment.records() if wanted(record)]
            if len(records) == len(segment):
                kept.append(segment)
            elif records:
                kept.append(Segment(records))
        self.segments = tuple(kept)

    def records(self) -> Iterator[StoredText]:
        """All texts, oldest first."""
        for segment in self.segments:
            yield from segment.records()

    def holds(self, data: bytes) -> bool:
        """Whether one of a few texts that end as this one does (`backwards`) is this one."""
        for segment, place in self.find(data[: TOKEN_BYTES * REACH]).ends:
            start = TOKEN_BYTES * place
            if segment.data[start - TOKEN_BYTES : start + len(data) + TOKEN_BYTES] == END + data + END:
                return True
        return False

    def find(self, context: bytes) -> Match:
        """The longest end of a text that occurs in stored ones. `context`: its last tokens, `backwards`."""
        segments = self.segments[::-1]
        found = [segment.longest(context) for segment in segments]
        length = max((length for length, _ in found), default=0)
        if not length:
            return NO_MATCH

        matched = context[: TOKEN_BYTES * length]
        ends: list[tuple[Segment, int]] = []
        for segment, (common, near) in zip(segments, found, strict=True):
            if common == length and len(ends) < MAX_ENDS:
                places = segment.ends(matched, near, MAX_ENDS - len(ends))
                ends += [(segment, place) for place in places]
        return Match(length, ends)

    def _merges(self, old: Segment, new: Segment) -> bool:
        if old.memory_bytes + new.memory_bytes > self._max_segment:
            return False
        return old.memory_bytes <= new.memory_bytes


def _common(one: bytes, other: bytes) -> int:
    """Tokens that both begin with."""
    length = 0
    while length < len(one) and one[length : length + TOKEN_BYTES] == other[length : length + TOKEN_BYTES]:
        length += TOKEN_BYTES
    return length // TOKEN_BYTES


def _sorted_places(tokens: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """[n] uint32: the places of all tokens that are no END, in the order of the REACH tokens from there on.

    Prefix doubling: after the order of the first k tokens is known, pairs of ranks k apart order the first 2k.
    """
    _, rank = np.unique(tokens, return_inverse=True)
    rank = rank.astype(np.int64)
    reach = 1
    while reach < REACH:
        ahead = np.zeros_like(rank)
        ahead[:-reach] = rank[reach:] + 1
        pairs = rank * (len(tokens) + 1) + ahead
        order = np.argsort(pairs)
        in_order = pairs[order]
        rank[order] = np.concatenate(([0], np.cumsum(in_order[1:] != in_order[:-1])))
        reach *= 2

    places = np.argsort(rank).astype(np.uint32)
    is_end = tokens == np.uint32(0xFFFFFFFF)
    return places[~is_end[places]]
