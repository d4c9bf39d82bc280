"""The bodies of API requests, decoded and validated once (docs/api.md lists every parameter).

Unknown parameters are refused by name, as OpenAI does. Known ones are served, ignored where they cannot change the
completion, or refused where they would change it and are not supported.
"""

from __future__ import annotations

import difflib
import functools
import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, TypeVar, get_args

import msgspec
from msgspec import Meta, Raw, Struct

from cloud_gateway.api.parameters import Field
from cloud_gateway.core.policies.settings import PHI, K, Prefer
from cloud_gateway.core.requests.choices import Choices
from cloud_gateway.core.requests.request import Extension
from edgespec.core.errors import UNDECODABLE, ClientError, refusal
from edgespec.core.protocol import ranges
from edgespec.core.protocol.ranges import Range

TOP_K = Range(-1, ranges.MAX_ID)
"""0 and -1 both mean: all tokens."""
SEED = Range(-(2**63), 2**63 - 1)
RANGES: Mapping[str, Range] = {
    **ranges.SAMPLING,
    "top_k": TOP_K,
    "seed": SEED,
    "edgespec.k": K,
    "edgespec.phi": PHI,
}
"""Ranges by parameter, for error messages."""
CHOICES = {
    "edgespec.offload": "auto or never",
    "edgespec.prefer": " or ".join(get_args(Prefer)),
    "edgespec.phi": f"learnt or a number {PHI}",
}
"""Values of parameters that take few, for error messages; those of `Choices` are not among them."""
SOURCES = "edgespec.sources"

Count = Annotated[int, Meta(ge=1, le=ranges.MAX_ID)]
Penalty = Annotated[float, ranges.PENALTY.meta]
StopString = Annotated[str, Meta(min_length=1, max_length=500)]
TokenId = Annotated[int, Meta(ge=0, le=ranges.MAX_ID)]
Biases = Annotated[
    dict[TokenId, Annotated[float, ranges.BIAS.meta]],
    Meta(max_length=ranges.MAX_BIASES),
]
TokenPrompt = Annotated[list[TokenId], Meta(min_length=1)]
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}$(?!\n)")]
"""The name of a schema or a function, in a notation that Python and JSON Schema (ECMA-262) share: in Python `$` alone
passes a newline at the end."""


class StreamOptions(Struct, forbid_unknown_fields=True):
    """`stream_options`. `include_obfuscation` pads OpenAI's chunks against traffic analysis; here it is ignored."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    continuous_usage_stats: bool | None = None


class Common(Struct, kw_only=True):
    """Parameters that chat and text completions share."""

    model: str
    max_tokens: Count | None = None
    temperature: Annotated[float, ranges.TEMPERATURE.meta] | None = None
    top_p: Annotated[float, ranges.TOP_P.meta] | None = None
    top_k: Annotated[int, TOP_K.meta] | None = None
    min_p: Annotated[float, ranges.MIN_P.meta] | None = None
    repetition_penalty: Annotated[float, ranges.REPETITION_PENALTY.meta] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: Biases | None = None
    seed: Annotated[int, SEED.meta] | None = None
    n: Count | None = None
    stop: StopString | Annotated[list[StopString], Meta(max_length=4)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    edgespec: Extension | None = None
    ignore_eos: bool | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=ranges.MAX_ID)] | None = None

    @property
    def endless(self) -> bool:
        """Whether an end of sequence does not end the completion."""
        return bool(self.ignore_eos or (self.edgespec and self.edgespec.ignore_eos))

    def items(self) -> tuple[str, int]:
        """The parameter that lists messages, and how many it has; none if the endpoint has no such list."""
        return "", 0

    def beside(self) -> Mapping[str, Any]:
        """Values of parts' parameters that the body has in a form of its own: by name, as a chat has them in JSON."""
        return {}

    def as_served(self) -> Common:
        """The same as a chat or a text completion, which are served. Raises ClientError 400."""
        return self


class Part(Struct):
    """One part of a message's content; only text is served."""

    type: str
    text: str | None = None


