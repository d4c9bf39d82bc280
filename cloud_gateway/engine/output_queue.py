"""One answer on its way from the engine's thread to the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from cloud_gateway.core.requests.request import DoneEvent, Event, TokensEvent


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
        while not isinstance(event := await self._events.get(), DoneEvent):
            tokens += event.tokens
        self._ended = True
        return tokens, event

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
    logprobs = [one for event in events for one in event.logprobs or ()]
    return TokensEvent([token for event in events for token in event.tokens], logprobs or None)
