"""How much of the target's KV cache each request has: here, all that it can ever use, before it begins.

So no request is preempted, and one that does not fit waits. Requests are admitted in the order in which they were first
refused: small ones that keep coming cannot keep the room from a large one. Room in steps, taken from other requests
when it is needed, is left to a part (`RoomsMaker`): it has to choose which one is preempted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class RoomPrices:
    """What the target's work costs, as measured."""

    read_s: float = 0.0
    """Seconds to read a token of a prompt; 0 if none has been read yet."""
    pass_s: float = 0.0
    """Seconds of a pass, which brings a token at least."""


@dataclass(slots=True, eq=False)
class Room:
    """One request's part of the cache. Sizes in entries, which are tokens."""

    key: str
    order: int
    """The request's number: of a key's requests the lowest is the oldest."""
    tokens: int
    """Prompt and completion so far."""
    longest: int
    """The most that it can ever use, the rows of a pass included."""
    since: float
    """When it came, or was preempted after it had gained a token, in seconds."""
    size: int = 0
    """What it has; 0 while it waits."""
    read: int = 0
    """Tokens that the target has read since it has room: as many are lost if it is preempted."""


@dataclass(frozen=True, slots=True)
class MoreRoom:
    """A request that runs has got more room, or was preempted itself."""

    room: Room
    preempted: Sequence[Room]
    """Those that wait again, in this order; their size is 0."""


class Rooms(Protocol):
    """Decides who has room. The engine asks it before each pass, on its thread.

    A preempted request keeps its tokens and its draws, and waits before all others of its key. When it enters again,
    all its tokens are read again.
    """

    def advance(self, now: float, prices: RoomPrices) -> None:
        """Called first; `tokens` and `read` of the rooms in use are those of this moment."""

    def grow(self, now: float) -> Iterable[MoreRoom]:
        """Gives those that run the room for their next pass. Each item is carried out before the next one is asked for,
        and a request may end by it.
        """

    def enter(self, room: Room, now: float) -> Sequence[Room] | None:
        """Gives a request its first room, and returns those that are preempted; None if it waits.

        Called for the first request of each key that may begin, the key's whose turn it is first, while a slot is free.
        """

    def leave(self, room: Room) -> None:
        """The request has ended, or its client has left while it waited."""


class RoomsMaker(Protocol):
    """Makes the rooms of a gateway. The engine calls it once."""

    def __call__(self, capacity: int, rows: int) -> Rooms:
        """`capacity`: of the cache, in tokens; `rows`: the most that one pass takes for a request."""


class WholeRooms:
    """The `Rooms` of the core."""

    def __init__(self, capacity: int, rows: int) -> None:
        self._free = capacity
        self._refused: list[Room] = []
        """Those that wait for room, the one first that was refused first."""

    def advance(self, now: float, prices: RoomPrices) -> None:
        """Does nothing: room does not depend on time."""

    def grow(self, now: float) -> Iterable[MoreRoom]:
        """Nothing: each has all that it needs."""
        return ()

    def enter(self, room: Room, now: float) -> Sequence[Room] | None:
        if room not in self._refused:
            self._refused.append(room)
        if self._refused[0] is not room or room.longest > self._free:
            return None

        self._refused.remove(room)
        self._free -= room.longest
        room.size = room.longest
        return ()

    def leave(self, room: Room) -> None:
        if room in self._refused:
            self._refused.remove(room)
        self._free += room.size
        room.size = 0