class ChatMessage(Struct):
    """One message. Fields of earlier responses that clients send back (`refusal`, `annotations`, ...) are ignored."""

    role: str
    content: str | list[Part] | None = None
    tool_calls: list[Raw] | None = None
    function_call: Raw | None = None
    audio: Raw | None = None
    tool_call_id: str | None = None


class ChatBody(Common, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    max_completion_tokens: Count | None = None

    def items(self) -> tuple[str, int]:
        return "messages", len(self.messages)


class CompletionBody(Common, kw_only=True):
    """`POST /v1/completions`."""

    prompt: str | Annotated[list[str | TokenId | TokenPrompt], Meta(min_length=1)]

    @property
    def prompts(self) -> Sequence[Any]:
        """Each a string or a list of tokens; a token beside them is left for the caller to refuse."""
        one = isinstance(self.prompt, str) or all(isinstance(item, int) for item in self.prompt)
        if one:
            return [self.prompt]
        return list(self.prompt)


IGNORED = frozenset(
    "user metadata store service_tier safety_identifier prediction"
    " prompt_cache_key prompt_cache_options prompt_cache_retention".split()
)
"""OpenAI's parameters that cannot change the completion here."""

HARMLESS: Mapping[str, tuple[bytes, ...]] = {
    "logprobs": (b"false",),
    "top_logprobs": (b"0",),
    "response_format": (b'{"type":"text"}',),
    "tools": (b"[]",),
    "functions": (b"[]",),
    "tool_choice": (b'"none"', b'"auto"'),
    "parallel_tool_calls": (b"true", b"false"),
    "function_call": (b'"none"', b'"auto"'),
    "modalities": (b'["text"]',),
    "reasoning_effort": (b'"none"',),
    "best_of": (b"1",),
    "echo": (b"false",),
    "suffix": (b'""',),
    **dict.fromkeys(("audio", "moderation", "verbosity", "web_search_options"), ()),
}
"""OpenAI's parameters that are not supported, with the values that request nothing and are accepted, beside null."""
WHY_UNSERVED: Mapping[str, str] = {
    "echo": "this gateway does not repeat the prompt, and does not say how likely its tokens are: evaluations by "
    "log-likelihood (lm-eval) cannot run here, those that generate text can",
}
"""The reason that a refusal of such a parameter gives, if there is more to say than that it is not supported."""
MIN_LIKENESS = 0.8
"""Of an unknown parameter to the one that is suggested in its place, by difflib: a slip of the pen has 0.85 or more,
another server's parameter, such as `timings_per_token` beside `min_tokens`, up to 0.77."""

SHOWN = 64
"""Characters of a client's input that an error message repeats at most."""
JSON_NAMES = {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}
ROLES = ("system", "developer", "user", "assistant", "tool")

Body = TypeVar("Body", bound=Common)
_WHERE = re.compile(r" - at (?P<key>`key` in )?`\$\.?(?P<path>[^`]*)`\Z")
_OUTSIDE = re.compile(r"^(?:Expected `(?:int|float)` [<>]=? |Number out of range)")
_TYPE = re.compile(r"\b(?:str|int|float|bool)\b")
_MISSING = re.compile(r"^Object missing required field `(?P<name>[^`]+)`")


def decode(
    data: bytes,
    kind: type[Body],
    fields: Mapping[str, Field],
    choices: Choices,
) -> tuple[Body, dict[str, Any]]:
    """Decodes and validates a body; returns it with those values of `fields`, the parameters of parts, that it has.

    Null is left out. `choices`: the names that it may choose from. Raises ClientError 400 naming the parameter at
    fault.
    """
    raw: dict[str, Raw] = _decoded(data, dict[str, Raw])
    core = _names(kind)
    served = core | fields.keys()
    for name, value in raw.items():
        if name not in served and name not in IGNORED:
            _check_unserved(name, value, served)
    try:
        body = _decoded(data, kind)
    except ClientError as error:
        if error.param is not None and error.param.startswith(SOURCES):
            raise _no_source(choices) from None
        raise

    values = _values({name: value for name, value in raw.items() if name not in core}, fields)

    if body.edgespec is not None:
        _check_names(body.edgespec, choices)
    if body.stream_options is not None and not body.stream:
        raise refusal("stream_options", "it is only allowed together with 'stream': true")

    return body, values


def converted(values: Mapping[str, Any], fields: Mapping[str, Field]) -> dict[str, Any]:
    """Values that a body had in another form, as parameters of parts. Raises ClientError 400 if one is not served."""
    raw = {name: Raw(msgspec.json.encode(value)) for name, value in values.items() if value is not None}
    for name, value in raw.items():
        if name not in fields:
            _check_unserved(name, value, fields)
    return _values(raw, fields)


def _values(raw: Mapping[str, Raw], fields: Mapping[str, Field]) -> dict[str, Any]:
    """Decoded values of parts' parameters. Raises ClientError 400."""
    return {name: _value(name, raw[name], field) for name, field in fields.items() if _present(raw.get(name))}


def _value(name: str, raw: Raw, field: Field) -> Any:
    try:
        return msgspec.json.decode(raw, type=field.type)
    except msgspec.ValidationError as error:
        raise _validation(str(error), name, field.expected) from None
    except UNDECODABLE:
        raise _no_json(name) from None


def _check_names(extension: Extension, choices: Choices) -> None:
    """Raises ClientError 400 for a policy or a source that is not there."""
    policies = choices.policies
    if extension.policy is not None and extension.policy not in policies:
        raise refusal("edgespec.policy", f"expected one of {', '.join(policies)}")
    if not set(extension.sources or ()) <= set(choices.sources):
        raise _no_source(choices)


def _no_source(choices: Choices) -> ClientError:
    return refusal(SOURCES, f"expected a list of {', '.join(choices.sources)}")


@functools.cache  # reading the annotations takes longer than decoding a body
def _names(kind: type[Common]) -> frozenset[str]:
    """Names of one endpoint's parameters."""
    return frozenset(field.encode_name for field in msgspec.structs.fields(kind))


def _check_unserved(name: str, value: Raw, served: Collection[str]) -> None:
    if name not in HARMLESS:
        shown = name[:SHOWN]
        close = difflib.get_close_matches(shown, served, n=1, cutoff=MIN_LIKENESS)
        hint = f" (did you mean '{close[0]}'?)" if close else ""
        raise ClientError(
            f"Unknown parameter: '{shown}'{hint}.",
            param=shown,
            code="unknown_parameter",
        )

    plain = msgspec.json.encode(_parsed(value, name))
    if plain == b"null" or plain in HARMLESS[name]:
        return
    if name in WHY_UNSERVED:
        raise refusal(name, WHY_UNSERVED[name], "unsupported_parameter")

    sentence = f"The parameter '{name}' would change the completion and is not supported here; leave it out."
    raise ClientError(sentence, param=name, code="unsupported_parameter")


def _parsed(value: Raw, param: str) -> Any:
    """A value that was left as it came, and so unchecked. Raises ClientError 400."""
    try:
        return msgspec.json.decode(value)
    except UNDECODABLE:
        raise _no_json(param) from None


def _no_json(param: str) -> ClientError:
    return refusal(param, "it is no valid JSON", "invalid_json")


class TokenizeBody(Struct):
    """`POST /tokenize`: a text, in vLLM's or llama.cpp's parameter, or a chat. Other parameters are ignored."""

    prompt: str | None = None
    content: str | None = None
    messages: Annotated[list[ChatMessage], Meta(min_length=1)] | None = None


def as_completion(data: bytes, model: str, fields: Mapping[str, Field]) -> tuple[Common, dict[str, Any]]:
    """The completion whose prompt is to be tokenised, and its values of `fields`. Raises ClientError 400."""
    raw: dict[str, Raw] = _decoded(data, dict[str, Raw])
    body = _decoded(data, TokenizeBody)
    values = _values(raw, fields)
    if body.messages is not None:
        return ChatBody(model=model, messages=body.messages), values
    if body.prompt is None and body.content is None:
        raise refusal("prompt", "send 'prompt' or 'messages'", "missing_required_parameter")
    return CompletionBody(model=model, prompt=body.prompt or body.content or ""), values


T = TypeVar("T")


class CalledFunction(Struct):
    """A call in an earlier message; `arguments` is JSON in a string."""

    name: str
    arguments: str


class Called(Struct):
    """One entry of an assistant message's `tool_calls`."""

    function: CalledFunction
    id: str = ""
    type: str = "function"


def former_calls(calls: list[Raw], at: str) -> list[dict[str, Any]]:
    """An assistant message's `tool_calls` for the template: arguments as an object. Raises ClientError 400."""
    rendered = []
    for index, raw in enumerate(calls):
        try:
            called = msgspec.json.decode(raw, type=Called)
            arguments = json.loads(called.function.arguments or "{}")
        except (*UNDECODABLE, ValueError):
            why = "it is no call of a function with JSON arguments"
            raise refusal(f"{at}[{index}]", why, "unsupported_parameter") from None

        function = {"name": called.function.name, "arguments": arguments}
        rendered.append({"id": called.id, "type": "function", "function": function})

    return rendered


def _decoded(data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise _validation(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if isinstance(error, UnicodeError):
            why = ""
        else:
            why = f": {str(error).removeprefix('JSON is malformed: ').lower()}"
        raise ClientError(f"The request body is not valid JSON in UTF-8{why}.", code="invalid_json") from None
    except RecursionError:
        raise ClientError("The request body is nested too deeply.", code="invalid_json") from None


def _validation(text: str, name: str = "", expected: str = "") -> ClientError:
    """A ClientError from msgspec's text, such as "Expected `int`, got `str` - at `$.messages[0].role`".

    `name`: of the parameter that was decoded alone, if one was; `expected`: its `Field.expected`.
    """
    where = _WHERE.search(text)
    path = where["path"] if where else ""
    what = text[: where.start()] if where else text
    if expected:
        return refusal(name, f"expected {expected}")
    if name:
        path = f"{name}{path}" if path.startswith("[") else f"{name}.{path}".rstrip(".")
    missing = _MISSING.match(what)
    if missing is not None:
        param = f"{path}.{missing['name']}".lstrip(".")
        return ClientError(
            f"Missing required parameter: '{param}'.",
            param=param,
            code="missing_required_parameter",
        )
    if not path:
        return ClientError("The request body is not a JSON object.", code="invalid_json")

    param = path.replace("[...]", "")
    if (name := param.partition("[")[0]) in CHOICES:
        return refusal(name, f"expected {CHOICES[name]}")

    bounds = RANGES.get(param)
    if bounds is not None and _OUTSIDE.match(what) and where and not where["key"]:
        return refusal(param, f"expected a number {bounds}")

    plain = _TYPE.sub(lambda name: JSON_NAMES.get(name[0], name[0]), what[0].lower() + what[1:]).replace("`", "")
    return refusal(param, plain[: 4 * SHOWN])


def chat_messages(messages: list[ChatMessage]) -> list[dict[str, Any]]:
    """Messages for the chat template. Raises ClientError 400."""
    rendered = []
    for index, message in enumerate(messages):
        at = f"messages[{index}]"
        if message.role == "function" or _present(message.function_call):
            raise refusal(
                at,
                "functions are OpenAI's former tools; send tool calls",
                "unsupported_parameter",
            )
        if message.role not in ROLES:
            raise refusal(f"{at}.role", f"expected one of {', '.join(ROLES)}")
        role = "system" if message.role == "developer" else message.role
        silent = message.content is None and bool(message.tool_calls)
        one: dict[str, Any] = {
            "role": role,
            "content": "" if silent else _text(message.content, f"{at}.content"),
        }
        if message.tool_calls:
            one["tool_calls"] = former_calls(message.tool_calls, f"{at}.tool_calls")
        if role == "tool":
            one["tool_call_id"] = message.tool_call_id or ""
        rendered.append(one)

    return rendered


def _text(content: str | list[Part] | None, at: str) -> str:
    if content is None:
        raise refusal(at, "expected a string or text parts, got null")
    if isinstance(content, str):
        return content

    for index, part in enumerate(content):
        if part.type != "text" or part.text is None:
            raise refusal(
                f"{at}[{index}]",
                "only parts of the type 'text' are supported",
                "unsupported_parameter",
            )

    return "".join(part.text or "" for part in content)


def _present(value: Raw | None) -> bool:
    return value is not None and bytes(value).strip() != b"null"
