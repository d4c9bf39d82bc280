"""What the endpoints do: text to tokens, tokens to the engine, its events to the client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, TypeVar

import msgspec
from aiohttp import web

from cloud_gateway.api import report
from cloud_gateway.api.answer import Answer, Detokeniser, Engine, Stops
from cloud_gateway.api.errors import unavailable
from cloud_gateway.api.formats import ChatFormat, Envelope, Format, TextFormat, model_object
from cloud_gateway.api.generation import Limits, ServedModel, generations
from cloud_gateway.api.request_id import ID
from cloud_gateway.api.respond import Job, streamed, whole
from cloud_gateway.api.schema import (
    Body,
    ChatBody,
    Common,
    CompletionBody,
    chat_messages,
    decode,
    refusal,
    wanted_schema,
)
from cloud_gateway.api.tools import CallText, offered
from cloud_gateway.auth import Key
from cloud_gateway.core.request import Constraint
from cloud_gateway.metrics import Metrics
from cloud_gateway.scope import CacheScopes
from edgespec.core.errors import ClientError

KEY_FORBIDS = "offloading is off for this API key"
KEY = web.RequestKey("key", Key)
"""Under which the guard leaves the caller's key in the request."""
State = Literal["loading", "serving", "draining"]
T = TypeVar("T")


class Text(Protocol):
    """Text to tokens and back (cloud_gateway/text.py)."""

    @property
    def has_tools(self) -> bool: ...
    def render_chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None
    ) -> list[int]: ...
    def encode(self, text: str) -> list[int]: ...
    def spell(self, token: int) -> bytes: ...
    def detokeniser(self) -> Detokeniser: ...
    def stops(self, strings: Sequence[str]) -> Stops: ...


class Schema(Protocol):
    """A compiled JSON schema (cloud_gateway/grammar.py)."""

    def constraint(self) -> Constraint: ...


class Grammars(Protocol):
    """Compiles JSON schemas (cloud_gateway/grammar.py)."""

    def compile(self, schema: Mapping[str, Any], param: str = ...) -> Schema:
        """Raises ClientError 400."""


@dataclass(frozen=True, slots=True)
class Backend:
    """What answers requests, once it is loaded. Without `grammars` there is no `response_format`."""

    engine: Engine
    text: Text
    model: ServedModel
    grammars: Grammars | None = None


@dataclass(frozen=True, slots=True)
class Prepared:
    """What is made of a body before any answer is asked for."""

    prompts: Sequence[list[int]]
    schema: Schema | None = None
    tools: Sequence[str] = ()
    """Names that the model may call."""


