"""A gateway without models: an engine that repeats the prompt, and a text side whose tokens are bytes."""

from __future__ import annotations

import asyncio
import codecs
import itertools
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from cloud_gateway.api import Api, Backend, Limits, ServedModel, make_app
from cloud_gateway.api.admission import KeyAdmission
from cloud_gateway.api.listener import ApiListener, ClientTimes, listen
from cloud_gateway.api.observer import Observer
from cloud_gateway.api.routes import Route
from cloud_gateway.auth import KeyRing
from cloud_gateway.core.requests.request import DoneEvent, GenerationRequest, TokensEvent, Usage
from cloud_gateway.engine.exchange import Stream
from edgespec.core.errors import ClientError
from edgespec.shared.guards import PLAIN, Guards, PortBounds
from tools.doubles.limits import TIMES, api_bounds, request_limits

MODEL = ServedModel("echo", created=1_700_000_000, context=512, vocab_size=256, fingerprint="es_echo")


@dataclass
class EchoEngine:
    """Answers with the prompt's tokens, over and over with `ignore_eos`, in events of `per_event` tokens."""

    step_s: float = 0.0
    """Seconds between events."""
    per_event: int = 3
    queue_limit: int = 64
    fail_after: int | None = None
    """Events after which the answer fails."""
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    """Nothing is generated before it is set."""
    requests: list[GenerationRequest] = field(default_factory=list)
    cancelled: list[GenerationRequest] = field(default_factory=list)
    running: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.gate.set()

    def submit(self, request: GenerationRequest) -> Stream:
        if len(self.running) >= self.queue_limit:
            raise ClientError("The queue is full.", status=429, code="queue_full", retry_after_s=2.5)
        self.requests.append(request)
        leaving = asyncio.Event()
        stream = Stream(leaving.set)
        task = asyncio.ensure_future(self._generate(request, stream, leaving))
        self.running.add(task)
        task.add_done_callback(self.running.discard)
        return stream

    async def _generate(self, request: GenerationRequest, stream: Stream, leaving: asyncio.Event) -> None:
        usage = Usage(prompt_tokens=len(request.tokens), policy="wanspec")
        if request.speculation.offload == "never":
            usage.why_off = request.why_off
        await self.gate.wait()
        source = itertools.cycle(request.tokens) if request.ignore_eos else iter(request.tokens)
        answer = itertools.islice(source, request.max_tokens)
        while tokens := tuple(itertools.islice(answer, self.per_event)):
            await asyncio.sleep(self.step_s)
            if leaving.is_set():
                self.cancelled.append(request)
                stream.push(DoneEvent("cancelled", usage))
                return
            if self.fail_after == usage.rounds:
                stream.push(DoneEvent("error", usage, "the model caught fire"))
                return
            usage.rounds += 1
            usage.completion_tokens += len(tokens)
            usage.drafted["worker"] = usage.drafted.get("worker", 0) + 3
            usage.accepted["worker"] = usage.accepted.get("worker", 0) + len(tokens) - 1
            stream.push(TokensEvent(tokens))
        full = usage.completion_tokens == request.max_tokens
        stream.push(DoneEvent("length" if full else "stop", usage))


class ByteText:
    """Tokens are the bytes of UTF-8; a chat is its messages, one a line."""

    def spell(self, token: int) -> bytes:
        return bytes([token])

    def render_chat(self, messages: Sequence[Any], tools: Sequence[Any] | None = None) -> list[int]:
        return self.encode("\n".join(f"{message['role']}: {message['content']}" for message in messages))

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def continuation(self, text: str) -> list[int]:
        return self.encode(text)

    def detokeniser(self) -> ByteDetokeniser:
        return ByteDetokeniser()


class ByteDetokeniser:
    """Holds back bytes of an unfinished character."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token: int) -> str:
        return self._decoder.decode(bytes([token]))

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


class Observed(Observer):
    """Keeps the calls of the API."""

    def __init__(self) -> None:
        self.responses: list[tuple[str, int]] = []
        self.completions: list[tuple[str, Usage | None, float | None]] = []

    def responded(self, endpoint: str, status: int) -> None:
        self.responses.append((endpoint, status))

    def completed(self, finish: str, usage: Usage | None, first_token_s: float | None) -> None:
        self.completions.append((finish, usage, first_token_s))

    @property
    def text(self) -> str:
        """All of it as text."""
        return repr((self.responses, self.completions))


@dataclass(frozen=True)
class Echo:
    """A running API over real sockets, with a key that may offload."""

    api: Api
    engine: EchoEngine
    keys: KeyRing
    listener: ApiListener
    key: str
    observed: Observed

    @property
    def base_url(self) -> str:
        return f"{self.listener.url}/v1"


@asynccontextmanager
async def echo_gateway(
    state: Path,
    limits: Limits | None = None,
    engine: EchoEngine | None = None,
    *,
    loaded: bool = True,
    times: ClientTimes | None = None,
    bounds: PortBounds | None = None,
    guards: Guards = PLAIN,
    more: Callable[[KeyRing], Sequence[Route]] = lambda keys: (),
    observers: Sequence[Observer] = (),
    admissions: Sequence[KeyAdmission] = (),
) -> AsyncIterator[Echo]:
    """Serves an EchoEngine on a free port of loopback, with `more` routes, `observers` and `admissions`."""
    keys = KeyRing(state / "keys")
    engine = engine or EchoEngine()
    _, key = keys.create("test", offload=True)
    observed = Observed()
    api = Api(limits or request_limits(), [observed, *observers], admissions)
    if loaded:
        api.serve(Backend(engine, ByteText(), MODEL))
    listener = await listen(
        make_app(api, keys, more(keys)), "127.0.0.1", 0, "api", bounds or api_bounds(), times or TIMES, guards
    )
    try:
        yield Echo(api, engine, keys, listener, key, observed)
    finally:
        await api.drain(0)
        await listener.close()


HELLO = [{"role": "user", "content": "hello ✓ world"}]
ECHOED = "user: hello ✓ world"
CHAT: dict[str, Any] = {"model": "echo", "messages": HELLO}


async def post(echo: Echo, body: Any, path: str = "/v1/chat/completions", **headers: str) -> tuple[int, Any, Any]:
    """Status, JSON body and headers of a raw request; a body that is not bytes is sent as JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {echo.key}", **headers}) as session:
        async with session.post(echo.listener.url + path, data=data) as response:
            return response.status, await response.json(), response.headers


def request_head(echo: Echo, length: int) -> bytes:
    """The head of a chat request with a body of so many bytes, for a raw socket."""
    return (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {echo.key}\r\n"
        f"Content-Length: {length}\r\n\r\n"
    ).encode()
