"""A target that a server computes: its own stream, and calls that verify candidates.

    plain decoding     takes the next token of the stream, which runs ahead of the gateway
    verification       one call with a prompt for the committed tokens and one for each path to a candidate, one token
                       each: the server's own draws. Its cache has what it computed of the common beginning before

A call ends the stream, and the next plain decoding step opens another one. The tokens that have come already are taken
first in both cases, so that none is lost or drawn twice. If a call fails, its completion goes on by the stream alone.

The passes that the engine learns from are those of the server as the policies see a target: one over the rows of all
requests in slots, of which each that only decodes has one. So policies weigh a call against tokens of a stream by
measured times, as they weigh a pass over a tree against one over a row.

The private event loop has a thread of its own. The engine's thread waits for it in `verify` only.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from cloud_gateway.core.requests.request import GenerationRequest
from cloud_gateway.core.verify.accept import FlatTree
from cloud_gateway.models.target_model import Pass, Verified, Work
from cloud_gateway.parts.http_engine.dialects import GarbledError, Question
from cloud_gateway.parts.http_engine.draws import DrawnRows, RefusedRows
from cloud_gateway.parts.http_engine.server import FRESH_S, PARTIAL, RefusedError, Server, failed
from cloud_gateway.parts.http_engine.stream import ServerTokens, StreamStart, TokenStream
from edgespec.core.errors import ClientError, refusal

log = logging.getLogger("cloud_gateway.parts.http_engine")
T = TypeVar("T")
SMOOTHING = 0.2
"""Weight of a new sample in a mean."""


REFUSES: Mapping[str, str] = {
    "min_tokens": "the server that computes the model may end a completion at any token",
    "logprobs": "the server that computes the model shows no probabilities here",
    "top_logprobs": "the server that computes the model shows no probabilities here",
    "response_format": "the server that computes the model draws tokens of any form, so that only type text is served",
    "tool_choice": "the server that computes the model draws tokens of any form, so that only auto and none are served",
}
"""Parameters that need more than draws, each with the reason."""


class ServerLoop:
    """An event loop on a thread of its own, for the connections to the server."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="http-target", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work` on the loop; the caller waits."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def start(self, work: Coroutine[Any, Any, object]) -> None:
        """Runs `work` on the loop, after what was started before."""
        asyncio.run_coroutine_threadsafe(work, self._loop)

    def stop(self) -> None:
        """Ends the loop and its thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


@dataclass(eq=False)
class Slot:
    """One request at the server."""

    committed: list[int]
    """All but the last one, which is row 0 of the next pass."""
    last: int
    question: Question
    request: GenerationRequest | None = None
    refused: ClientError | None = None
    """Why it cannot be served here."""
    stream: TokenStream | None = None
    tree: FlatTree | None = None
    """That of the latest pass."""
    calls: bool = True
    """Whether candidates may be verified by calls."""
    begun: bool = False
    """Its first stream was opened."""
    wake: Callable[[], None] = lambda: None
    passes: list[Pass] = field(default_factory=list)
    """Those of the latest `verify`."""

    def notify(self) -> None:
        """A token has come, or the stream has ended."""
        self.wake()

    @property
    def by_stream_alone(self) -> bool:
        """Whether its penalties count the tokens of the completion, which in a call are prompt."""
        sampling = self.question.sampling
        return bool(sampling.presence_penalty or sampling.frequency_penalty)


class HttpTarget:
    """A `DrawingTarget`."""

    exact = False

    def __init__(
        self, server: Server, loop: ServerLoop, model: ServerTokens, *, slots: int, context: int, kv_tokens: int
    ) -> None:
        self.vocab_size = model.vocab_size
        self.eos = model.ends
        self.context = context
        self.slots = slots
        self.kv_tokens = kv_tokens
        self.passes: Sequence[Pass] = ()
        self._server = server
        self._loop = loop
        self._model = model
        self._slots: dict[int, Slot] = {}
        self._token_s = 0.0
        """Mean time between two tokens of a stream."""
        self._reopening_s = 0.0
        """Mean of what the first token of another stream takes longer than the next one of the same."""

    def idle(self) -> None:
        """Nothing: there are no threads to choose."""

    def open(self, tokens: Sequence[int], scope: bytes = b"", room: int = 0) -> tuple[int, int]:
        number = next((number for number in range(self.slots) if number not in self._slots), None)
        if number is None:
            raise IndexError("no slot is free")

        salt = ""
        if self._server.dialect.scoped:
            salt = scope.hex() or secrets.token_hex(16)
        *committed, last = tokens
        self._slots[number] = Slot(committed, last, Question(self._server.model.id, salt=salt))
        return number, 0

    def resize(self, slot: int, room: int) -> None:
        """Nothing: the server has its own rules for its cache."""

    def prefill(self, slot: int, tokens: Sequence[int]) -> None:
        """Nothing: the server reads the prompt since `begin`."""

    def begin(self, slot: int, request: GenerationRequest) -> None:
        place = self._slots[slot]
        place.question = replace(place.question, sampling=request.sampling, ignore_eos=request.ignore_eos)
        place.request = request
        place.calls = not place.by_stream_alone
        place.refused = unserved(request)
        if place.refused is None:
            self._loop.start(self._open_stream(place, [*place.committed, place.last]))

    def ready(self, slot: int, wake: Callable[[], None]) -> bool:
        place = self._slots[slot]
        place.wake = wake  # set before looking, so that a token which comes meanwhile wakes
        if place.refused is not None:
            return True
        if not place.begun:
            return False
        return place.stream is None or place.stream.has(len(place.committed) + 1)

    def verify(self, batch: Sequence[Work]) -> Sequence[Verified]:
        results = self._loop.run(self._verify(batch))
        self.passes = [one for work in batch for one in self._slots[work.slot].passes]
        return results

    def keep(self, slot: int, rows: Sequence[int]) -> None:
        place = self._slots[slot]
        assert place.tree is not None
        place.committed += [place.tree.tokens[row] for row in rows]

    def close(self, slot: int) -> None:
        place = self._slots.pop(slot)
        self._loop.start(self._close_stream(place))

    # --- on the event loop -------------------------------------------------------------------------------------------

    async def _open_stream(self, place: Slot, committed: Sequence[int]) -> None:
        await self._close_stream(place)
        request = place.request
        assert request is not None
        begun = len(committed) > len(request.tokens)
        tokens = self._left(request, committed)
        start = StreamStart(place.question, committed, tokens, begun=begun, resumable=not place.by_stream_alone)
        place.stream = TokenStream(self._server, self._model, start, place.notify)
        place.begun = True

    def _left(self, request: GenerationRequest, committed: Sequence[int]) -> int:
        """Tokens that a completion may still have."""
        emitted = len(committed) - len(request.tokens)
        return min(request.max_tokens - emitted, self.context - len(committed))

    async def _close_stream(self, place: Slot) -> None:
        stream = place.stream
        place.stream = None
        if stream is not None:
            await stream.close()

    async def _verify(self, batch: Sequence[Work]) -> Sequence[Verified]:
        return await asyncio.gather(*(self._rows_of(work) for work in batch))

    async def _rows_of(self, work: Work) -> Verified:
        place = self._slots[work.slot]
        place.tree = work.tree
        place.passes = []
        try:
            draws = await self._drawn(place, work.tree)
        except ClientError as error:
            return RefusedRows(error)
        return DrawnRows(draws, len(work.tree), self.vocab_size)

    async def _drawn(self, place: Slot, tree: FlatTree) -> dict[int, int]:
        """The draws from row 0 down the candidates, until one is none of them. Raises ClientError.

        In company nothing is waited for but the first token, since the other requests wait for it, too: below row 0
        there are draws as far as the stream has come.
        """
        if place.refused is not None:
            raise place.refused

        children = tree.children()
        in_company = self._others() > 0
        committed = [*place.committed, tree.tokens[0]]
        draws: dict[int, int] = {}
        row = 0
        while True:
            is_at_hand = self._at_hand(place, committed)
            if in_company and row and not is_at_hand:
                return draws

            verifies = bool(children[row]) and place.calls and not in_company and not is_at_hand
            if place.request is None:  # a trial, of which only the time counts
                verifies = True
            if verifies:
                drawn = await self._call(place, paths_below(tree, row), committed)
                if drawn is not None:
                    follow(children, row, drawn, draws)
                    return draws

            draws[row] = await self._next(place, committed)
            committed.append(draws[row])
            following = children[row].get(draws[row])
            is_over = place.request is not None and self._left(place.request, committed) <= 0
            if following is None or is_over:
                return draws
            row = following

    def _at_hand(self, place: Slot, committed: Sequence[int]) -> bool:
        """Whether the next token has come already."""
        stream = place.stream
        return stream is not None and stream.follows(committed) and len(committed) - stream.start < len(stream.tokens)

    async def _next(self, place: Slot, committed: Sequence[int]) -> int:
        """The next token of the stream; opens one if there is none. Raises ClientError."""
        while True:
            stream = place.stream
            if stream is None or not stream.follows(committed):
                await self._open_stream(place, list(committed))
                continue

            await stream.wait(len(committed))
            index = len(committed) - stream.start
            if index < len(stream.tokens):
                self._took(place, stream, index)
                return stream.tokens[index]
            if stream.error is not None:
                raise stream.error
            if not stream.tokens:
                raise failed()
            place.stream = None  # it ended, and the completion does not: the client ignores the end of the text

    def _took(self, place: Slot, stream: TokenStream, index: int) -> None:
        """Notes the time of a token of the stream."""
        gap_s = stream.gaps_s[index]
        if gap_s is not None:
            self._token_s += SMOOTHING * (gap_s - self._token_s)
            place.passes.append(Pass(self._others() + 1, gap_s))
        elif stream.begins.begun and stream.opening_s is not None:
            longer_s = max(stream.opening_s - self._token_s, 0.0)
            self._reopening_s += SMOOTHING * (longer_s - self._reopening_s)

    def _others(self) -> int:
        """Requests in the server's passes beside one."""
        return max(len(self._slots) - 1, 0)

    async def _call(
        self, place: Slot, paths: Mapping[int, Sequence[int]], committed: Sequence[int]
    ) -> Mapping[int, int] | None:
        """The token that the server draws after each of these paths behind `committed`, by the paths' rows.

        None if the call failed, after which the completion has the stream. Raises ClientError if it has none.
        """
        streamed = place.stream is not None
        await self._close_stream(place)
        began = time.monotonic()
        try:
            await self._server.same(FRESH_S)
            drawn = await self._server.rows(place.question, [[*committed, *path] for path in paths.values()])
            tokens = [self._model.completed(one)[0] for one in drawn]
        except RefusedError as problem:
            if place.request is None:
                raise problem.error from None
            why = str(problem)
        except GarbledError as problem:
            why = str(problem)
        except PARTIAL as problem:
            self._server.doubt()
            why = type(problem).__name__
        else:
            seconds = time.monotonic() - began
            if streamed:
                seconds += self._reopening_s
            place.passes.append(Pass(self._others() + len(paths), seconds))
            return dict(zip(paths, tokens))

        log.warning("candidates are verified no more for a completion, since a call failed: %s", why)
        place.calls = False
        if place.request is None:
            raise failed()
        return None


def unserved(request: GenerationRequest) -> ClientError | None:
    """The error of a request that needs more than draws; None if it can be served."""
    needs = {
        "response_format": request.constraint is not None,
        "logprobs": request.row_reader is not None,
        "min_tokens": bool(request.min_tokens),
    }
    for name, needed in needs.items():
        if needed:
            return refusal(name, REFUSES[name], "unsupported_parameter")
    return None


def paths_below(tree: FlatTree, top: int) -> dict[int, list[int]]:
    """The rows below row `top`, itself first, each with the tokens of its path from there."""
    paths: dict[int, list[int]] = {top: []}
    for row in range(top + 1, len(tree)):
        path = paths.get(tree.parents[row])
        if path is not None:
            paths[row] = [*path, tree.tokens[row]]
    return paths


def follow(children: Sequence[Mapping[int, int]], top: int, drawn: Mapping[int, int], draws: dict[int, int]) -> None:
    """Adds to `draws` those of `drawn` that lie on the path of the draws from row `top` on."""
    row: int | None = top
    while row is not None:
        draws[row] = drawn[row]
        row = children[row].get(drawn[row])
