"""One response from its choices: as a whole, or as a stream of events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import msgspec
from aiohttp import web
from msgspec import UNSET

from cloud_gateway.api.answer import Answer, Piece
from cloud_gateway.api.errors import error_object
from cloud_gateway.api.frames import FRAME_BYTES, LOGPROBS_FRAMES
from cloud_gateway.api.limits import Limits
from cloud_gateway.api.responses import Envelope, Enveloped
from cloud_gateway.api.sse import ClientGoneError, EvenStream, EventStream, event, merged
from cloud_gateway.api.usage import Counts, usage_object
from edgespec.core.errors import ClientError


@dataclass(frozen=True, slots=True)
class Job:
    """The choices of one request, in the order of their index."""

    envelope: Envelope
    answers: Sequence[Answer]
    prompt_tokens: int
    include_usage: bool = False
    """Whether a stream ends with a usage chunk."""

    async def usage(self) -> Counts:
        """The `usage` object, after all pieces."""
        return usage_object(self.prompt_tokens, [await answer.settle() for answer in self.answers])

    async def usages(self) -> AsyncIterator[Counts]:
        """The same as a source of one item."""
        yield await self.usage()


async def whole(job: Job) -> web.Response:
    """Waits for all choices. Raises ClientError where one fails."""
    found: list[list[Piece]] = [[] for _ in job.answers]
    async with aclosing(merged([answer.pieces() for answer in job.answers])) as items:
        async for item in items:
            if item is not None and item[1] is not None:
                found[item[0]].append(item[1])
    choices = [
        _choice(job, index, pieces, answer)
        for index, (pieces, answer) in enumerate(zip(found, job.answers, strict=True))
    ]
    body = msgspec.json.encode(job.envelope.whole(choices, await job.usage()))
    return web.Response(body=body, content_type="application/json")


def _choice(job: Job, index: int, pieces: Sequence[Piece], answer: Answer) -> Any:
    text = "".join(piece.text for piece in pieces)
    logprobs = [entry for piece in pieces for entry in piece.logprobs or ()] if answer.has_logprobs else None
    return job.envelope.form.choice(index, text, answer.finish, logprobs, answer.calls)


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
        await events.end(event(error_object(error)))
    return events.response


async def _chunks(job: Job, idle_s: Callable[[], float]) -> AsyncGenerator[Enveloped | None, None]:
    """All events but the end mark; None after `idle_s()` without one."""
    form = job.envelope.form
    usage = None if job.include_usage else UNSET
    begun: set[int] = set()
    async with aclosing(merged([answer.pieces() for answer in job.answers], idle_s)) as items:
        async for item in items:
            if item is None:
                yield None
                continue
            index, piece = item
            opening = form.opening(index) if index not in begun else None
            begun.add(index)
            if opening is not None:
                yield job.envelope.chunk(opening, usage)
            answer = job.answers[index]
            if piece is not None:
                yield job.envelope.chunk(form.piece(index, piece.text, piece.logprobs), usage)
                continue
            if answer.calls:
                yield job.envelope.chunk(form.calls(index, answer.calls), usage)
            yield job.envelope.chunk(form.closing(index, answer.finish), usage)
    if job.include_usage:
        async with aclosing(merged([job.usages()], idle_s)) as usages:
            async for found in usages:
                if found is None:
                    yield None
                elif found[1] is not None:
                    yield job.envelope.chunk(None, found[1])


__all__ = ["ClientGoneError", "Job", "streamed", "whole"]
