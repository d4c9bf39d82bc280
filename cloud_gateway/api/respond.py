"""A response: its choices from the engine's tokens, and all of them as a whole or as a stream of events.

A choice is text, cut at the first stop string, with usage, and with what an annotator says about its tokens.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Protocol

import msgspec
from aiohttp import web
from msgspec import UNSET, Struct, UnsetType

from cloud_gateway.api.completions import End, Finish, Form, TextPiece
from cloud_gateway.api.errors import (
    COMPLETED,
    ID,
    internal,
    lines,
    named,
    requests_log,
    shutting_down,
    unavailable,
)
from cloud_gateway.api.generation import Limits
from cloud_gateway.api.parameters import Annotator, Call, Counter, Reader
from cloud_gateway.api.sse import FRAME_BYTES, EvenStream, EventStream, event, merged
from cloud_gateway.api.usage import (
    Counts,
    Timings,
    combined,
    timings,
    unnamed,
    usage_extension,
    usage_object,
)
from cloud_gateway.auth import Key
from cloud_gateway.core.requests.request import (
    DoneEvent,
    Event,
    GenerationRequest,
    TokensEvent,
    Usage,
)
from edgespec.core.errors import ClientError


class CompletionStream(Protocol):
    """One answer from the engine (cloud_gateway/engine/exchange.py)."""

    def __aiter__(self) -> AsyncIterator[Event]: ...

    def cancel(self) -> None:
        """Ends the completion after its current round; may be called twice."""


class CompletionEngine(Protocol):
    """The part of the engine that the API uses (cloud_gateway/engine/loop.py)."""

    def submit(self, request: GenerationRequest) -> CompletionStream:
        """Queues a request. Raises ClientError 400 (context_length_exceeded) or 429."""


class Detokeniser(Protocol):
    """Incremental: returns text once it can no longer change (cloud_gateway/models/text.py)."""

    def feed(self, token: int) -> str: ...
    def flush(self) -> str: ...


def beginning(text: str, strings: Iterable[str]) -> int:
    """Length of the longest end of the text that begins one of these strings, and is not all of it."""
    longest = 0
    for string in strings if text else ():
        for n in range(min(len(string) - 1, len(text)), longest, -1):
            if string[n - 1] == text[-1] and text.endswith(string[:n]):
                longest = n
                break

    return longest


class StopStrings:
    """Cuts a text at the first stop string, which may span pieces, and holds text that may become one.

    The string that is complete first is used, and of several complete at the same character the longest. So the result
    does not depend on how the text is cut into pieces, and `stopped` is set by the piece that completes the string.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = [string for string in strings if string]
        self._held = ""
        self.stopped = False

    def feed(self, text: str) -> str:
        """The text that can be sent; after a stop string always empty."""
        if self.stopped:
            return ""

        text = self._held + text
        found = [(at + len(string), at) for string in self._strings if (at := text.find(string)) >= 0]
        if found:
            self.stopped = True
            self._held = ""
            return text[: min(found)[1]]

        keep = beginning(text, self._strings)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """The held text, at the end of a completion without a stop string."""
        held = self._held
        self._held = ""
        return held


@dataclass(frozen=True, slots=True)
class HeldAnnotation:
    """About a token whose text has not been returned yet; `offset`: characters of the completion before that text."""

    offset: int
    annotation: object


