"""From a validated body to the engine's requests: the bounds of its sizes, then one request for each completion.

Sizes are checked before anything is tokenised, in linear time; a prompt that is too long is refused here only. What
takes too long for the event loop, such as tokenising, runs in threads, in fair turns between API keys.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from cloud_gateway.api.errors import shutting_down
from cloud_gateway.api.parameters import Parameter
from cloud_gateway.api.schema import ChatBody, ChatMessage, Common, CompletionBody
from cloud_gateway.core.limits.turns import Turns
from cloud_gateway.core.limits.visits import KeyLimits
from cloud_gateway.core.requests.choices import CORE, Choices
from cloud_gateway.core.requests.request import (
    Extension,
    GenerationRequest,
    RequestBounds,
)
from cloud_gateway.core.sources.interface import RequestSource
from cloud_gateway.core.verify.interface import Constraint, RowReader
from cloud_gateway.core.verify.verification import Method
from edgespec.core.errors import ClientError, refusal
from edgespec.core.protocol.messages import Sampling


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The model in `/v1/models`. `context` and `vocab_size` in tokens, `created` in Unix seconds."""

    id: str
    created: int
    context: int
    vocab_size: int
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on one request, and on the time that the gateway waits for its client."""

    api: RequestBounds
    key: KeyLimits
    """Limits of each API key."""
    key_running: int | None
    """Slots that one API key may hold while other keys exist; None for all."""
    max_choices: int = 8
    """Maximum completions of one request: its `n` times its prompts."""
    max_request_tokens: int = 16384
    """Maximum tokens of all completions of one request together, where `max_tokens` alone does not allow more."""
    max_body_bytes: int = 4 * 2**20
    read_timeout_s: float = 30.0
    """For the whole request body to arrive."""
    write_timeout_s: float = 20.0
    """After which a client that does not read its stream is disconnected."""
    choices: Choices = CORE
    """What a request may choose by name."""
    parameters: Sequence[Parameter] = ()
    """Parameters that parts serve."""

    @staticmethod
    def of(
        api: RequestBounds,
        slots: int,
        choices: Choices = CORE,
        parameters: Sequence[Parameter] = (),
    ) -> Limits:
        """The configured limits. One key may hold all slots but one."""
        key_running = max(1, slots - 1)
        return Limits(
            api,
            KeyLimits.of(slots),
            key_running,
            choices=choices,
            parameters=parameters,
        )


SEED_SPAN = 2**63
"""Seeds of the engine are 63 bits wide; the API accepts signed 64-bit ones and maps the negative half onto them."""
MAX_BYTES_PER_TOKEN = 8
"""Of a whole prompt, on average. English has about 4 bytes a token and source code 3; a text with more than 8 is white
space or one word over and over, and tokenising it takes as long as tokenising a text that fits."""
MAX_CONTAINERS = 16_384
MAX_COMMAS = 65_536
"""Objects and lists of a body, and its commas, beside one container and eight commas for each token of the context:
prompts may be lists of tokens, and text may hold brackets and commas too. Decoding a list takes about a microsecond,
on the event loop."""


def check_structure(data: bytes, context: int) -> None:
    """Raises ClientError 400 for a body that would take long to decode. Takes about 1 ms for 4 MiB."""
    for marks, most in (
        (b"[{", MAX_CONTAINERS + context),
        (b",", MAX_COMMAS + 8 * context),
    ):
        if sum(data.count(mark) for mark in marks) > most:
            sentence = f"The request body has more than {most} of the characters {marks.decode()}; send less at once."
            raise ClientError(sentence, code="request_too_complex")


def check_items(items: int, model: ServedModel, param: str) -> None:
    """Raises ClientError 400 for more messages or items than the context has tokens: each takes at least one."""
    if items > model.context:
        raise too_long(f"{items} items of at least one token each", model, param)


def check_size(
    body: Common,
    model: ServedModel,
    limits: Limits,
    functions: Sequence[Mapping[str, Any]] = (),
) -> int:
    """The number of completions that the body requests. Raises ClientError 400.

    `functions`: those that the chat template writes into the prompt.
    """
    prompts: Sequence[Any] = body.prompts if isinstance(body, CompletionBody) else [None]
    answers = (body.n or 1) * len(prompts)
    if answers > limits.max_choices:
        param = "n" if len(prompts) <= limits.max_choices else "prompt"
        raise refusal(param, f"one request gets at most {limits.max_choices} completions here")

    if isinstance(body, ChatBody):
        size = sum(map(_message_bytes, body.messages))
        if functions:
            size += len(msgspec.json.encode(functions))
        _check_bytes(size, model, "messages")

    for prompt in prompts:
        if isinstance(prompt, str):
            _check_bytes(_bytes(prompt), model, "prompt")
        elif isinstance(prompt, list):
            check_tokens(len(prompt), model, "prompt")

    return answers


def check_served(body: Common, refuses: Mapping[str, str], *, drafted: bool) -> None:
    """Raises ClientError 400 for a parameter that the engine cannot serve; a seed only if drafts could change its text.

    `refuses`: these parameters, each with the reason. Those of parts are no fields of the body: the engine refuses what
    they ask for.
    """
    for name, why in refuses.items():
        value = getattr(body, name, None)
        if name == "seed":
            asked = drafted and body.temperature != 0 and value is not None
        else:
            asked = bool(value)
        if asked:
            raise refusal(name, why, "unsupported_parameter")


def check_tokens(tokens: int, model: ServedModel, param: str) -> None:
    """Raises ClientError 400 where a prompt of so many tokens leaves no room for a completion."""
    if not tokens:
        raise refusal(param, "it has no tokens")
    if tokens >= model.context:
        raise too_long(f"{tokens} tokens", model, param)


def too_long(what: str, model: ServedModel, param: str) -> ClientError:
    """The error for a prompt that does not fit, in OpenAI's words, which some libraries search for."""
    sentence = (
        f"This model's maximum context length is {model.context} tokens. However, your {param} resulted in {what}"
    )
    return ClientError(
        f"{sentence}. Please reduce their length.",
        param=param,
        code="context_length_exceeded",
    )


