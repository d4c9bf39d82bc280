"""The requests that wait for a slot and those that have one.

Whose turn it is, the queue decides (core/limits/turns.py); who has room in the KV cache, `Rooms` does
(core/limits/rooms.py). A request that is preempted gives up its slot and waits again, with its tokens, its policy and
its draws as they are. When it is admitted again, the target reads prompt and completion and goes on. Its stream pauses,
its text is the same.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from cloud_gateway.core.limits.prompts import ReadingPace
from cloud_gateway.core.limits.rooms import Room, RoomPrices, RoomsMaker
from cloud_gateway.core.requests.events import Preempted, Status
from cloud_gateway.core.requests.generation import Generation
from cloud_gateway.engine.exchange import Active, Waiting
from cloud_gateway.engine.queue_work import QueueWork
from cloud_gateway.engine.requests import Requests
from edgespec.shared.contained import Contained

log = logging.getLogger("cloud_gateway.engine.slots")


class Slots:
    """Moves requests between the queue and the slots."""

    def __init__(
        self,
        requests: Requests,
        queue: Waiting[Active],
        queue_work: QueueWork,
        pace: ReadingPace,
        *,
        rows: int,
        make_rooms: RoomsMaker,
    ) -> None:
        """`rows`: the most that a pass takes for one request; `pace`: of reading prompts."""
        self._requests = requests
        self.queue = queue
        self._queue_work = queue_work
        self._active = requests.active
        """Those in slots, which this object changes."""
        self._rows = rows
        self._rooms = make_rooms(requests.target.kv_tokens, rows)
        self._pace = pace

    def room(self, generation: Generation) -> Room:
        """What a new request will need."""
        request = generation.request
        tokens = len(request.tokens)
        longest = min(tokens + request.max_tokens, generation.bounds.context) + self._rows
        return Room(request.key, generation.id, tokens, longest, generation.account.submitted)

    def turn(self) -> None:
        """Before a pass: each request that runs has room for it, and those that wait get the free slots."""
        now = self._requests.clock()
        for active in self._active.values():
            generation = active.generation
            active.room.tokens = len(generation.tree.prefix)
            active.room.read = active.room.tokens
            if generation.status is Status.PREFILL:
                active.room.read = generation.prefilled

        read_s = self._pace.token_s or 0.0
        self._rooms.advance(now, RoomPrices(read_s, self._requests.local.verify_s(1)))

        for growth in self._rooms.grow(now):
            self._preempt(growth.preempted)
            self._resize(growth.room)

        while len(self._active) < self._requests.target.slots:
            if not self._admit(now):
                return

    def ended(self, active: Active) -> None:
        """A request in a slot is over."""
        del self._active[active.id]
        self._rooms.leave(active.room)
        self.queue.ended(active)

    def left(self, active: Active) -> None:
        """A request is over that had no slot."""
        self._rooms.leave(active.room)

    def _admit(self, now: float) -> bool:
        """Gives the next request that has room its slot; whether there was one."""
        preempted: list[Room] = []

        def enters(active: Active) -> bool:
            rooms = self._rooms.enter(active.room, now)
            if rooms is None:
                return False

            preempted.extend(rooms)
            return True

        entered = self.queue.take(enters)
        if entered is None:
            return False

        self._preempt(preempted)
        self._begin(entered)
        return True

    def _begin(self, active: Active) -> None:
        """Gives it a slot, and asks a worker to draft for it meanwhile."""
        requests = self._requests
        self._active[active.id] = active
        requests.stats.requests += not active.ran
        self._queue_work.left(active, "admitted")

        if requests.open(active):
            requests.local.open(active)

    def _resize(self, room: Room) -> None:
        active = self._active.get(room.order)
        if active is None:
            return

        with Contained(self._requests.pass_failed, [active]):
            self._requests.target.resize(active.slot, room.size)

    def _preempt(self, rooms: Sequence[Room]) -> None:
        for room in rooms:
            active = self._active[room.order]
            self._requests.step(active, Preempted())
            if active.ended:  # its client had left
                continue

            log.info(
                "request %d waits after %d tokens for room in the KV cache",
                active.id,
                room.tokens,
            )
            self._requests.close_slot(active)
            self._requests.stats.preemptions += 1

            active.ran = True
            del self._active[active.id]
            self.queue.put_back(active)