class Answer:
    """Iterate over `pieces()` to the end, then `finish` and `calls` are set and `settle()` gives the usage."""

    def __init__(
        self,
        stream: CompletionStream,
        detokeniser: Detokeniser,
        stops: StopStrings,
        *,
        annotator: Annotator | None = None,
        reader: Reader | None = None,
        counters: Sequence[Counter] = (),
    ) -> None:
        """`annotator`, `reader` and `counters`: of the request's parameters."""
        self.finish: Finish | None = None
        self.calls: Sequence[Call] = ()
        self.failed = False
        self.first_token_at: float | None = None
        """On the clock of time.monotonic."""
        self.usage: Usage | None = None
        """Set when the engine has ended the completion."""
        self.prompt_tokens = 0
        self._stream = stream
        self._events = aiter(stream)
        self._detokeniser = detokeniser
        self._stops = stops
        self._tokens = 0
        self.annotator = annotator
        self._reader = reader
        self._counters = counters
        self._held: deque[HeldAnnotation] = deque()
        self._decoded = self._passed = 0
        """Characters of all tokens, and those that no stop string can remove any more."""

    async def pieces(self) -> AsyncIterator[TextPiece]:
        """Text once it can no longer change. Raises ClientError where the engine fails or shuts down."""
        async for found in self._events:
            if isinstance(found, DoneEvent):
                text = self._end(found)
            else:
                self.first_token_at = self.first_token_at or time.monotonic()
                text = self._text(found)
                if self._stops.stopped:
                    self.finish = "stop"
                    self._stream.cancel()
            piece = self._piece(text)
            if piece.text or piece.annotations:
                yield piece
            if self.finish is not None:
                return

    @property
    def event_bytes(self) -> int:
        """Bytes of its events in a frame of an even stream."""
        if self.annotator is None:
            return FRAME_BYTES
        return FRAME_BYTES * self.annotator.enlarges

    @property
    def end(self) -> End:
        """After the last piece."""
        return End(self.finish, self.calls)

    @property
    def tokens(self) -> int:
        """Tokens of the completion so far."""
        if self.usage is not None:
            return self.usage.completion_tokens
        return self._tokens

    @property
    def used_tokens(self) -> int:
        """Tokens of the prompt and of the completion so far."""
        return self.prompt_tokens + self.tokens

    @property
    def details(self) -> Mapping[str, int]:
        """What the request's parameters count of the completion so far."""
        counted: dict[str, int] = {}
        for counter in self._counters:
            counted.update(counter.details())
        return counted

    def cancel(self) -> None:
        """The client left, or the response is over; idempotent."""
        self._stream.cancel()

    async def settle(self) -> Usage:
        """The usage, after all pieces; waits for the engine where a stop string ended the text early."""
        if self.usage is None:
            async for found in self._events:
                if isinstance(found, DoneEvent):
                    self._take_usage(found.usage)

        if self.usage is None:
            raise internal("the engine ended a completion without a final event")

        return self.usage

    def _text(self, event: TokensEvent) -> str:
        """Token by token, so that the tokens up to a stop string are counted exactly in every size of a round."""
        pieces = []
        for index, token in enumerate(event.tokens):
            self._tokens += 1
            for counter in self._counters:
                counter.emitted(token)
            if self.annotator is not None and event.readings is not None:
                annotation = self.annotator.annotate(token, event.readings[index], self._decoded)
                self._held.append(HeldAnnotation(self._decoded, annotation))
            text = self._detokeniser.feed(token)
            self._decoded += len(text)
            pieces.append(self._stops.feed(text))
            if self._stops.stopped:
                break

        return "".join(pieces)

    def _piece(self, text: str) -> TextPiece:
        """The piece to return for text that has passed the stop strings."""
        self._passed += len(text)
        ended = self.finish is not None
        annotations = self._annotations(whole=ended and not self._stops.stopped)
        if self._reader is not None:
            text = self._read(text, self._reader, ended=ended)
        return TextPiece(text, annotations, self.annotator)

    def _read(self, text: str, reader: Reader, *, ended: bool) -> str:
        """The text that is no call; at the end the calls, too."""
        text = reader.feed(text)
        if not ended:
            return text

        rest, self.calls = reader.end(cut=self.finish == "length")
        if self.calls and self.finish == "stop":
            self.finish = "tool_calls"
        return text + rest

    def _annotations(self, *, whole: bool) -> Sequence[object]:
        """Those of the tokens that begin in the text that has passed; `whole`: of all that are left."""
        annotations: list[object] = []
        while self._held and (whole or self._held[0].offset < self._passed):
            annotations.append(self._held.popleft().annotation)
        return annotations

    def _end(self, done: DoneEvent) -> str:
        self._take_usage(done.usage)
        if done.finish == "error":
            self.failed = True
            if done.refusal is not None:
                raise done.refusal
            raise internal(done.error or "the engine failed without a reason")

        if done.finish == "cancelled" and done.error:
            raise unavailable(done.error, code="engine_stopped")
        if done.finish == "cancelled":
            raise shutting_down()

        tail = self._stops.feed(self._detokeniser.flush())
        tail += self._stops.flush()
        self.finish = "stop" if self._stops.stopped else done.finish
        return tail

    def _take_usage(self, usage: Usage) -> None:
        completion_tokens = usage.completion_tokens
        if self._stops.stopped:
            completion_tokens = self._tokens
        self.usage = replace(usage, completion_tokens=completion_tokens)


