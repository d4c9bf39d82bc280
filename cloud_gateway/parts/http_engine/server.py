"""The connection to a server that computes the target: what it is, and its responses as tokens or as one sentence.

A sentence of the server's may quote a request, so the log has statuses only. Errors that are about a client's request
keep their status. All others are 502 or 503: this gateway's key and address are not the client's concern.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import aiohttp
import msgspec
from msgspec import Struct

from cloud_gateway.parts.http_engine.dialects import (
    Body,
    Dialect,
    Drawn,
    GarbledError,
    LlamaServer,
    OpenAi,
    Question,
    ServerRefusal,
    refusal_of,
)
from edgespec.core.errors import UNDECODABLE, ClientError, ModelError

CONNECT_S = 10.0
STALL_S = 300.0
"""Longest silence in a response: a server on a CPU may read a long prompt for minutes."""
MAX_LINE_BYTES = 1 << 22
MAX_ERROR_BYTES = 1 << 16
PIECE = 4
"""Tokens of a response of a server that does not stream: the client gets them at once."""
FRESH_S = 1.0
"""For a completion that has begun the server is asked at most so often whether it is the same."""
RETRY_S = 5.0
"""After which a client may try again, if the server names no time."""
SHOWN = 300
"""Characters of a sentence of the server's."""
BUSY = (429, 503)
"""Statuses of a server that may take the request later."""
SAMPLE = "Übergröße, 1234567890: def f(x):\n\treturn x ** 2"
"""A text that tokenizers cut differently."""
PARTIAL = (aiohttp.ClientError, OSError, TimeoutError)
"""What a connection raises that cannot be made, or is cut."""


class RefusedError(Exception):
    """The server does not serve a request; `error` is what the client gets."""

    def __init__(self, status: int, error: ClientError) -> None:
        super().__init__(f"status {status}")
        self.status = status
        self.error = error


class NoTokenIdsError(Exception):
    """The server has no `/tokenize`."""

    def __init__(self) -> None:
        super().__init__("has no `/tokenize` and so no token ids: it cannot compute a target here.")


class Meta(Struct, frozen=True):
    """Figures of llama-server about its model."""

    n_vocab: int | None = None
    n_params: int | None = None
    size: int | None = None


class Listed(Struct, frozen=True):
    """A model of `/v1/models`; what two models differ in."""

    id: str
    root: str | None = None
    max_model_len: int | None = None
    meta: Meta | None = None


class Listing(Struct):
    data: list[Listed]


class Defaults(Struct):
    n_ctx: int = 0


class Properties(Struct):
    """The body of llama-server's `/props`."""

    default_generation_settings: Defaults
    total_slots: int = 0


class Tokenized(Struct):
    tokens: list[int]


