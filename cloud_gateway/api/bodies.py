"""A body, from its bytes to checked parameters and tokens.

Checks run in the order of their cost: number of marks, types, contradictions, the operator's options, the model's name,
sizes, the grammar. Everything here is linear in the length of the body and reads nothing that changes, so it can run
on any thread. The event loop streams all completions: it decodes small bodies only (`api/service.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from cloud_gateway.api.generation import Limits, ServedModel, check_items, check_size, check_structure
from cloud_gateway.api.parameters import Prepared
from cloud_gateway.api.schema import (
    ChatBody,
    Common,
    CompletionBody,
    as_completion,
    chat_messages,
    decode_beside,
    wanted_of,
)
from cloud_gateway.api.tools import Wanted
from cloud_gateway.core.requests.request import Extension
from edgespec.core.errors import ClientError, refusal

SMALL_BYTES = 16 * 1024
"""The longest body that is decoded on the event loop, in at most some 3 ms. Most chats are shorter, and a turn of the
thread would take longer than their decoding."""


class Encoder(Protocol):
    """Text to tokens (cloud_gateway/models/text.py)."""

    def render_chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None
    ) -> list[int]: ...
    def encode(self, text: str) -> list[int]: ...
    def continuation(self, text: str) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class Asked:
    """A body of one of the endpoints that complete, decoded and checked."""

    received: Common
    """The body as it came; responses repeat some of its fields."""
    body: Common
    """The same as a chat or a text completion."""
    completions: int
    wanted: Wanted | None
    """What every completion has to satisfy; None: anything."""
    brought: Mapping[str, Any]
    """Values of parameters that parts serve, by name, as `Parameter.read` returned them."""


@dataclass(frozen=True, slots=True)
class Tokenised:
    """The texts of a body as tokens."""

    prompts: Sequence[list[int]]
    tools: Sequence[str]
    """Names of the tools that the model may call."""
    prepared: Sequence[Prepared]
    """One for each parameter that a part serves."""


@dataclass(frozen=True, slots=True)
class Served:
    """What bodies are checked against: the model, all its names, and the limits of a request."""

    model: ServedModel
    names: Collection[str]
    limits: Limits


def asked(data: bytes, kind: type[Common], served: Served) -> Asked:
    """The body of a request for completions. Raises ClientError 400 and 404."""
    check_structure(data, served.model.context)
    parameters = served.limits.parameters
    received, values = decode_beside(data, kind, parameters, served.limits.choices)
    brought = {name: parameters[name].read(value) for name, value in values.items()}

    _check_items(received, served.model)
    body = received.as_served()

    _check_options(body, served.limits)
    check_name(body.model, served.names)
    completions = check_size(body, served.model, served.limits)
    return Asked(received, body, completions, wanted_of(body), brought)


def to_tokenise(data: bytes, served: Served) -> Common:
    """The body of `/tokenize` as the completion whose prompt it names. Raises ClientError 400."""
    check_structure(data, served.model.context)
    body = as_completion(data, served.model.id)
    _check_items(body, served.model)
    check_size(body, served.model, served.limits)
    return body


def tokenised(asked: Asked, text: Encoder, served: Served) -> Tokenised:
    """The prompts as tokens, and what the parameters of parts prepare. Raises ClientError 400."""
    parameters = served.limits.parameters
    prepared = [
        parameters[name].prepare(value, text.continuation, served.model.context)
        for name, value in asked.brought.items()
    ]
    prompts = prompts_of(asked.body, text, served.model.vocab_size)
    if isinstance(asked.body, ChatBody):
        tools = [function.name for function in asked.body.offer.callable]
    else:
        tools = []
    return Tokenised(prompts, tools, prepared)


def prompts_of(body: Common, text: Encoder, vocab_size: int) -> list[list[int]]:
    """The prompts as tokens. Raises ClientError 400."""
    if isinstance(body, CompletionBody):
        return _prompts(body, text, vocab_size)

    assert isinstance(body, ChatBody)
    return [text.render_chat(chat_messages(body.messages), body.offer.rendered)]


def check_name(model: str, names: Collection[str]) -> None:
    """Raises ClientError 404 for a model that is not served."""
    if model in names:
        return

    first, *aliases = names
    serves = f"'{first}'"
    if aliases:
        listed = ", ".join(f"'{alias}'" for alias in aliases)
        serves = f"{serves}, also by {listed}"
    sentence = f"The model '{model[:100]}' does not exist here; this gateway serves {serves}."
    raise ClientError(sentence, status=404, param="model", code="model_not_found")


def _check_items(body: Common, model: ServedModel) -> None:
    param, count = body.items()
    check_items(count, model, param)


def _check_options(body: Common, limits: Limits) -> None:
    """Raises ClientError 400 for an option that the operator has not allowed; load tools have their own names."""
    limits.api.check(body.edgespec)
    if body.endless or body.min_tokens or (body.stream_options and body.stream_options.continuous_usage_stats):
        limits.api.check(Extension(ignore_eos=True))


def _prompts(body: CompletionBody, text: Encoder, vocab_size: int) -> list[list[int]]:
    """The prompts of a text completion as tokens: one string or token list, or a list of either."""
    prompts = []
    for item in body.prompts:
        if isinstance(item, int):
            raise refusal("prompt", "token ids and other prompts cannot be mixed in one list")
        tokens = text.encode(item) if isinstance(item, str) else item
        if max(tokens, default=0) >= vocab_size:
            raise refusal("prompt", f"a token is outside the model's vocabulary of {vocab_size}")
        prompts.append(tokens)

    return prompts