def generations(
    body: Common,
    prompts: Sequence[Sequence[int]],
    model: ServedModel,
    limits: Limits,
    *,
    may_offload: bool,
    cache_scope: bytes = b"",
    constraint: Callable[[], Constraint] | None = None,
    brought: Sequence[RequestSource] = (),
    row_reader: RowReader | None = None,
) -> list[GenerationRequest]:
    """The completions to generate: `n` for each prompt, prompt by prompt. Raises ClientError 400 naming the parameter.

    `constraint` returns a new one for each completion.
    """
    n = body.n or 1
    for prompt in prompts:
        check_tokens(len(prompt), model, "messages" if isinstance(body, ChatBody) else "prompt")

    outside = max(body.logit_bias or [0])
    if outside >= model.vocab_size:
        raise refusal(
            "logit_bias",
            f"token {outside} is outside the model's vocabulary of {model.vocab_size}",
        )

    lengths = [_max_tokens(body, len(prompt), model, limits) for prompt in prompts]
    most = max(limits.max_request_tokens, limits.api.max_tokens_limit)
    if n * sum(lengths) > most:
        why = f"all completions of one request together get at most {most} tokens here; ask for fewer, or shorter ones"
        raise refusal("n" if n > 1 else "max_tokens", why)

    seed = secrets.randbits(63) if body.seed is None else body.seed
    extension = body.edgespec or Extension()
    _check_verification(extension.verification, body.seed, limits.choices.methods)
    if may_offload:
        speculation = extension
    else:
        speculation = replace(extension, offload="never")

    return [
        GenerationRequest(
            tokens=prompt,
            max_tokens=length,
            sampling=_sampling(body, (seed + choice) % SEED_SPAN),
            stop=(body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ()),
            ignore_eos=body.endless,
            min_tokens=body.min_tokens or 0,
            speculation=speculation,
            brought=brought,
            constraint=constraint() if constraint else None,
            cache_scope=cache_scope,
            row_reader=row_reader,
        )
        for prompt, length in zip(prompts, lengths, strict=True)
        for choice in range(n)
    ]


