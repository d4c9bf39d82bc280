"""How much of the target's KV cache each request has, and which request is preempted for which.

A request gets room in steps. If a step does not fit, it gets what is free, if that lasts for some tokens. Otherwise
room is taken from others by one of two rules.

1. By size. The youngest request of the key that holds most is preempted (edgespec/core/eviction.py): it waits, and its
   tokens are read again later. The asking request waits instead if that reading would take longer than all that it
   asks for itself, less the time for which its key has waited for the other one. A key that holds little gets room from
   one that holds much by this rule, never the other way round.
2. By time. By the first rule alone, a request that needs most of the cache would wait for as long as others run, and
   what a small request takes from it costs all of its tokens. So a request whose key has had no more than its part of
   the time is due once it has waited for twice as long as its tokens take to be read. Of those that are due, the one
   whose key has had least of its part takes room from any other key. It keeps that room for a turn, ten times as long
   as the reading takes, so that reading takes a tenth of the time. A request that was preempted and finds free room
   has such a turn without waiting.

A key's part of the time is counted while requests wait for room: each key that runs or waits should run for an equal
part of it (`Cells.lag`). So keys alternate, and one that has had less than its part cannot be kept from it, whatever
the others ask for. A key that asks now and then is also credited with its part of the time in which it was absent, up
to what it costs to preempt those that run. So its requests enter at once, if it uses less than its part. Without that,
the lag of its last request made it wait for a turn of the others, although they had run alone since then.

Not done: room by a share of the cells for each key. With 1100 cells and a context of 1024, a share of two keys holds no
long prompt. Nor a pause before a large request is admitted again, in the hope that the next small one comes: the target
would be idle meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cloud_gateway.core.limits.rooms import MoreRoom, Room, RoomPrices
from edgespec.core.eviction import Holding, gives_way

STEP = 256
"""Entries that a request gets beyond its tokens and a tree. Each further step may preempt, and a preempted request
reads all its tokens again, so a step has to be worth it: the reading takes a tenth of the time of 256 passes."""
MIN_STEP = 32
"""The same if no more is free: with fewer, a request would mostly read what it had read before."""
WAIT_READINGS = 2.0
"""Time after which a request is due, in times that the reading of its tokens takes: what it takes from others for a
turn they have to read again, too, and most short completions end within that time."""
TURN_READINGS = 10.0
"""Length of a turn, in times that the reading of the request's tokens took: a tenth of the time is spent on it."""
MAX_TURN_S = 60.0
"""Longest turn, except that a turn is never shorter than the reading before it: others wait for their first token."""
MEMORY_S = 300.0
"""Time in which a lag shrinks to 1 / e, and after which an absent key is forgotten: a key that had much of the cache an
hour ago is like any other."""


@dataclass(slots=True)
class Stay:
    """How a request came by the room that it has, or by what it lost its room."""

    entered: int = 0
    """Its tokens when it got room."""
    lost_at: float = -math.inf
    """When it was preempted last."""
    earned: bool = False
    """Whether it keeps its room until `turn_end`: it was due, or preempted while its key had no more than its part."""
    turn_end: float = math.inf
    """When its turn ends; without end until it has gained a token."""


@dataclass(slots=True)
class KeyAccount:
    """One key's use of the time in which requests waited for room."""

    lag_s: float = 0.0
    """Seconds that the key should have run, less those that it did: below 0 if it has had more than its part."""
    ran_at: float = -math.inf
    """When a request of it ran last."""
    present_at: float = -math.inf
    """When a request of it ran or waited last."""


