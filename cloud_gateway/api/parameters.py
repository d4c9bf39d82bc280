"""The seam of requests' parameters that a part serves.

A part lists its parameters in `GatewayPart.parameters`. `bodies.py` decodes their values beside those of the core, and
lets the `Parameter` read them together: the result is an `Option`, which says what the request asks for. It may draft
(`Prepared`), bring functions into the prompt, constrain the completions (grammars.py), read their text (`Reader`), say
something about each of its tokens (`Annotator`), and count something for `usage` (`Counter`). The response goes through
all of them; the core knows none of their names.

A registry of hooks by name was not taken: each method below has one caller, which is found by its type.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from msgspec import Struct

from cloud_gateway.api.grammars import Grammar
from cloud_gateway.core.sources.interface import RequestSource
from cloud_gateway.core.verify.interface import RowReader


class Annotations(Struct):
    """Base of what a parameter says about the tokens of a choice, in the field that OpenAI calls `logprobs`."""


@dataclass(frozen=True, slots=True)
class Field:
    """A parameter's type, by which its value is decoded and documented; null is no value."""

    type: Any
    expected: str = ""
    """How a 400 ends for a value that is not of the type, at any depth: "expected ..."; empty: as the types say it."""
    annotations: type[Annotations] | None = None
    """The type of what choices have by it, if it brings an `Annotator`; for the document alone."""


class Encode(Protocol):
    """Text to tokens (cloud_gateway/models/text.py)."""

    def __call__(self, text: str) -> Sequence[int]: ...


class Spell(Protocol):
    """The bytes of a token (cloud_gateway/models/text.py)."""

    def __call__(self, token: int) -> bytes: ...


class Counter(Protocol):
    """Counts something about one completion. On the event loop."""

    def emitted(self, token: int) -> None:
        """Called with each token of the completion, in its order."""

    def details(self) -> Mapping[str, int]:
        """Fields of `usage.completion_tokens_details`; those of several completions are added up."""


class Prepared(RequestSource, Protocol):
    """A parameter's value for one request: the source of candidates of its completions, and what counts them.

    It changes how fast a completion comes, and never its text.
    """

    def counter(self) -> Counter:
        """A new one for each completion."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a function in a completion; `arguments` is JSON in a string, as in OpenAI's API."""

    name: str
    arguments: str
    id: str = field(default_factory=lambda: f"call_{secrets.token_hex(12)}")
    whole: bool = True
    """Whether the completion was not cut within it; if it was, `arguments` are a beginning."""


class Reader(Protocol):
    """Reads the text of one completion, such as for calls of functions. On the event loop."""

    def feed(self, text: str) -> str:
        """The text that the client may have now. The rest is held."""

    def end(self, *, cut: bool) -> tuple[str, Sequence[Call]]:
        """The held text that remains text, and the calls in it. `cut`: at its maximum length."""


class Annotator(Protocol):
    """Says something about each token of a request's completions, beside their text. On the event loop."""

    @property
    def reader(self) -> RowReader:
        """Reads the target's rows on the engine's thread."""

    @property
    def enlarges(self) -> int:
        """How many times larger an event may be by it. Frames of an even stream are so many times larger."""

    def annotate(self, token: int, reading: Any, offset: int) -> object:
        """About one token. Called in the order of the tokens of a completion.

        `reading`: what `reader` returned for it. `offset`: characters of the completion before the token's text.
        """

    def written(self, annotations: Sequence[Any]) -> Annotations:
        """Those of the tokens that begin in a piece of the text, or in all of it, for the choice."""


class Option:
    """What a parameter asks for in one request. Each method does nothing until a parameter overrides it.

    All but `prepare` take time linear in the values, and run on any thread.
    """

    def form(self) -> Grammar | None:
        """The form of every completion's text. At most one parameter of a request may have one."""
        return None

    def around(self, form: Grammar | None) -> Grammar | None:
        """The form of the whole completion, if its text has `form`; None: any. Called once, after `form`."""
        return form

    def functions(self) -> Sequence[Mapping[str, Any]]:
        """Functions for the chat template to write into the prompt, as transformers' templates take them."""
        return ()

    def prepare(self, encode: Encode, context: int) -> Prepared | None:
        """Called once, on the thread that tokenises.

        `encode`: text to tokens. `context`: of the target, in tokens; no completion is longer.
        """
        return None

    def reader(self) -> Reader | None:
        """A new one for each completion, or None. At most one parameter of a request may have one."""
        return None

    def annotator(self, spell: Spell) -> Annotator | None:
        """Called once for all completions. At most one parameter of a request may have one."""
        return None


class Parameter(Protocol):
    """One parameter of bodies, or several that are read together. A part has one object for all requests."""

    def fields(self, body: type[Struct]) -> Mapping[str, Field]:
        """Those that a kind of body has, by name. Called with each request, on any thread."""

    def read(self, values: Mapping[str, Any]) -> Option | None:
        """Checks the values that a request has, each of its field's type. Not called if it has none.

        Takes time linear in them. Called on any thread. Raises ClientError 400.
        """


def fields_of(parameters: Iterable[Parameter], body: type[Struct]) -> Mapping[str, Field]:
    """All parameters of parts that a kind of body has."""
    fields: dict[str, Field] = {}
    for parameter in parameters:
        fields.update(parameter.fields(body))
    return fields


def options_of(parameters: Iterable[Parameter], body: type[Struct], values: Mapping[str, Any]) -> list[Option]:
    """The options of a request, whose values of parts' parameters are `values`. Raises ClientError 400."""
    options: list[Option] = []
    for parameter in parameters:
        own = {name: values[name] for name in parameter.fields(body) if name in values}
        option = parameter.read(own) if own else None
        if option is not None:
            options.append(option)
    return options