class Api:
    """The endpoints. Before `serve` and after `drain` they answer 503."""

    def __init__(self, limits: Limits, metrics: Metrics) -> None:
        self.limits, self.metrics = limits, metrics
        self.state: State = "loading"
        self._backend: Backend | None = None
        self._scopes = CacheScopes()
        self._running: set[Answer] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        # One thread, since a long prompt takes long to encode, and two would encode no faster under the GIL.
        self._encoding = ThreadPoolExecutor(1, thread_name_prefix="encode")

    def serve(self, backend: Backend) -> None:
        """The models are loaded: requests are taken from now on."""
        self._backend, self.state = backend, "serving"

    async def drain(self, grace_s: float) -> None:
        """Takes no more requests; those running may end within `grace_s` seconds, then they are cancelled."""
        self.state = "draining"
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._idle.wait()
        for answer in self._running:
            answer.cancel()
        self._encoding.shutdown(wait=False, cancel_futures=True)

    # --- endpoints -----------------------------------------------------------------------------------------------

    async def healthz(self, request: web.Request) -> web.StreamResponse:
        """200 while requests are taken, 503 otherwise; says nothing else to the public."""
        body = msgspec.json.encode({"status": "ok" if self.state == "serving" else self.state})
        status = 200 if self.state == "serving" else 503
        return web.Response(body=body, status=status, content_type="application/json")

    async def models(self, request: web.Request) -> web.StreamResponse:
        """The one model."""
        listing = {"object": "list", "data": [model_object(self._ready().model)]}
        return web.Response(body=msgspec.json.encode(listing), content_type="application/json")

    async def model(self, request: web.Request) -> web.StreamResponse:
        """The model by its id, or 404."""
        served = self._named(request.match_info["model"]).model
        return web.Response(body=msgspec.json.encode(model_object(served)), content_type="application/json")

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """`POST /v1/chat/completions`."""
        body = await self._body(request, ChatBody)
        backend = self._named(body.model)
        prepared = await self._encode(lambda: _prepared(body, backend))
        return await self._respond(request, body, backend, prepared, ChatFormat())

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """`POST /v1/completions`."""
        body = await self._body(request, CompletionBody)
        backend = self._named(body.model)
        prompts = await self._encode(lambda: _prompts(body.prompt, backend))
        return await self._respond(request, body, backend, Prepared(prompts), TextFormat())

    # --- what they share -----------------------------------------------------------------------------------------

    async def _respond(
        self,
        request: web.Request,
        body: Common,
        backend: Backend,
        prepared: Prepared,
        form: Format,
    ) -> web.StreamResponse:
        began = time.monotonic()
        key: Key = request[KEY]
        answers = self._submit(body, backend, prepared, key, request[ID])
        include_usage = bool(body.stream_options and body.stream_options.include_usage)
        job = Job(Envelope(form, backend.model), answers, sum(map(len, prepared.prompts)), include_usage)
        try:
            return await (streamed(job, request, self.limits) if body.stream else whole(job))
        finally:  # also where the client has left: aiohttp cancels this task then
            for answer in answers:
                answer.cancel()
                self._running.discard(answer)
                self._count(answer, began)
            spent_s = time.monotonic() - began
            report.completed(request[ID], key, backend.model.id, job.prompt_tokens, answers, spent_s)
            if not self._running:
                self._idle.set()

    def _submit(self, body: Common, backend: Backend, prepared: Prepared, key: Key, request_id: str) -> list[Answer]:
        """All answers of a request, or none: where the queue has no room for the last, the first ones are cancelled."""
        constraint = prepared.schema.constraint if prepared.schema else None
        wishes = generations(
            body,
            prepared.prompts,
            backend.model,
            self.limits,
            may_offload=key.offload,
            cache_scope=self._scopes.of(key),
            constraint=constraint,
        )
        asked = body.edgespec is None or body.edgespec.offload != "never"
        answers: list[Answer] = []
        try:
            for wish in wishes:
                groups = frozenset(key.groups)
                wish = replace(wish, id=request_id, key=key.id, key_name=key.name, groups=groups)
                stream = backend.engine.submit(wish)
                text = backend.text
                reason = KEY_FORBIDS if asked and not key.offload else None
                spell = text.spell if wish.top_logprobs is not None else None
                call_text = CallText(prepared.tools) if prepared.tools else None
                stops = text.stops(wish.stop)
                answers.append(Answer(stream, text.detokeniser(), stops, reason, spell=spell, call_text=call_text))
        except ClientError as error:
            for answer in answers:
                answer.cancel()
            if error.code == "context_length_exceeded":
                error.param = "messages" if isinstance(body, ChatBody) else "prompt"
            raise
        self._running.update(answers)
        self._idle.clear()
        return answers

    def _count(self, answer: Answer, began: float) -> None:
        self.metrics.answer(report.outcome(answer), answer.usage)
        if answer.first_token_at is not None:
            self.metrics.first_token(answer.first_token_at - began)

    async def _body(self, request: web.Request, kind: type[Body]) -> Body:
        self._ready()
        try:
            async with asyncio.timeout(self.limits.read_timeout_s):
                data = await read_body(request, self.limits.max_body_bytes)
        except TimeoutError:
            raise ClientError("The request body did not arrive in time.", status=408, code="request_timeout") from None
        return decode(data, kind)

    async def _encode(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._encoding, work)

    def _ready(self) -> Backend:
        if self.state == "loading" or self._backend is None:
            raise unavailable("The gateway is still loading its model; try again shortly.", code="loading")
        if self.state == "draining":
            raise unavailable("The gateway is shutting down; send the request again shortly.", code="shutting_down")
        return self._backend

    def _named(self, model: str) -> Backend:
        backend = self._ready()
        if model != backend.model.id:
            sentence = f"The model '{model[:100]}' does not exist here; this gateway serves '{backend.model.id}'."
            raise ClientError(sentence, status=404, param="model", code="model_not_found")
        return backend


async def read_body(request: web.Request, most: int) -> bytes:
    """The whole body, of at most so many bytes. Raises HTTPException 413, 417, RequestPayloadError."""
    expect = request.headers.get("Expect")
    if expect is not None:
        if expect.lower() != "100-continue":
            raise web.HTTPExpectationFailed
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # the response proper has not begun
    data = bytearray()
    async for chunk in request.content.iter_any():
        data += chunk
        if len(data) > most:
            raise web.HTTPRequestEntityTooLarge(most, len(data))
    return bytes(data)


def _prepared(body: ChatBody, backend: Backend) -> Prepared:
    """Prompt and grammar of a chat. Raises ClientError 400."""
    wanted, schema = wanted_schema(body), None
    if wanted is not None:
        if backend.grammars is None:
            raise refusal("response_format", "this gateway has no grammars", "unsupported_parameter")
        schema = backend.grammars.compile(wanted)
    tools = offered(body.tools, body.tool_choice)
    messages = chat_messages(body.messages, tools=backend.text.has_tools)
    prompt = backend.text.render_chat(messages, tools)
    return Prepared([prompt], schema, [tool["function"]["name"] for tool in tools or ()])


def _prompts(prompt: str | list[Any], backend: Backend) -> list[list[int]]:
    """The prompts of a text completion as tokens: one string or token list, or a list of either."""
    if isinstance(prompt, list) and all(isinstance(item, int) for item in prompt):
        prompt = [prompt]
    items = prompt if isinstance(prompt, list) else [prompt]
    prompts = []
    for item in items:
        if isinstance(item, int):
            raise refusal("prompt", "token ids and other prompts cannot be mixed in one list")
        tokens = backend.text.encode(item) if isinstance(item, str) else item
        if max(tokens, default=0) >= backend.model.vocab_size:
            raise refusal("prompt", f"a token is outside the model's vocabulary of {backend.model.vocab_size}")
        prompts.append(tokens)
    return prompts