class Cells:
    """The `Rooms` of this part: those of all running requests never exceed `capacity`."""

    def __init__(self, capacity: int, rows: int) -> None:
        """`rows`: the most that one pass takes for a request."""
        self.capacity = capacity
        self.rows = rows
        self._prices = RoomPrices()
        self._running: list[Room] = []
        self._waiting: list[Room] = []
        """Requests that were refused room."""
        self._stays: dict[Room, Stay] = {}
        """Of the requests that run or were refused room."""
        self._accounts: dict[str, KeyAccount] = {}
        """Those of the keys that have run or waited within MEMORY_S."""
        self._at: float | None = None

    @property
    def running(self) -> list[Room]:
        """The rooms in use, the oldest request's first."""
        return sorted(self._running, key=lambda room: room.order)

    def lag(self, key: str) -> float:
        """Seconds by which a key has had less than its part of the time; negative if it has had more."""
        account = self._accounts.get(key)
        if account is None:
            return 0.0
        return account.lag_s

    def advance(self, now: float, prices: RoomPrices) -> None:
        """Books the time since the last call, and begins the turns of requests that have been read."""
        self._prices = prices
        elapsed_s = 0.0 if self._at is None else now - self._at
        self._at = now
        self._book(elapsed_s)
        self._note_presence(now)

        for room in self._running:
            stay = self._stays[room]
            if stay.turn_end == math.inf and room.tokens > stay.entered:
                stay.turn_end = now + self._turn_s(stay)

    def enter(self, room: Room, now: float) -> list[Room] | None:
        """Gives a request its first step, and returns those that are preempted for it, in this order; None, and nothing
        has changed, if it has to wait."""
        stay = self._stays.setdefault(room, Stay())
        if stay.lost_at == now:  # two requests must not preempt each other in turns without a pass between
            self._refuse(room)
            return None

        room.read = 0
        self._credit(room.key, now)
        first = self._is_first(room, now)
        due = first and self._is_due(room, now)
        preempted = self._make_way(room, now, takes=due and now - stay.lost_at >= self._wait_s(room))
        if preempted is None:
            self._refuse(room)
            return None

        stay.entered = room.tokens
        stay.earned = due or (first and stay.lost_at > -math.inf)
        stay.turn_end = math.inf
        self._running.append(room)
        if room in self._waiting:
            self._waiting.remove(room)
        return preempted

    def grow(self, now: float) -> Iterator[MoreRoom]:
        """Gives a further step to each request that lacks it, the oldest first, unless it was preempted meanwhile."""
        for room in self.running:
            if room.size and self._lacks(room):
                yield MoreRoom(room, self._grow(room, now))

    def leave(self, room: Room) -> None:
        """The request has ended, or its client has left while it waited; nothing happens if it was preempted before."""
        self._remove(room)
        self._stays.pop(room, None)

    def _lacks(self, room: Room) -> bool:
        """Whether the next pass may need more than the request has."""
        return room.size < min(room.tokens + self.rows, room.longest)

    def _grow(self, room: Room, now: float) -> list[Room]:
        """Gives a request a further step, and returns those that are preempted for it; itself if it has to wait."""
        preempted = self._make_way(room, now, takes=self._keeps(room, now))
        if preempted is None:
            self._preempt(room, now)
            preempted = [room]
        return preempted

    def _remove(self, room: Room) -> None:
        """The request neither runs nor waits for room."""
        if room in self._running:
            self._running.remove(room)
        if room in self._waiting:
            self._waiting.remove(room)
        room.size = 0

    def _refuse(self, room: Room) -> None:
        """The request waits from now on."""
        if room not in self._waiting:
            self._waiting.append(room)

    # --- rule 1, by size -----------------------------------------------------------------------------------------

    def _make_way(self, room: Room, now: float, *, takes: bool) -> list[Room] | None:
        """Gives `room` a step and takes it from those that are returned; None if it is the one to wait. `takes`: also
        from keys that hold less."""
        wanted = min(room.tokens + self.rows + STEP, room.longest)
        least = min(room.tokens + self.rows + MIN_STEP, room.longest)
        others = [other for other in self._running if other is not room]
        free = self.capacity - sum(other.size for other in others)
        if free >= least:
            room.size = min(wanted, free)
            return []

        asker = Holding(room.key, wanted, room.order, takes)
        held = {asker: room}
        held |= {Holding(other.key, other.size, other.order, self._keeps(other, now)): other for other in others}
        losers: list[Room] = []
        while sum(holding.size for holding in held) > self.capacity:
            holding = gives_way(list(held), asker)
            if holding is None or holding is asker:
                return None
            losers.append(held.pop(holding))
        grows_in_turn = room.size > 0 and takes
        if not grows_in_turn and self._wastes(room, losers):
            return None

        for loser in losers:
            self._preempt(loser, now)
        room.size = wanted
        return losers

    def _wastes(self, room: Room, losers: Sequence[Room]) -> bool:
        """Whether reading these again takes longer than all that `room` asks for, less what its key has waited."""
        others = [loser for loser in losers if loser.key != room.key]
        if not others:
            return False

        lost_s = self._reading_s(others)
        unread = room.tokens - room.read
        to_come = room.longest - self.rows - room.tokens
        asked_s = unread * self._prices.read_s + to_come * self._prices.pass_s
        waited_s = self.lag(room.key) - max(self.lag(loser.key) for loser in others)
        return lost_s > asked_s + waited_s

    def _reading_s(self, rooms: Sequence[Room]) -> float:
        """Seconds of reading that is lost if these are preempted."""
        return sum(room.read for room in rooms) * self._prices.read_s

    def _preempt(self, room: Room, now: float) -> None:
        """Takes all room from a request. One that has gained nothing keeps the time for which it has waited."""
        stay = self._stays[room]
        self._remove(room)
        stay.lost_at = now
        if room.tokens > stay.entered:
            room.since = now

    # --- rule 2, by time -----------------------------------------------------------------------------------------

    def _keeps(self, room: Room, now: float) -> bool:
        """Whether nothing is taken from it now."""
        stay = self._stays[room]
        return stay.earned and now < stay.turn_end

    def _turn_s(self, stay: Stay) -> float:
        """Seconds of its turn, after the reading."""
        reading_s = stay.entered * self._prices.read_s
        return min(TURN_READINGS * reading_s, max(reading_s, MAX_TURN_S))

    def _has_part_left(self, room: Room) -> bool:
        """Whether its key has had no more than its part of the time, and runs nothing."""
        return self.lag(room.key) >= 0 and all(other.key != room.key for other in self._running)

    def _wait_s(self, room: Room) -> float:
        """Seconds until a request that waits is due."""
        return WAIT_READINGS * room.tokens * self._prices.read_s

    def _is_due(self, room: Room, now: float) -> bool:
        """Whether it has waited long enough for other keys: the time in which its own key ran does not count."""
        waits_since = max(room.since, self._accounts[room.key].ran_at)
        return now - waits_since >= self._wait_s(room)

    def _is_first(self, room: Room, now: float) -> bool:
        """Whether its key has a part left, and no other key whose request is due has had less of its part."""
        due = [
            self.lag(other.key)
            for other in self._waiting
            if other is not room and self._is_due(other, now) and self._has_part_left(other)
        ]
        return self._has_part_left(room) and self.lag(room.key) >= max(due, default=0.0)

    def _book(self, elapsed_s: float) -> None:
        """Changes the lags of the keys that run or wait."""
        faded = math.exp(-elapsed_s / MEMORY_S)
        for account in self._accounts.values():
            account.lag_s *= faded

        running = {room.key for room in self._running}
        contending = running | {room.key for room in self._waiting}

        # 1. A key waits for others: each has an equal part of the time.
        if len(contending) > len(running):
            part = len(running) / len(contending)
            for key in contending:
                self._accounts[key].lag_s += elapsed_s * (part - (key in running))
            return

        # 2. Nobody waits for another key: those that run catch up, as if one more key waited.
        caught_up_s = elapsed_s / (len(running) + 1)
        for key in running:
            account = self._accounts[key]
            account.lag_s = min(account.lag_s, max(account.lag_s - caught_up_s, 0.0))

    def _note_presence(self, now: float) -> None:
        """Notes which keys run or wait, and forgets those that were absent for long."""
        for room in self._waiting:
            self._accounts[room.key].present_at = now
        for room in self._running:
            account = self._accounts[room.key]
            account.present_at = now
            account.ran_at = now

        absent = [key for key, account in self._accounts.items() if now - account.present_at > MEMORY_S]
        for key in absent:
            del self._accounts[key]

    def _credit(self, key: str, now: float) -> None:
        """Adds to the lag of a key that was absent its part of that time, up to the reading of what runs."""
        others = {room.key for room in (*self._running, *self._waiting)}
        if key in others:
            return

        account = self._accounts.setdefault(key, KeyAccount())
        part_s = (now - account.present_at) / (len(others) + 1)
        most_s = self._reading_s(self._running)
        account.lag_s = max(account.lag_s, min(account.lag_s + part_s, most_s))
        account.present_at = now