class Server:
    """Lives on one event loop. Call `open` first."""

    def __init__(self, url: str, key: str = "") -> None:
        self.url = url.rstrip("/")
        self._key = key
        self._session: aiohttp.ClientSession
        self.dialect: Dialect = OpenAi()
        self.model = Listed("")
        self.context = 0
        """Tokens of one request; 0 if the server does not say."""
        self.slots = 0
        """Requests that it computes at once; 0 if it does not say."""
        self._sample: Sequence[int] = ()
        self._asked_at = -math.inf

    async def open(self) -> None:
        """Finds out what answers there. Raises ModelError."""
        headers = {}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=STALL_S)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            headers=headers,
            timeout=timeout,
            read_bufsize=MAX_LINE_BYTES,
            trust_env=False,
        )
        try:
            await self._identify()
        except NoTokenIdsError as error:
            raise ModelError(f"{self.url} {error}") from error
        except PARTIAL as error:
            raise ModelError(f"{self.url} does not answer ({type(error).__name__}): start the server first.") from error
        except RefusedError as error:
            raise ModelError(
                f"{self.url} does not answer as an OpenAI-compatible server ({error}): check `target.url` and its key."
            ) from error

    async def close(self) -> None:
        """Ends all requests."""
        await self._session.close()

    async def _identify(self) -> None:
        self.model = await self._listed()
        self.context = self.model.max_model_len or 0
        properties = await self._properties()
        if properties is not None:
            self.dialect = LlamaServer()
            self.context = properties.default_generation_settings.n_ctx
            self.slots = properties.total_slots
        try:
            self._sample = await self.tokenize(SAMPLE)
        except RefusedError as error:
            if error.status == 404:
                raise NoTokenIdsError from error
            raise
        self._asked_at = time.monotonic()

    async def same(self, fresh_s: float = 0.0) -> None:
        """Makes sure that the server serves the model that it served at the start; not if it did `fresh_s` ago.

        Raises RefusedError with 502 if it does not, or an error of the connection.
        """
        if time.monotonic() - self._asked_at < fresh_s:
            return

        model = await self._listed()
        sample = await self.tokenize(SAMPLE)
        if model != self.model or sample != self._sample:
            self.doubt()
            raise RefusedError(502, changed(self.model.id))
        self._asked_at = time.monotonic()

    def doubt(self) -> None:
        """A connection was cut: another server may answer from now on."""
        self._asked_at = -math.inf

    async def events(self, question: Question, prompt: Sequence[int], tokens: int) -> AsyncIterator[Drawn]:
        """The server's own stream. Raises RefusedError, GarbledError, and what a connection raises."""
        if not self.dialect.streams:
            async for drawn in self._pieces(question, prompt, tokens):
                yield drawn
            return

        body = self.dialect.stream(question, prompt, tokens)
        async with self._post(self.dialect.completions, body) as response:
            async for line in response.content:
                event = self.dialect.decode_event(line)
                if isinstance(event, ServerRefusal):
                    raise RefusedError(event.status, error_of(event))
                if event is not None:
                    yield event

    async def _pieces(self, question: Question, prompt: Sequence[int], tokens: int) -> AsyncIterator[Drawn]:
        """The same by one response for each few tokens, the first of which comes alone."""
        text = list(prompt)
        end = len(prompt) + tokens
        size = 1
        while len(text) < end:
            asked = min(size, end - len(text))
            async with self._post(self.dialect.completions, self.dialect.stream(question, text, asked)) as response:
                drawn = self.dialect.decode_event(await response.read())
            if not isinstance(drawn, Drawn) or len(drawn.tokens) > asked:
                raise GarbledError("a completion that was not asked for")

            text += drawn.tokens
            over = drawn.stop or len(drawn.tokens) < asked or len(text) == end
            yield replace(drawn, length=over and not drawn.stop)
            if over:
                return
            size = PIECE

    async def rows(self, question: Question, prompts: Sequence[Sequence[int]]) -> Sequence[Drawn]:
        """One token after each prompt, by one call. Raises as `events`."""
        body = self.dialect.rows(question, prompts)
        async with self._post(self.dialect.completions, body) as response:
            return self.dialect.decode_rows(await response.read(), len(prompts))

    async def tokenize(self, text: str) -> Sequence[int]:
        """The server's tokens of a text. Raises RefusedError, and what a connection raises."""
        answer = await self._ask("/tokenize", self.dialect.tokenize(self.model.id, text))
        try:
            return msgspec.convert(answer, Tokenized).tokens
        except msgspec.ValidationError:
            raise RefusedError(502, failed()) from None

    async def scores(self, question: Question, prompt: Sequence[int]) -> bool:
        """Whether the server shows the log-probabilities of a prompt's tokens. Raises what a connection raises."""
        body = self.dialect.scores(question, prompt)
        if body is None:
            return False

        try:
            answer = await self._ask(self.dialect.completions, body)
        except RefusedError:
            return False
        return b'"prompt_logprobs":[' in msgspec.json.encode(answer)

    async def metrics(self) -> str:
        """The server's page of metrics; empty if it has none."""
        async with self._session.get(self.url + "/metrics") as response:
            if response.status != 200:
                return ""
            return await response.text()

    async def _listed(self) -> Listed:
        """The first model that it serves."""
        async with self._session.get(self.url + "/v1/models") as response:
            await self._accepted(response)
            try:
                models = msgspec.json.decode(await response.read(), type=Listing).data
            except UNDECODABLE:
                raise RefusedError(502, failed()) from None
        if not models:
            raise RefusedError(502, failed())

        return models[0]

    async def _properties(self) -> Properties | None:
        """Those of llama-server; None for another one."""
        async with self._session.get(self.url + "/props") as response:
            if response.status != 200:
                return None
            try:
                return msgspec.json.decode(await response.read(), type=Properties)
            except UNDECODABLE:
                return None

    async def _ask(self, path: str, body: Body) -> Mapping[str, Any]:
        async with self._post(path, body) as response:
            try:
                answer = msgspec.json.decode(await response.read())
            except UNDECODABLE:
                raise RefusedError(502, failed()) from None
        if not isinstance(answer, dict):
            raise RefusedError(502, failed())

        return answer

    @asynccontextmanager
    async def _post(self, path: str, body: Body) -> AsyncIterator[aiohttp.ClientResponse]:
        """The response to a body. Raises RefusedError, and what a connection raises.

        A server may close a kept connection at the moment in which it is used again. So a body that got no response is
        sent once more: no token of it was taken.
        """
        try:
            response = await self._session.post(self.url + path, json=body)
        except aiohttp.ClientConnectorError:
            raise
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
            self.doubt()
            response = await self._session.post(self.url + path, json=body)
        async with response:
            await self._accepted(response)
            yield response

    async def _accepted(self, response: aiohttp.ClientResponse) -> None:
        """Raises RefusedError for a response that is none."""
        if response.status == 200:
            return

        refusal = refusal_of(response.status, await response.content.read(MAX_ERROR_BYTES))
        raise RefusedError(refusal.status, error_of(refusal, response.headers.get("Retry-After", "")))


