"""What passes between the engine's thread and the rest of the process: requests and events in, completions out, and
what is recorded of both."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from msgspec import Struct

from cloud_gateway.core.limits.rooms import Room
from cloud_gateway.core.limits.turns import Turns
from cloud_gateway.core.policies.estimators import Ewma, StepCurve
from cloud_gateway.core.policies.policy import (
    Action,
    Costs,
    Learnt,
    LinkView,
    Verify,
    Wait,
)
from cloud_gateway.core.policies.settings import PolicySettings
from cloud_gateway.core.requests.events import (
    Effect,
    FrameArrived,
    Listener,
    Note,
    Status,
)
from cloud_gateway.core.requests.events import Event as RequestEvent
from cloud_gateway.core.requests.generation import Generation
from cloud_gateway.core.requests.request import (
    DoneEvent,
    Event,
    GenerationRequest,
    TokensEvent,
)
from cloud_gateway.core.sources.interface import Suggestion
from edgespec.core.drafting.tree import Node
from edgespec.core.errors import ClientError
from edgespec.shared.contained import Contained, describe_fault

log = logging.getLogger("cloud_gateway.engine.loop")

ROWS_WEIGHT = 0.2
"""Of the latest pass in the mean rows of a request."""


class Stream:
    """Async iterator over one answer's events; the last is a `DoneEvent`. Lives on the event loop."""

    def __init__(self, on_cancel: Callable[[], None]) -> None:
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._on_cancel = on_cancel
        self._ended = False

    def push(self, event: Event) -> None:
        """Called on the event loop, on the engine's behalf."""
        self._events.put_nowait(event)

    def cancel(self) -> None:
        """The client left, or has enough: the engine stops after the round it is in. May be called twice."""
        if not self._ended:
            self._ended = True
            self._on_cancel()

    async def whole(self) -> tuple[list[int], DoneEvent]:
        """All tokens of the answer, and its end."""
        tokens: list[int] = []
        while True:
            event = await self._events.get()
            if isinstance(event, DoneEvent):
                self._ended = True
                return tokens, event
            tokens += event.tokens

    async def __aiter__(self) -> AsyncIterator[Event]:
        """Tokens of several rounds are one event where they wait already, as for a client that reads slowly."""
        waiting: list[TokensEvent] = []
        while True:
            event = await self._events.get()
            if isinstance(event, TokensEvent):
                waiting.append(event)
                if not self._events.empty():
                    continue

            if waiting:
                yield _joined(waiting)
                waiting.clear()

            if isinstance(event, DoneEvent):
                self._ended = True
                yield event
                return


def _joined(events: Sequence[TokensEvent]) -> TokensEvent:
    """One event with the tokens of several."""
    tokens = [token for event in events for token in event.tokens]
    readings = [reading for event in events for reading in event.readings or ()]
    return TokensEvent(tokens, readings or None)


class Outbox:
    """What a turn of the engine hands to the event loop, in one call."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        """Where completions and messages go; None before there is one."""
        self._items: list[Callable[[], None]] = []

    def add(self, item: Callable[[], None]) -> None:
        """Is called on the event loop, in order."""
        self._items.append(item)

    def flush(self, first: Iterable[Callable[[], None]] = (), wait_s: float = 0.0) -> None:
        """Hands over these and then what was added; waits at most so long until all was called."""
        batch = [*first, *self._items]
        self._items = []
        if not batch or self.loop is None:
            return

        if wait_s <= 0:
            self.loop.call_soon_threadsafe(_call_all, batch, None)
            return

        called = threading.Event()
        self.loop.call_soon_threadsafe(_call_all, batch, called)
        called.wait(wait_s)


def _call_all(batch: Sequence[Callable[[], None]], called: threading.Event | None) -> None:
    """Calls each of these, also after one that fails, and then sets the event."""
    left = iter(batch)
    ended = False
    while not ended:
        with Contained() as caught:  # what follows belongs to other requests
            for item in left:
                item()
            ended = True
        if caught.error is not None:
            log.error("a message of the engine was lost: %s", describe_fault(caught.error))

    if called is not None:
        called.set()


@dataclass(slots=True, eq=False)
class Active:
    """Lives on the engine's thread, its stream on the event loop."""

    generation: Generation
    stream: Stream
    room: Room
    """Its part of the target's KV cache."""
    ran: bool = False
    """Whether it had a slot before, from which it was preempted."""
    slot: int = -1
    """KV slot in the target; -1 if none."""
    local: bool = False
    """Whether the local draft holds this request; not when it has no room for it."""

    rows: float = 0.0
    """What others expect it to put into the next pass: the mean of its latest passes, 0 while it waits."""
    mean_rows: Ewma = field(default_factory=lambda: Ewma(ROWS_WEIGHT, 1.0))
    unkept: Exception | None = None
    """Why the target could not keep the path of the latest pass; None where it could."""

    @property
    def id(self) -> int:
        """Unique in this process."""
        return self.generation.id

    @property
    def request(self) -> GenerationRequest:
        """What the client asked for."""
        return self.generation.request

    @property
    def ended(self) -> bool:
        """Whether the request is over."""
        return self.generation.status is Status.FINISHED

    def decided(self, action: Action) -> None:
        """What its policy wants next."""
        match action:
            case Verify(nodes):
                self.rows = 1 + len(nodes)
            case Wait():
                self.rows = 0
            case _:
                self.rows = self.mean_rows.value or 1.0


