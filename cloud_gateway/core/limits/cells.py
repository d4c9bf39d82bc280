"""How much of the target's KV cache each request has, and which request makes room for which.

A request gets room in steps. Where a step does not fit, the youngest request of the key that holds most is preempted
(edgespec/core/eviction.py): it waits, and its tokens are read again later. So a key that holds little gets room from
one that holds much, never the other way round, and the oldest request of a key loses its room only to other keys.

By this rule alone a request that needs most of the cache would wait for as long as others run. So one that has had no
turn (`TURN` tokens) for `AGE_S`, of a key with nothing else running, takes room from any other key, keeps it for a
turn, and nobody overtakes it meanwhile: each key goes on at least that often.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgespec.core.eviction import Holding, gives_way

STEP = 256
"""Entries that a request gets beyond its tokens and a tree. Each further step may preempt, and a preempted request
reads all its tokens again, so a step has to be worth it: the reading takes a tenth of the time of 256 passes."""
AGE_S = 20.0
"""Seconds without a turn after which a request takes room from keys that hold less: several times as long as reading
most prompts again takes, so that requests that do not fit together mostly run and do not mostly read."""
TURN = 32
"""Tokens of a turn: with fewer, a request would mostly read what it had read before."""


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
    """When it came, or its last turn ended, in seconds."""
    size: int = 0
    """What it has; 0 while it waits."""
    turn_end: int = 0
    """Tokens at which it has had its turn."""
    fixed: bool = False
    """Whether nothing is taken from it before."""


class Cells:
    """The rooms of all running requests, which never exceed `capacity`."""

    def __init__(self, capacity: int, rows: int) -> None:
        """`rows`: the most that one pass takes for a request."""
        self.capacity, self.rows = capacity, rows
        self._running: list[Room] = []

    @property
    def running(self) -> list[Room]:
        """The rooms in use, the oldest request's first."""
        return sorted(self._running, key=lambda one: one.order)

    def enter(self, room: Room, now: float) -> list[Room] | None:
        """Gives a request its first step, and returns those that are preempted for it, in this order; None, and nothing
        has changed, where it has to wait."""
        room.fixed = self.is_next(room, now)
        left = self._make_way(room, now)
        if left is not None:
            self._running.append(room)
            room.turn_end = room.tokens + TURN
        return left

    def is_next(self, room: Room, now: float) -> bool:
        """Whether nobody may overtake this request, which waits."""
        return now - room.since >= AGE_S and all(one.key != room.key for one in self._running)

    def lacks(self, room: Room) -> bool:
        """Whether the next pass may need more than the request has."""
        return room.size < min(room.tokens + self.rows, room.longest)

    def grow(self, room: Room, now: float) -> list[Room]:
        """Gives a request a further step, and returns those that are preempted for it; itself where it has to wait."""
        left = self._make_way(room, now)
        if left is None:
            self._preempt(room, now)
            left = [room]
        return left

    def leave(self, room: Room) -> None:
        """The request has ended; nothing happens where it was preempted before."""
        if room in self._running:
            self._running.remove(room)
        room.size = 0

    def _make_way(self, room: Room, now: float) -> list[Room] | None:
        """Gives `room` a step and takes it from those that are returned; None where it is the one to give way."""
        size = min(room.tokens + self.rows + STEP, room.longest)
        asker = Holding(room.key, size, room.order, room.fixed)
        held = {asker: room}
        for one in self._running:
            if one is not room:
                held[Holding(one.key, one.size, one.order, one.fixed and one.tokens < one.turn_end)] = one
        left: list[Room] = []
        while sum(one.size for one in held) > self.capacity:
            loser = gives_way(list(held), asker)
            if loser is None or loser is asker:
                return None
            left.append(held.pop(loser))
        for one in left:
            self._preempt(one, now)
        room.size = size
        return left

    def _preempt(self, room: Room, now: float) -> None:
        self.leave(room)
        if room.tokens >= room.turn_end:
            room.since = now
