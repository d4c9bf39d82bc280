"""The bodies of API requests, decoded and validated once (docs/api.md lists every parameter).

Unknown parameters are refused by name, as OpenAI does. Known ones are served, ignored where they cannot change the
completion, or refused where they would change it and are not supported.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, TypeVar, get_args

import msgspec
from msgspec import Meta, Raw, Struct

from cloud_gateway.api.tools import Choice, Name, Offer, Tool, Wanted, former_calls, offered, parsed
from cloud_gateway.core.policies.settings import PHI, K, Prefer
from cloud_gateway.core.requests.choices import CORE, Choices
from cloud_gateway.core.requests.request import Extension
from edgespec.core.errors import ClientError, refusal
from edgespec.core.protocol import ranges
from edgespec.core.protocol.ranges import Range

TOP_K = Range(-1, ranges.MAX_ID)
"""0 and -1 both mean: all tokens."""
SEED = Range(-(2**63), 2**63 - 1)
CHAT_LOGPROBS = Range(0, 20)
RANGES: Mapping[str, Range] = {
    **ranges.SAMPLING,
    "top_k": TOP_K,
    "seed": SEED,
    "top_logprobs": CHAT_LOGPROBS,
    "edgespec.k": K,
    "edgespec.phi": PHI,
}
"""Ranges by parameter, for error messages."""
CHOICES = {
    "edgespec.offload": "auto or never",
    "edgespec.prefer": " or ".join(get_args(Prefer)),
    "edgespec.phi": f"learnt or a number {PHI}",
    "tool_choice": "none, auto, required, or an object that names tools",
}
"""Values of parameters that take few, for error messages; those of `Choices` are not among them."""
SOURCES = "edgespec.sources"

Count = Annotated[int, Meta(ge=1, le=ranges.MAX_ID)]
Penalty = Annotated[float, ranges.PENALTY.meta]
StopString = Annotated[str, Meta(min_length=1, max_length=500)]
TokenId = Annotated[int, Meta(ge=0, le=ranges.MAX_ID)]
Biases = Annotated[dict[TokenId, Annotated[float, ranges.BIAS.meta]], Meta(max_length=ranges.MAX_BIASES)]
TokenPrompt = Annotated[list[TokenId], Meta(min_length=1)]


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


class ChatBody(Common, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    max_completion_tokens: Count | None = None
    response_format: ResponseFormat | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, CHAT_LOGPROBS.meta] | None = None
    tools: Annotated[list[Tool], Meta(max_length=128)] | None = None
    tool_choice: Choice | None = None
    parallel_tool_calls: bool | None = None

    def items(self) -> tuple[str, int]:
        return "messages", len(self.messages)

    @property
    def offer(self) -> Offer:
        """The tools. Raises ClientError 400."""
        return offered(self.tools, self.tool_choice, several=self.parallel_tool_calls)


class CompletionBody(Common, kw_only=True):
    """`POST /v1/completions`."""

    prompt: str | Annotated[list[str | TokenId | TokenPrompt], Meta(min_length=1)]
    logprobs: Annotated[int, Meta(ge=0, le=5)] | None = None

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
    "echo": "this gateway does not repeat the prompt, and computes no log-probabilities of its tokens: evaluations by "
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


def decode(data: bytes, kind: type[Body]) -> Body:
    """Decodes and validates a body. Raises ClientError 400 naming the parameter at fault."""
    return decode_beside(data, kind, (), CORE)[0]


def decode_beside(
    data: bytes, kind: type[Body], elsewhere: Collection[str], choices: Choices
) -> tuple[Body, Mapping[str, Raw]]:
    """`decode`, and the values of those parameters in `elsewhere` that it has: parts serve them. Null is left out.

    `choices`: the names that it may choose from.
    """
    fields: dict[str, Raw] = _decoded(data, dict[str, Raw])
    served = _names(kind)
    for name, value in fields.items():
        if name not in served and name not in IGNORED and name not in elsewhere:
            _check_unserved(name, value, served)
    try:
        body = _decoded(data, kind)
    except ClientError as error:
        if error.param is not None and error.param.startswith(SOURCES):
            raise _no_source(choices) from None
        raise
    if body.edgespec is not None:
        _check_names(body.edgespec, choices)
    if body.stream_options is not None and not body.stream:
        raise refusal("stream_options", "it is only allowed together with 'stream': true")

    if isinstance(body, ChatBody):
        check_chat(body)
    return body, {name: fields[name] for name in elsewhere if _present(fields.get(name))}


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


def check_chat(body: ChatBody) -> None:
    """Raises ClientError 400 for parameters that contradict each other."""
    if body.top_logprobs is not None and not body.logprobs:
        raise refusal("top_logprobs", "it is only allowed together with 'logprobs': true")

    wanted = body.response_format
    if wanted is not None and wanted.type != "text":
        _check_format(wanted)
    if wanted_of(body) is not None and (body.endless or body.min_tokens):
        name = "edgespec.ignore_eos" if body.endless else "min_tokens"
        raise refusal(name, "JSON ends where it is complete; leave it out")


def _check_format(wanted: ResponseFormat) -> None:
    if wanted.type not in ("json_object", "json_schema"):
        raise refusal("response_format.type", "expected one of text, json_object, json_schema")
    if (wanted.json_schema is None) == (wanted.type == "json_schema"):
        raise refusal("response_format.json_schema", "it goes with the type 'json_schema', and only with it")


def wanted_of(body: Common) -> Wanted | None:
    """The schema or grammar that the completion must satisfy, or None. Raises ClientError 400."""
    if not isinstance(body, ChatBody):
        return None

    wanted = body.response_format
    schema = None
    if wanted is not None and wanted.type != "text":
        if wanted.json_schema is None:
            schema = {"type": "object"}
        else:
            schema = wanted.json_schema.schema
    return body.offer.grammar(schema)


def _check_unserved(name: str, value: Raw, served: Collection[str]) -> None:
    if name not in HARMLESS:
        shown = name[:SHOWN]
        close = difflib.get_close_matches(shown, served, n=1, cutoff=MIN_LIKENESS)
        hint = f" (did you mean '{close[0]}'?)" if close else ""
        raise ClientError(f"Unknown parameter: '{shown}'{hint}.", param=shown, code="unknown_parameter")

    plain = msgspec.json.encode(parsed(value, name))
    if plain == b"null" or plain in HARMLESS[name]:
        return
    if name in WHY_UNSERVED:
        raise refusal(name, WHY_UNSERVED[name], "unsupported_parameter")

    sentence = f"The parameter '{name}' would change the completion and is not supported here; leave it out."
    raise ClientError(sentence, param=name, code="unsupported_parameter")


class TokenizeBody(Struct):
    """`POST /tokenize`: a text, in vLLM's or llama.cpp's parameter, or a chat. Other parameters are ignored."""

    prompt: str | None = None
    content: str | None = None
    messages: Annotated[list[ChatMessage], Meta(min_length=1)] | None = None
    tools: Annotated[list[Tool], Meta(max_length=128)] | None = None


def as_completion(data: bytes, model: str) -> Common:
    """The completion whose prompt is to be tokenised. Raises ClientError 400."""
    body = _decoded(data, TokenizeBody)
    if body.messages is not None:
        return ChatBody(model=model, messages=body.messages, tools=body.tools)
    if body.prompt is None and body.content is None:
        raise refusal("prompt", "send 'prompt' or 'messages'", "missing_required_parameter")
    return CompletionBody(model=model, prompt=body.prompt or body.content or "")


T = TypeVar("T")


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


def _validation(text: str) -> ClientError:
    """A ClientError from msgspec's text, such as "Expected `int`, got `str` - at `$.messages[0].role`"."""
    where = _WHERE.search(text)
    path = where["path"] if where else ""
    what = text[: where.start()] if where else text
    missing = _MISSING.match(what)
    if missing is not None:
        param = f"{path}.{missing['name']}".lstrip(".")
        return ClientError(f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter")
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
            raise refusal(at, "functions are OpenAI's former tools; send tool calls", "unsupported_parameter")
        if message.role not in ROLES:
            raise refusal(f"{at}.role", f"expected one of {', '.join(ROLES)}")
        role = "system" if message.role == "developer" else message.role
        silent = message.content is None and bool(message.tool_calls)
        one: dict[str, Any] = {"role": role, "content": "" if silent else _text(message.content, f"{at}.content")}
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
            raise refusal(f"{at}[{index}]", "only parts of the type 'text' are supported", "unsupported_parameter")

    return "".join(part.text or "" for part in content)


def _present(value: Raw | None) -> bool:
    return value is not None and bytes(value).strip() != b"null"