class Queued(Protocol):
    @property
    def request(self) -> GenerationRequest: ...


Q = TypeVar("Q", bound=Queued)


class Waiting(Generic[Q]):
    """The requests that wait: `Turns` by API key under a lock, with an end."""

    def __init__(self, limit: int) -> None:
        self._turns: Turns[Q] = Turns()
        self._limit = limit
        self._lock = threading.Lock()

    def __len__(self) -> int:
        with self._lock:
            return len(self._turns)

    def all(self) -> list[Q]:
        """Every request that waits."""
        with self._lock:
            return list(self._turns)

    def add(self, active: Q) -> None:
        """Raises ClientError 429 if the queue is full; a key that has nothing in it may always add one."""
        request = active.request
        with self._lock:
            if self._turns.refuses(request.key, self._limit):
                raise ClientError(
                    f"The queue of {self._limit} requests is full; try again shortly.",
                    status=429,
                    code="queue_full",
                    retry_after_s=max(1.0, len(self._turns) * 0.5),
                )
            self._turns.add(request.key, active, request.max_running)

    def take(self, fits: Callable[[Q], bool]) -> Q | None:
        """The next one for a free slot that fits, or None; say `ended` when it has left its slot."""
        with self._lock:
            return self._turns.take(fits)

    def put_back(self, active: Q) -> None:
        """One that was taken waits again, before all others of its key, also where the queue is full."""
        with self._lock:
            self._turns.put_back(active.request.key, active)

    def ended(self, active: Q) -> None:
        """A request that was taken is over."""
        with self._lock:
            self._turns.ended(active.request.key)

    def remove(self, active: Q) -> bool:
        """Gives up the place of one that waits; whether it still did."""
        with self._lock:
            return self._turns.remove(active.request.key, active)


# --- events for the engine -----------------------------------------------------------------------------------------


class WorkerReady(Struct, frozen=True):
    """A worker was linked or resumed: requests without one may use it."""

    worker: str


class WorkerGone(Struct, frozen=True):
    """A worker left, paused or was revoked."""

    worker: str
    why: str = ""


class Declined(Struct, frozen=True):
    """A worker will not draft for this request."""

    worker: str
    request: int
    why: str = ""


class ClientLeft(Struct, frozen=True):
    active: Active


LinkEvent = WorkerReady | WorkerGone | FrameArrived | Declined
InboxEvent = LinkEvent | ClientLeft


class Inbox(Protocol):
    """The engine as the links see it."""

    def post(self, event: LinkEvent) -> None:
        """Queues one event, with the time of the call; returns at once."""


# --- records -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PolicyStart:
    """What a request's policy decides by, besides what it is asked with."""

    settings: PolicySettings
    curve: StepCurve
    """Seconds of a target pass by its rows: the one behind `Costs.verify_s`."""
    learnt: Learnt | None = None
    """What earlier completions of this kind taught; None: nothing."""


class Recording(Protocol):
    """What listens to requests: a part's record or picture of them."""

    def listener(self, generation: Generation, start: PolicyStart) -> Listener | None:
        """Makes the listener of a request that has just come; None if nothing is to be recorded of it.

        The engine calls it on the event loop, at the end of the request's construction.
        """


class Listeners(Listener):
    """All that record one request. One that fails is called no more, and the request goes on."""

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self._listeners = list(listeners)

    def handled(self, event: RequestEvent, effects: Sequence[Effect], now: float) -> None:
        self._each(lambda listener: listener.handled(event, effects, now))

    def noted(self, note: Note, now: float) -> None:
        self._each(lambda listener: listener.noted(note, now))

    def decided(self, link: LinkView | None, costs: Costs, now: float, action: Action) -> None:
        self._each(lambda listener: listener.decided(link, costs, now, action))

    def suggested(
        self,
        source: str,
        suggestions: Sequence[Suggestion],
        proposed: int,
        why: str | None,
    ) -> None:
        self._each(lambda listener: listener.suggested(source, suggestions, proposed, why))

    def guided(self, nodes: Sequence[Node], chosen: Sequence[Node]) -> None:
        self._each(lambda listener: listener.guided(nodes, chosen))

    def policy_ends(self, why: str | None) -> None:
        self._each(lambda listener: listener.policy_ends(why))

    def _each(self, give: Callable[[Listener], None]) -> None:
        for listener in tuple(self._listeners):
            with Contained(self._drop, listener):
                give(listener)

    def _drop(self, listener: Listener, error: Exception) -> None:
        self._listeners.remove(listener)
        log.error("%s of a request ended: %s", type(listener).__name__, describe_fault(error))