def _check_verification(name: str | None, seed: int | None, methods: Mapping[str, Method]) -> None:
    """Raises ClientError 400 for a method that is not there, or a seed that it cannot use."""
    if name is None:
        return
    if name not in methods:
        raise refusal("edgespec.verification", f"expected {' or '.join(methods)}")
    if seed is not None and not methods[name].seeded:
        why = f"with '{name}' no seed can give the same text again; leave 'seed' out"
        raise refusal("edgespec.verification", why)


def _max_tokens(body: Common, prompt_tokens: int, model: ServedModel, limits: Limits) -> int:
    name = "max_tokens"
    asked = body.max_tokens
    if isinstance(body, ChatBody) and body.max_completion_tokens is not None:
        if asked not in (None, body.max_completion_tokens):
            raise refusal(
                "max_tokens",
                "it differs from 'max_completion_tokens', which means the same",
            )
        name = "max_completion_tokens"
        asked = body.max_completion_tokens

    found = min(
        model.context - prompt_tokens,
        limits.api.max_tokens,
        limits.api.max_tokens_limit,
    )
    if asked is not None:
        if asked > limits.api.max_tokens_limit:
            raise refusal(
                name,
                f"this gateway gives at most {limits.api.max_tokens_limit} tokens in one completion",
            )
        found = asked

    if (body.min_tokens or 0) > found:
        raise refusal("min_tokens", f"the completion has at most {found} tokens, by '{name}'")

    return found


def _sampling(body: Common, seed: int) -> Sampling:
    return Sampling(
        temperature=_or(body.temperature, 1.0),
        top_k=max(0, body.top_k or 0),
        top_p=_or(body.top_p, 1.0),
        min_p=_or(body.min_p, 0.0),
        repetition_penalty=_or(body.repetition_penalty, 1.0),
        presence_penalty=_or(body.presence_penalty, 0.0),
        frequency_penalty=_or(body.frequency_penalty, 0.0),
        logit_bias=body.logit_bias or {},
        seed=seed,
    )


def _or(value: float | None, default: float) -> float:
    if value is None:
        return default
    return float(value)


def _message_bytes(message: ChatMessage) -> int:
    """Bytes of a message's content and calls, and those of one token for the message itself."""
    content = message.content
    if isinstance(content, str):
        parts = [content]
    else:
        parts = [part.text or "" for part in content or ()]
    calls = sum(len(bytes(call)) for call in message.tool_calls or ())
    return MAX_BYTES_PER_TOKEN + sum(map(_bytes, parts)) + calls


def _bytes(text: str) -> int:
    if text.isascii():
        return len(text)
    return len(text.encode())


def _check_bytes(size: int, model: ServedModel, param: str) -> None:
    if size > MAX_BYTES_PER_TOKEN * model.context:
        raise too_long(
            f"{size} bytes, more than {MAX_BYTES_PER_TOKEN} for each token",
            model,
            param,
        )


T = TypeVar("T")


class TurnedThread:
    """A thread for which API keys take turns. For one event loop."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._free = True
        self._closed = False
        self._turns: Turns[asyncio.Future[None]] = Turns()

    async def run(self, key: str, work: Callable[[], T]) -> T:
        """The result of `work`. If the caller is cancelled, work that has not begun is dropped."""
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._turns.add(key, turn)
        self._begin()
        try:
            if not self._closed:
                await turn
            if self._closed:
                raise shutting_down()
            return await loop.run_in_executor(self._pool, work)
        finally:
            if not self._turns.remove(key, turn):
                self._free = True
                self._turns.ended(key)
                self._begin()

    def close(self) -> None:
        """Begins no more work; callers that wait get a 503."""
        self._closed = True
        self._pool.shutdown(wait=False)
        for turn in self._turns:
            _give(turn)

    def _begin(self) -> None:
        if self._free and not self._closed and (turn := self._turns.take()) is not None:
            self._free = False
            _give(turn)


def _give(turn: asyncio.Future[None]) -> None:
    if not turn.done():  # its caller may just have been cancelled
        turn.set_result(None)
