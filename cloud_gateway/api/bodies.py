"""A body, from its bytes to checked parameters and tokens.

Checks run in the order of their cost: number of marks, types, contradictions, the operator's options, the model's name,
sizes, the grammar. Everything here is linear in the length of the body and reads nothing that changes, so it can run
on any thread. The event loop streams all completions: it decodes small bodies only (`api/service.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from cloud_gateway.api.generation import (
    Limits,
    ServedModel,
    check_items,
    check_size,
    check_structure,
)
from cloud_gateway.api.grammars import Grammar
from cloud_gateway.api.parameters import (
    Annotator,
    Option,
    Prepared,
    Reader,
    Spell,
    fields_of,
    options_of,
)
from cloud_gateway.api.schema import (
    ChatBody,
    Common,
    CompletionBody,
    TokenizeBody,
    as_completion,
    chat_messages,
    converted,
    decode,
)
from cloud_gateway.core.requests.request import Extension
from edgespec.core.errors import ClientError, refusal

SMALL_BYTES = 16 * 1024
"""The longest body that is decoded on the event loop, in at most some 3 ms. Most chats are shorter, and a turn of the
thread would take longer than their decoding."""

ENDS_ITSELF = "a completion that has a form, such as JSON, ends when it is complete; leave it out"


class Encoder(Protocol):
    """Text to tokens (cloud_gateway/models/text.py)."""

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[int]: ...
    def encode(self, text: str) -> list[int]: ...
    def continuation(self, text: str) -> list[int]: ...
    def spell(self, token: int) -> bytes: ...


@dataclass(frozen=True, slots=True)
class CheckedBody:
    """A body of one of the endpoints that complete, decoded and checked."""

    received: Common
    """The body as it came; responses repeat some of its fields."""
    body: Common
    """The same as a chat or a text completion."""
    completions: int
    options: Sequence[Option]
    """What the parameters of parts ask for."""
    grammar: Grammar | None
    """The form of every completion; None: any."""

    @property
    def functions(self) -> list[Mapping[str, Any]]:
        """Functions that the chat template writes into the prompt."""
        return [function for option in self.options for function in option.functions()]

    def reader(self) -> Reader | None:
        """What reads the text of one more completion, if anything does."""
        for option in self.options:
            reader = option.reader()
            if reader is not None:
                return reader
        return None

    def annotator(self, spell: Spell) -> Annotator | None:
        """The one of its options, if any has one."""
        for option in self.options:
            annotator = option.annotator(spell)
            if annotator is not None:
                return annotator
        return None


@dataclass(frozen=True, slots=True)
class Tokenised:
    """The texts of a body as tokens."""

    prompts: Sequence[list[int]]
    prepared: Sequence[Prepared]
    """Sources of candidates, of the request's options."""
    annotator: Annotator | None


@dataclass(frozen=True, slots=True)
class Served:
    """What bodies are checked against: the model, all its names, and the limits of a request."""

    model: ServedModel
    names: Collection[str]
    limits: Limits


def asked(data: bytes, kind: type[Common], served: Served) -> CheckedBody:
    """The body of a request for completions. Raises ClientError 400 and 404."""
    check_structure(data, served.model.context)
    parameters = served.limits.parameters
    received, values = decode(data, kind, fields_of(parameters, kind), served.limits.choices)

    _check_items(received, served.model)
    body = received.as_served()

    # A body of another shape has some of these parameters in a form of its own.
    values.update(converted(received.beside(), fields_of(parameters, type(body))))
    options = options_of(parameters, type(body), values)
    grammar = grammar_of(options)
    if grammar is not None:
        check_ends(body)

    _check_options(body, served.limits)
    check_name(body.model, served.names)
    asked = CheckedBody(received, body, 0, options, grammar)
    return replace(
        asked,
        completions=check_size(body, served.model, served.limits, asked.functions),
    )


def grammar_of(options: Sequence[Option]) -> Grammar | None:
    """The form that these options together give a completion. Raises ClientError 400 for two forms of its text."""
    forms = [form for option in options if (form := option.form()) is not None]
    if len(forms) > 1:
        raise refusal(
            forms[1].param,
            f"'{forms[0].param}' gives the completion another form; send one of them",
        )

    form = forms[0] if forms else None
    for option in options:
        form = option.around(form)
    return form


def check_ends(body: Common) -> None:
    """Raises ClientError 400 if a completion that has a form may not end when it is complete."""
    if body.endless:
        raise refusal("edgespec.ignore_eos", ENDS_ITSELF)
    if body.min_tokens:
        raise refusal("min_tokens", ENDS_ITSELF)


def to_tokenise(data: bytes, served: Served) -> CheckedBody:
    """The body of `/tokenize` as the completion whose prompt it names. Raises ClientError 400."""
    check_structure(data, served.model.context)
    parameters = served.limits.parameters
    body, values = as_completion(data, served.model.id, fields_of(parameters, TokenizeBody))
    options = options_of(parameters, TokenizeBody, values)
    _check_items(body, served.model)
    asked = CheckedBody(body, body, 1, options, None)
    check_size(body, served.model, served.limits, asked.functions)
    return asked


def tokenised(asked: CheckedBody, text: Encoder, served: Served) -> Tokenised:
    """The prompts as tokens, and what the parameters of parts prepare. Raises ClientError 400."""
    sources = [option.prepare(text.continuation, served.model.context) for option in asked.options]
    prepared = [source for source in sources if source is not None]
    return Tokenised(
        prompts_of(asked, text, served.model.vocab_size),
        prepared,
        asked.annotator(text.spell),
    )


def prompts_of(asked: CheckedBody, text: Encoder, vocab_size: int) -> list[list[int]]:
    """The prompts as tokens. Raises ClientError 400."""
    body = asked.body
    if isinstance(body, CompletionBody):
        return _prompts(body, text, vocab_size)

    assert isinstance(body, ChatBody)
    return [text.render_chat(chat_messages(body.messages), asked.functions or None)]


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