@dataclass(frozen=True, slots=True)
class Job:
    """The choices of one request, in the order of their index."""

    form: Form
    answers: Sequence[Answer]
    prompt_tokens: int
    include_usage: bool = False
    """Whether a stream ends with the usage."""
    continuous: bool = False
    """Whether every event of a stream has the usage so far."""
    extension: bool = False
    """Whether the usage has the figures of speculation, and the workers' names in them."""
    named: bool = False

    async def usage(self) -> tuple[Counts, Timings]:
        """`usage` and `timings`, after all pieces."""
        found = combined([await answer.settle() for answer in self.answers])
        counts = usage_object(self.prompt_tokens, found.completion_tokens)
        details = self._details()
        if details:
            counts.completion_tokens_details = details
        if self.extension:
            counts.edgespec = usage_extension(found if self.named else unnamed(found))
        return counts, timings(found)

    def _details(self) -> dict[str, int]:
        """What the request's parameters count, of all choices together."""
        total: dict[str, int] = {}
        for answer in self.answers:
            for name, count in answer.details.items():
                total[name] = total.get(name, 0) + count
        return total

    async def usages(self) -> AsyncIterator[tuple[Counts, Timings]]:
        """The same as a source of one item."""
        yield await self.usage()

    def so_far(self) -> Counts | UnsetType | None:
        """The usage in an event of a stream that is not its last."""
        if self.continuous:
            return usage_object(self.prompt_tokens, sum(answer.tokens for answer in self.answers))
        if self.include_usage:
            return None
        return UNSET


async def whole(job: Job) -> web.Response:
    """Waits for all choices. Raises ClientError where one fails."""
    found: list[list[TextPiece]] = [[] for _ in job.answers]
    async with aclosing(merged([answer.pieces() for answer in job.answers])) as items:
        async for item in items:
            if item is not None and item[1] is not None:
                found[item[0]].append(item[1])

    outputs = [
        (_joined(pieces, answer.annotator), answer.end) for pieces, answer in zip(found, job.answers, strict=True)
    ]
    body = msgspec.json.encode(job.form.whole(outputs, *await job.usage()))
    return web.Response(body=body, content_type="application/json")


def _joined(pieces: Sequence[TextPiece], annotator: Annotator | None) -> TextPiece:
    annotations = [annotation for piece in pieces for annotation in piece.annotations]
    return TextPiece("".join(piece.text for piece in pieces), annotations, annotator)


async def streamed(job: Job, request: web.Request, limits: Limits) -> web.StreamResponse:
    """Sends events while text is generated.

    The headers are sent with the first event, or after `KEEPALIVE_S`, of an even stream at once: a failure before that
    has its own status (raises ClientError), a later one becomes an event. Raises ClientGoneError.
    """
    events = EventStream(request, limits.write_timeout_s)
    if limits.api.stream == "even":
        size = sum(answer.event_bytes for answer in job.answers)
        events = EvenStream(request, limits.write_timeout_s, size)
        await events.open()

    try:
        async with aclosing(_chunks(job, events.idle_s)) as chunks:
            async for chunk in chunks:
                await events.open()
                await (events.idle() if chunk is None else events.send(chunk))
        await events.end()
    except ClientError as error:
        if not events.opened:
            raise
        await events.end(event(job.form.failure(error)))

    return events.response