def error_of(refusal: ServerRefusal, retry_after: str = "") -> ClientError:
    """What a client gets for a response with an error. Numbered by whose concern it is:

    1. the client's: the request, or too many of them;
    2. the operator's: the key or the model of this gateway;
    3. the server's.
    """
    status = refusal.status
    why = " ".join(refusal.message.split())[:SHOWN] or f"status {status}"
    wait_s = RETRY_S
    if retry_after.isdecimal():
        wait_s = float(retry_after)

    if status == 429:
        sentence = f"The server that computes this gateway's model takes no more requests now: {why}"
        return ClientError(sentence, status=429, code="engine_busy", retry_after_s=wait_s)
    if status in (400, 413, 422):
        sentence = f"The server that computes this gateway's model refuses this request: {why}"
        return ClientError(sentence, status=status, code="engine_refused")

    if status in (401, 403):
        sentence = (
            "The server that computes this gateway's model refuses this gateway's key; its operator has to correct it."
        )
        return ClientError(sentence, status=502, code="engine_failed")
    if status == 404:
        sentence = (
            "The server that computes this gateway's model does not serve that model now; the operator can tell why."
        )
        return ClientError(sentence, status=502, code="engine_failed")

    if status == 503:
        return away()
    return failed()


def away() -> ClientError:
    """503 while nothing answers."""
    sentence = "The server that computes this gateway's model does not answer; send the request again shortly."
    return ClientError(sentence, status=503, code="engine_stopped", retry_after_s=RETRY_S)


def failed() -> ClientError:
    """502 for what is no completion, and no fault of the client's."""
    sentence = "The server that computes this gateway's model failed on the request; please try again."
    return ClientError(sentence, status=502, code="engine_failed")


def changed(model: str) -> ClientError:
    """502 for a server that serves another model or has another tokenizer than at the start."""
    sentence = (
        f"The server that computes this gateway's model serves another one than {model} now; its operator has to start "
        "the gateway again."
    )
    return ClientError(sentence, status=502, code="engine_changed")


async def cancelled(task: asyncio.Task[None]) -> None:
    """Cancels a task, and waits until it has closed its connection."""
    task.cancel()
    await asyncio.wait([task])
