"""One response from its choices: as a whole, or as a stream of events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import msgspec
from aiohttp import web
from msgspec import UNSET, Struct, UnsetType

from cloud_gateway.api.answer import Answer
from cloud_gateway.api.completions import Form, Piece
from cloud_gateway.api.limits import Limits
from cloud_gateway.api.sse import FRAME_BYTES, LOGPROBS_FRAMES, ClientGoneError, EvenStream, EventStream, event, merged
from cloud_gateway.api.usage import Counts, Timings, combined, timings, unnamed, usage_extension, usage_object
from edgespec.core.errors import ClientError


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
        if self.extension:
            counts.edgespec = usage_extension(found if self.named else unnamed(found))
        return counts, timings(found)

    async def usages(self) -> AsyncIterator[tuple[Counts, Timings]]:
        """The same as a source of one item."""
        yield await self.usage()

    def so_far(self) -> Counts | UnsetType | None:
        """The usage in an event of a stream that is not its last."""
        if self.continuous:
            return usage_object(self.prompt_tokens, sum(answer.tokens for answer in self.answers))
        return None if self.include_usage else UNSET


async def whole(job: Job) -> web.Response:
    """Waits for all choices. Raises ClientError where one fails."""
    found: list[list[Piece]] = [[] for _ in job.answers]
    async with aclosing(merged([answer.pieces() for answer in job.answers])) as items:
        async for item in items:
            if item is not None and item[1] is not None:
                found[item[0]].append(item[1])
    outputs = [(_joined(pieces, answer), answer.end) for pieces, answer in zip(found, job.answers, strict=True)]
    body = msgspec.json.encode(job.form.whole(outputs, *await job.usage()))
    return web.Response(body=body, content_type="application/json")


def _joined(pieces: Sequence[Piece], answer: Answer) -> Piece:
    logprobs = [entry for piece in pieces for entry in piece.logprobs or ()] if answer.has_logprobs else None
    return Piece("".join(piece.text for piece in pieces), logprobs)


async def streamed(job: Job, request: web.Request, limits: Limits) -> web.StreamResponse:
    """Sends events while text is generated.

    The headers are sent with the first event, or after `KEEPALIVE_S`, of an even stream at once: a failure before that
    has its own status (raises ClientError), a later one becomes an event. Raises ClientGoneError.
    """
    events = EventStream(request, limits.write_timeout_s)
    if limits.api.stream == "even":
        with_logprobs = any(answer.has_logprobs for answer in job.answers)
        size = FRAME_BYTES * len(job.answers) * (LOGPROBS_FRAMES if with_logprobs else 1)
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
    form, begun = job.form, set[int]()
    async with aclosing(merged([answer.pieces() for answer in job.answers], idle_s)) as items:
        async for item in items:
            if item is None:
                yield None
                continue
            index, piece = item
            form.usage = job.so_far()
            opening = () if index in begun else form.opening(index)
            begun.add(index)
            rest = form.closing(index, job.answers[index].end) if piece is None else form.piece(index, piece)
            for chunk in (*opening, *rest):
                yield chunk
    if job.include_usage:
        async with aclosing(merged([job.usages()], idle_s)) as usages:
            async for found in usages:
                for last in () if found is None or found[1] is None else form.counts(*found[1]):
                    yield last
                if found is None:
                    yield None


__all__ = ["ClientGoneError", "Job", "streamed", "whole"]