async def _chunks(job: Job, idle_s: Callable[[], float]) -> AsyncGenerator[Struct | None, None]:
    """All events but the end mark; None after `idle_s()` without one."""
    form = job.form
    begun = set[int]()
    async with aclosing(merged([answer.pieces() for answer in job.answers], idle_s)) as items:
        async for item in items:
            if item is None:
                yield None
                continue
            index, piece = item
            form.usage = job.so_far()
            opening = () if index in begun else form.opening(index)
            begun.add(index)
            if piece is None:
                rest = form.closing(index, job.answers[index].end)
            else:
                rest = form.piece(index, piece)
            for chunk in (*opening, *rest):
                yield chunk

    if job.include_usage:
        async with aclosing(merged([job.usages()], idle_s)) as usages:
            async for found in usages:
                for last in () if found is None or found[1] is None else form.counts(*found[1]):
                    yield last
                if found is None:
                    yield None


MAX_CANCELLED_LINES = 20
"""A minute, of one key: a client that cancels requests as fast as it sends them would fill the log."""
_cancelled = itertools.count()


def completed(
    request: web.Request,
    key: Key,
    model: str,
    prompt_tokens: int,
    answers: Sequence[Answer],
    began: float,
) -> None:
    """Logs that the completions of a request are over: id, key, tokens, time, outcome; no text of it or of them.

    Each ends with `finish` as in the API, `cancelled` or `error`.
    """
    request[COMPLETED] = True
    tokens = sum(answer.tokens for answer in answers)
    ends = list(dict.fromkeys(outcome(answer) for answer in answers))
    figures = _pace(answers, tokens, began)
    pace = ", ".join(text for name, text in TEXTS.items() if figures[name] is not None).format(**figures)
    text = (
        f"{request[ID]} of API key {named(key)}: model {model}, {prompt_tokens} prompt tokens, "
        f"{tokens} completion tokens, {pace}, {', '.join(ends)}"
    )
    figures |= {
        "request": request[ID],
        "key": key.id,
        "key_name": key.name,
        "model": model,
        "finish": ends,
    }
    figures |= {"prompt_tokens": prompt_tokens, "completion_tokens": tokens}
    if ends == ["cancelled"]:
        kind = (key.id, "cancelled", next(_cancelled) % MAX_CANCELLED_LINES)
        lines.line(logging.INFO, kind, text, figures=figures)
    else:
        requests_log.log(
            logging.WARNING if "error" in ends else logging.INFO,
            "%s",
            text,
            extra={"figures": figures},
        )


TEXTS = {
    "seconds": "{seconds:.3f} s",
    "first_token_s": "first token after {first_token_s:.3f} s",
    "tokens_per_s": "{tokens_per_s:.1f} tokens/s",
    "drafted_by": "drafted by {drafted_by}",
}
"""A line's text of each figure, if there is one."""


def _pace(answers: Sequence[Answer], tokens: int, began: float) -> dict[str, Any]:
    """Times since `began` (time.monotonic), and whose drafts were accepted."""
    spent_s = time.monotonic() - began
    first = min(
        (answer.first_token_at for answer in answers if answer.first_token_at is not None),
        default=None,
    )
    found: dict[str, Any] = dict.fromkeys(TEXTS) | {"seconds": round(spent_s, 4)}
    if first is None:
        return found

    usages = [answer.usage for answer in answers if answer.usage is not None]
    workers = {name for usage in usages for name, counts in usage.by_worker.items() if counts.get("accepted")}
    others = {
        source
        for usage in usages
        for source, count in usage.accepted.items()
        if count and not (workers and source == "worker")
    }
    rate = tokens / max(began + spent_s - first, 0.001)
    drafted = ", ".join(sorted(workers) + sorted(others)) or "nobody"
    return found | {
        "first_token_s": round(first - began, 4),
        "tokens_per_s": round(rate, 2),
        "drafted_by": drafted,
    }


def outcome(answer: Answer) -> str:
    """How one completion ended; `cancelled` where the client left, or another completion of the request failed."""
    return answer.finish or ("error" if answer.failed else "cancelled")
