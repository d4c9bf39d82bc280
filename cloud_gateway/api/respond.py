"""One response from its choices: as a whole, or as a stream of events."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass

import msgspec
from aiohttp import web

from cloud_gateway.api.answer import Answer, Piece
from cloud_gateway.api.errors import error_object
from cloud_gateway.api.formats import Envelope, Json
from cloud_gateway.api.limits import Limits
from cloud_gateway.api.sse import ClientGoneError, EventStream, merged
from cloud_gateway.api.usage import usage_object
from edgespec.core.errors import ClientError


@dataclass(frozen=True, slots=True)
class Job:
    """The choices of one request, in the order of their index."""

    envelope: Envelope
    answers: Sequence[Answer]
    prompt_tokens: int
    include_usage: bool = False
    """Whether a stream ends with a usage chunk."""

    async def usage(self) -> Json:
        """The `usage` object, after all pieces."""
        return usage_object(self.prompt_tokens, [await answer.settle() for answer in self.answers])


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


def _choice(job: Job, index: int, pieces: Sequence[Piece], answer: Answer) -> Json:
    text = "".join(piece.text for piece in pieces)
    logprobs = [entry for piece in pieces for entry in piece.logprobs or ()] if answer.has_logprobs else None
    return job.envelope.form.choice(index, text, answer.finish, logprobs, answer.calls)


async def streamed(job: Job, request: web.Request, limits: Limits) -> web.StreamResponse:
    """Sends events while text is generated.

    The headers are sent with the first event, or after `keepalive_s`: a failure before that has its own status (raises
    ClientError), a later one becomes an event. Raises ClientGoneError.
    """
    events = EventStream(request, limits.write_timeout_s)
    try:
        await _send_pieces(job, events, limits.api.keepalive_s)
        if job.include_usage:
            await events.send(job.envelope.chunk(None, {"usage": await job.usage()}))
        await events.done()
    except ClientError as error:
        if not events.opened:
            raise
        await events.send(error_object(error))
    return events.response


async def _send_pieces(job: Job, events: EventStream, keepalive_s: float) -> None:
    form = job.envelope.form
    extra: Json = {"usage": None} if job.include_usage else {}
    begun: set[int] = set()
    async with aclosing(merged([answer.pieces() for answer in job.answers], keepalive_s)) as items:
        async for item in items:
            await events.open()
            if item is None:
                await events.keep_alive()
                continue
            index, piece = item
            opening = form.opening(index) if index not in begun else None
            begun.add(index)
            if opening is not None:
                await events.send(job.envelope.chunk(opening, extra))
            answer = job.answers[index]
            if piece is not None:
                await events.send(job.envelope.chunk(form.piece(index, piece), extra))
                continue
            if answer.calls:
                await events.send(job.envelope.chunk(form.calls(index, answer.calls), extra))
            await events.send(job.envelope.chunk(form.closing(index, answer.finish), extra))


__all__ = ["ClientGoneError", "Job", "streamed", "whole"]
