"""The parameters `response_format`, OpenAI's, and `structured_outputs`, vLLM's."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from cloud_gateway.api.grammars import Grammar
from cloud_gateway.api.parameters import Field, Option
from cloud_gateway.api.schema import ChatBody, Common, Name
from cloud_gateway.parts.structured_output.grammar import MAX_SCHEMA_BYTES
from edgespec.core.errors import refusal

FORMAT = "response_format"
OUTPUTS = "structured_outputs"
MAX_CHOICES = 1024
_SLASH_OR_ESCAPED = re.compile(r"/|\\.", re.DOTALL)
ANY_OBJECT: dict[str, Any] = {"type": "object"}


class JsonSchema(Struct):
    """`response_format.json_schema`. The schema is always enforced completely, for any value of `strict`."""

    name: Name
    schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(Struct):
    """`response_format`; `json_object` is any JSON object."""

    type: str
    json_schema: JsonSchema | None = None


class StructuredOutputs(Struct, forbid_unknown_fields=True):
    """`structured_outputs`: exactly one kind of form, beside options of vLLM's engine that change nothing here."""

    json: dict[str, Any] | str | None = None
    """A schema, also as text."""
    regex: str | None = None
    choice: Annotated[list[str], Meta(min_length=1, max_length=MAX_CHOICES)] | None = None
    grammar: str | None = None
    """In llguidance's notation of Lark."""
    json_object: bool | None = None
    structural_tag: Any = None
    disable_fallback: bool | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: Literal[False] | None = None
    whitespace_pattern: None = None


KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
"""Fields of `structured_outputs` that each give a form."""


class RequestedForm(Option):
    """What a request asks of its completions' text."""

    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar

    def form(self) -> Grammar | None:
        return self._grammar


class Forms:
    """The `Parameter`: both names, of which a request may use one."""

    def fields(self, body: type[Struct]) -> Mapping[str, Field]:
        if issubclass(body, ChatBody):
            return {FORMAT: Field(ResponseFormat), OUTPUTS: Field(StructuredOutputs)}
        if issubclass(body, Common):
            return {OUTPUTS: Field(StructuredOutputs)}
        return {}

    def read(self, values: Mapping[str, Any]) -> Option | None:
        grammar = None
        if FORMAT in values:
            grammar = of_format(values[FORMAT])
        if OUTPUTS in values:
            if grammar is not None:
                raise refusal(OUTPUTS, f"'{FORMAT}' gives the completion a form, too; send one of them")
            grammar = of_outputs(values[OUTPUTS])

        if grammar is None:
            return None
        return RequestedForm(grammar)


def of_format(wanted: ResponseFormat) -> Grammar | None:
    """The grammar of a `response_format`; None for text. Raises ClientError 400."""
    if wanted.type == "text":
        return None
    if wanted.type not in ("json_object", "json_schema"):
        raise refusal(f"{FORMAT}.type", "expected one of text, json_object, json_schema")
    if (wanted.json_schema is None) == (wanted.type == "json_schema"):
        raise refusal(f"{FORMAT}.json_schema", "it goes with the type 'json_schema', and only with it")

    if wanted.json_schema is None:
        return Grammar(ANY_OBJECT, FORMAT)
    return Grammar(wanted.json_schema.schema, FORMAT)


def of_outputs(wanted: StructuredOutputs) -> Grammar:
    """The grammar of `structured_outputs`. Raises ClientError 400."""
    kinds = [kind for kind in KINDS if getattr(wanted, kind) not in (None, False)]
    if len(kinds) != 1:
        raise refusal(OUTPUTS, f"expected exactly one of {', '.join(KINDS[:-1])}")

    (kind,) = kinds
    match kind:
        case "json":
            return Grammar(_schema(wanted.json), f"{OUTPUTS}.json")
        case "json_object":
            return Grammar(ANY_OBJECT, f"{OUTPUTS}.json_object")
        case "regex":
            rules = f"start: {_pattern(wanted.regex or '')}"
        case "choice":
            rules = "start: " + " | ".join(json.dumps(text, ensure_ascii=False) for text in wanted.choice or ())
        case "grammar":
            rules = wanted.grammar or ""
        case _:
            why = "this gateway has no structural tags; use a 'grammar', or 'tools'"
            raise refusal(f"{OUTPUTS}.{kind}", why, "unsupported_parameter")

    if len(rules) > MAX_SCHEMA_BYTES:
        raise refusal(f"{OUTPUTS}.{kind}", f"it has more than {MAX_SCHEMA_BYTES} characters")
    return Grammar(rules, f"{OUTPUTS}.{kind}")


def _schema(value: dict[str, Any] | str | None) -> dict[str, Any]:
    if isinstance(value, dict):
        return value

    try:
        return msgspec.json.decode(value or "", type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError):
        raise refusal(f"{OUTPUTS}.json", "expected a JSON schema, as an object or as its text") from None


def _pattern(regex: str) -> str:
    """A regular expression as Lark has it: between slashes, and so with its own slashes escaped."""
    return "/" + _SLASH_OR_ESCAPED.sub(lambda found: found[0].rjust(2, "\\"), regex) + "/"
