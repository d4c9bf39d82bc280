"""The endpoints: text to tokens, tokens to the engine, its events to the client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, Protocol, TypeVar

import msgspec
from aiohttp import web

from cloud_gateway.api import bodies
from cloud_gateway.api.admission import KeyAdmission, Reservations, TokenUse
from cloud_gateway.api.bodies import SMALL_BYTES, CheckedBody, Encoder, Served, Tokenised
from cloud_gateway.api.completions import ChatForm, Form, Health, Model, Models, TextForm, Tokens, Version
from cloud_gateway.api.errors import ID, shutting_down, unavailable
from cloud_gateway.api.generation import Limits, ServedModel, TurnedThread, check_served, generations
from cloud_gateway.api.grammars import Constraints, Grammar, Grammars
from cloud_gateway.api.observer import Observer
from cloud_gateway.api.respond import (
    Answer,
    CompletionEngine,
    Detokeniser,
    Job,
    StopStrings,
    completed,
    outcome,
    streamed,
    whole,
)
from cloud_gateway.api.schema import ChatBody, Common, CompletionBody, StreamOptions
from cloud_gateway.auth import CacheScopes, Key
from cloud_gateway.core.limits.visits import Visit, Visits
from cloud_gateway.core.requests.request import Extension, GenerationRequest
from edgespec import __version__
from edgespec.core.errors import ClientError, refusal

KEY_FORBIDS = "offloading is off for this API key"
KEY = web.RequestKey("key", Key)
"""The guard (routes.py) stores the caller's key in the request under it."""
State = Literal["loading", "serving", "draining"]
T = TypeVar("T")


class TextCodec(Encoder, Protocol):
    """Text to tokens and back (cloud_gateway/models/text.py)."""

    def detokeniser(self) -> Detokeniser: ...


@dataclass(frozen=True, slots=True)
class CompletionKind:
    """What an endpoint that completes takes, and how its response is written."""

    body: type[Common]
    form: Callable[[ServedModel, Any], Form]
    """(model, body) -> the form of the response."""


CHAT = CompletionKind(ChatBody, ChatForm)
TEXT = CompletionKind(CompletionBody, TextForm)


@dataclass(frozen=True, slots=True)
class Backend:
    """The loaded models behind the endpoints. Without `grammars` every form of a completion is refused."""

    engine: CompletionEngine
    text: TextCodec
    model: ServedModel
    grammars: Grammars | None = None
    own_groups: frozenset[str] = frozenset()
    """Groups of workers on this machine, which may read the prompts of every key."""
    refuses: Mapping[str, str] = field(default_factory=dict)
    """Parameters that the engine cannot serve, each with the reason."""


class Api:
    """The endpoints. Before `serve` and after `drain` they answer 503."""

    def __init__(
        self, limits: Limits, observers: Sequence[Observer] = (), admissions: Sequence[KeyAdmission] = ()
    ) -> None:
        self.limits = limits
        self.admissions = admissions
        self._observers = observers
        self.state: State = "loading"
        self._backend: Backend | None = None
        self._scopes = CacheScopes()
        self._running: set[Answer] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self.visits = Visits(limits.key)
        self.several_keys: Callable[[], bool] = lambda: True
        """Whether a second API key exists, for which a slot has to stay free."""
        # One thread, since a long prompt takes long to encode, and two would encode no faster under the GIL.
        self._encoding = TurnedThread("encode")

        # Another one for schemas, since the worst of them take 0.5 s, for which no prompt has to wait.
        self._schemas = TurnedThread("schema")

    def serve(self, backend: Backend) -> None:
        """The models are loaded: requests are accepted from now on."""
        self._backend = backend
        self.state = "serving"

    def responded(self, endpoint: str, status: int) -> None:
        """A request has its response. `endpoint`: a path of the route table, or `other`."""
        for observer in self._observers:
            observer.responded(endpoint, status)

    async def drain(self, grace_s: float) -> None:
        """Refuses new requests; those running may end within `grace_s` seconds, then they are cancelled."""
        self.state = "draining"
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._idle.wait()
        for answer in self._running:
            answer.cancel()

        self._encoding.close()
        self._schemas.close()
        if self._backend is not None and self._backend.grammars is not None:
            self._backend.grammars.close()

    # --- endpoints -----------------------------------------------------------------------------------------------

    async def healthz(self, request: web.Request) -> web.StreamResponse:
        """200 while requests are accepted, 503 otherwise; shows nothing else, since it needs no key."""
        status = 200 if self.state == "serving" else 503
        return _json(Health(status="ok" if self.state == "serving" else self.state), status)

    @property
    def described(self) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
        """The model's names, and the parameters that are refused, each with the reason; none while it loads."""
        backend = self._backend
        if backend is None:
            return ((), ())
        return (self._names(backend), tuple(backend.refuses.items()))

    async def models(self, request: web.Request) -> web.StreamResponse:
        """`GET /v1/models`: the one model, by its names."""
        backend = self._ready()
        created = backend.model.created
        learn = request[KEY].learn
        return _json(Models(data=[Model(id=name, created=created, learn=learn) for name in self._names(backend)]))

    async def model(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["model"]
        return _json(Model(id=name, created=self._named(name).model.created, learn=request[KEY].learn))

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """`POST /v1/chat/completions`."""
        return await self.complete(request, CHAT)

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """`POST /v1/completions`."""
        return await self.complete(request, TEXT)

    async def tokenize(self, request: web.Request) -> web.StreamResponse:
        """`POST /tokenize`: the tokens of a prompt or a chat."""
        backend = self._ready()
        key = request[KEY]
        visit = self.visits.enter(key.id)
        reservations = Reservations(key, self.admissions)
        used = TokenUse()
        try:
            # How many tokens it takes shows only afterwards: a key with nothing left is refused before.
            reservations.reserve(TokenUse(tokenised=1), time.monotonic())
            data = await self._read(request, visit)
            body = await self._checked(data, key, bodies.to_tokenise)
            encode = partial(bodies.prompts_of, body, backend.text, backend.model.vocab_size)
            (tokens,) = await self._encoding.run(key.id, encode)
            used = TokenUse(tokenised=len(tokens))
        finally:
            visit.end()
            reservations.end(used)

        return _json(Tokens(len(tokens), backend.model.context, tokens))

    async def version(self, request: web.Request) -> web.StreamResponse:
        return _json(Version(__version__))

    # --- common --------------------------------------------------------------------------------------------------

    async def complete(self, request: web.Request, kind: CompletionKind) -> web.StreamResponse:
        """Reads, checks, tokenises, submits and responds; sizes are checked before any expensive work.

        Raises ClientError 400, 404, 408, 429, 503.
        """
        self._ready()
        key = request[KEY]
        visit = self.visits.enter(key.id)
        reservations = Reservations(key, self.admissions)
        answers = list[Answer]()
        try:
            data = await self._read(request, visit)
            asked = await self._checked(data, key, lambda data, served: bodies.asked(data, kind.body, served))
            visit.expect_completions(asked.completions)

            backend = self._ready()
            body = asked.body
            constraints = await self._constraints(key, asked.grammar, backend)
            work = partial(bodies.tokenised, asked, backend.text, self._served(backend))
            tokenised = await self._encoding.run(key.id, work)
            visit.release_bytes()

            requests = self._generations(asked, backend, tokenised, constraints, request)
            most = sum(len(completion.tokens) + completion.max_tokens for completion in requests)
            reservations.reserve(TokenUse(computed=most), time.monotonic())

            answers += self._submit(requests, asked, backend, tokenised)
            form = kind.form(backend.model, asked.received)
            return await self._respond(request, body, form, sum(map(len, tokenised.prompts)), answers)
        finally:
            visit.end()
            reservations.end(TokenUse(computed=sum(answer.used_tokens for answer in answers)))

    async def _checked(self, data: bytes, key: Key, check: Callable[[bytes, Served], T]) -> T:
        """What `check` makes of a body. A long one would hold the event loop, and with it every stream."""
        work = partial(check, data, self._served(self._ready()))
        if len(data) <= SMALL_BYTES:
            return work()
        return await self._encoding.run(key.id, work)

    async def _constraints(self, key: Key, grammar: Grammar | None, backend: Backend) -> Constraints | None:
        """The grammar that the completion must satisfy, compiled. Raises ClientError 400."""
        grammars = backend.grammars
        if grammar is None:
            return None
        if grammars is None:
            raise refusal(grammar.param, "this gateway has no grammars", "unsupported_parameter")

        return await self._schemas.run(key.id, partial(grammars.compile, grammar, self._scopes.of(key)))

    async def _respond(
        self, request: web.Request, body: Common, form: Form, prompt_tokens: int, answers: Sequence[Answer]
    ) -> web.StreamResponse:
        began = time.monotonic()
        options = body.stream_options or StreamOptions()
        extension = body.edgespec or Extension()
        job = Job(
            form,
            answers,
            prompt_tokens,
            include_usage=bool(options.include_usage) or form.always_counts,
            continuous=bool(options.continuous_usage_stats),
            extension=bool(extension.usage),
            named="usage" in self.limits.api.client_options,
        )
        try:
            return await (streamed(job, request, self.limits) if body.stream else whole(job))
        finally:  # also where the client has left: aiohttp cancels this task then
            for answer in answers:
                answer.cancel()
                self._running.discard(answer)
                self._count(answer, began)
            completed(request, request[KEY], form.common["model"], prompt_tokens, answers, began)
            if not self._running:
                self._idle.set()

    def _generations(
        self,
        asked: CheckedBody,
        backend: Backend,
        tokenised: Tokenised,
        constraints: Constraints | None,
        request: web.Request,
    ) -> list[GenerationRequest]:
        """The completions that a request asks for. Raises ClientError 400."""
        key = request[KEY]
        body = asked.body
        workers = frozenset(key.groups if key.offload else ()) | backend.own_groups
        may_offload = body.edgespec is None or body.edgespec.offload != "never"
        check_served(body, backend.refuses, drafted=may_offload and bool(workers))
        requests = generations(
            body,
            tokenised.prompts,
            backend.model,
            self.limits,
            may_offload=bool(workers),
            cache_scope=self._scopes.of(key) if self.limits.api.prefix_cache else b"",
            constraint=constraints,
            brought=tokenised.prepared,
            row_reader=tokenised.annotator.reader if tokenised.annotator is not None else None,
        )

        max_running = self.limits.key_running if self.several_keys() else None
        barred = KEY_FORBIDS if may_offload and not workers else ""
        return [
            replace(
                completion,
                id=request[ID],
                key=key.id,
                key_name=key.name,
                groups=workers,
                barred=barred,
                learn=key.learn,
                max_running=max_running,
            )
            for completion in requests
        ]

    def _submit(
        self, requests: Sequence[GenerationRequest], asked: CheckedBody, backend: Backend, tokenised: Tokenised
    ) -> list[Answer]:
        """All completions of a request, or none: if the queue has no room for one, those before it are cancelled.

        Raises ClientError 400, 429.
        """
        text = backend.text
        answers: list[Answer] = []
        try:
            for completion in requests:
                stream = backend.engine.submit(completion)
                answer = Answer(
                    stream,
                    text.detokeniser(),
                    StopStrings(completion.stop),
                    annotator=tokenised.annotator,
                    reader=asked.reader(),
                    counters=[prepared.counter() for prepared in tokenised.prepared],
                )
                answer.prompt_tokens = len(completion.tokens)
                answers.append(answer)
        except ClientError:
            for answer in answers:
                answer.cancel()
            raise

        self._running.update(answers)
        self._idle.clear()
        return answers

    def _count(self, answer: Answer, began: float) -> None:
        first_token_s = None
        if answer.first_token_at is not None:
            first_token_s = answer.first_token_at - began
        for observer in self._observers:
            observer.completed(outcome(answer), answer.usage, first_token_s)

    async def _read(self, request: web.Request, visit: Visit) -> bytes:
        """The whole body. Raises ClientError 408 and 429, HTTPException 413 and 417, RequestPayloadError."""
        expect = request.headers.get("Expect")
        if expect is not None:
            if expect.lower() != "100-continue":
                raise web.HTTPExpectationFailed
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            request.writer.output_size = 0  # so that aiohttp does not count it as the beginning of the response

        data = bytearray()
        most = self.limits.max_body_bytes
        try:
            async with asyncio.timeout(self.limits.read_timeout_s):
                async for chunk in request.content.iter_any():
                    visit.hold_bytes(len(chunk))
                    data += chunk
                    if len(data) > most:
                        raise web.HTTPRequestEntityTooLarge(most, len(data))
        except TimeoutError:
            raise ClientError("The request body did not arrive in time.", status=408, code="request_timeout") from None

        return bytes(data)

    def _ready(self) -> Backend:
        if self.state == "loading" or self._backend is None:
            raise unavailable("The gateway is still loading its model; try again shortly.", code="loading")
        if self.state == "draining":
            raise shutting_down()
        return self._backend

    def _served(self, backend: Backend) -> Served:
        return Served(backend.model, self._names(backend), self.limits)

    def _names(self, backend: Backend) -> tuple[str, ...]:
        return backend.model.id, *self.limits.api.model_alias

    def _named(self, model: str) -> Backend:
        backend = self._ready()
        bodies.check_name(model, self._names(backend))
        return backend


def _json(body: msgspec.Struct, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), status=status, content_type="application/json")
