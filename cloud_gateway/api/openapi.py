"""The OpenAPI 3.1 document of `GET /openapi.json`, made from the types by which bodies are decoded.

The responses' types stand here: nothing is built from them, and the fuzz gate and the tests decode every response by
them, so that a field that the document does not have is found.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from msgspec import Struct

from cloud_gateway.api.schema import ChatBody, CompletionBody

SCHEMAS = "#/components/schemas/"


class Closed(Struct, forbid_unknown_fields=True):
    """Base of the responses: exactly these fields."""


class ErrorObject(Closed):
    """What was wrong; `param` is the parameter at fault."""

    message: str
    type: Literal["invalid_request_error", "rate_limit_error", "server_error"]
    param: str | None
    code: str | None


class Error(Closed):
    """Any status of 400 and up."""

    error: ErrorObject


class Health(Closed):
    """`GET /healthz`."""

    status: Literal["ok", "loading", "draining"]


class Model(Closed):
    """A served model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class Models(Closed):
    """`GET /v1/models`."""

    object: Literal["list"]
    data: list[Model]


class Timings(Closed):
    """Milliseconds."""

    queued: float
    prefill: float
    local: float
    decode: float
    before_worker: float
    total: float
    host: float


class SourceFigures(Closed):
    """Of a source without a draft model."""

    proposed: int
    verified: int
    accepted: int
    ms: float
    why: str | None


class Speculated(Closed):
    """`usage.edgespec` (docs/api.md explains each field)."""

    policy: str
    verification: Literal["shared-noise", "rejection"]
    why_off: str | None
    workers: list[str]
    by_worker: dict[str, dict[str, int]]
    why: str | None
    why_not_local: str | None
    rounds: int
    drafted: dict[str, int]
    accepted: dict[str, int]
    sources: dict[str, SourceFigures]
    worker_share: float | None
    offload_share: float | None
    local_draft_passes: int
    fallbacks: int
    guard: dict[str, dict[str, int]]
    frames: dict[str, int]
    tokens_before_worker: int
    timings_ms: Timings


class Counts(Closed):
    """`usage`."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    edgespec: Speculated


Finish = Literal["stop", "length", "tool_calls"]


class TopLogprob(Closed):
    """One alternative."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    """One token, and its alternatives."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(Closed):
    """`logprobs` of a chat."""

    content: list[TokenLogprob]
    refusal: None


class TextLogprobs(Closed):
    """`logprobs` of a text completion."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CallFunction(Closed):
    """The function that the model calls, `arguments` being JSON in a string."""

    name: str
    arguments: str


class ToolCall(Closed):
    """One call; in streams with its index."""

    id: str
    type: Literal["function"]
    function: CallFunction
    index: int | None = None


class AssistantMessage(Closed):
    """The completion."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: list[ToolCall] = []


class Delta(Closed):
    """What an event adds to it."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    tool_calls: list[ToolCall] = []


class ChatChoice(Closed):
    """One of `n`."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: Finish


class DeltaChoice(Closed):
    """A part of one."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: Finish | None


class TextChoice(Closed):
    """One of `n`, or a part of one."""

    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: Finish | None


class Enveloped(Closed):
    """What all responses of a completion share."""

    id: str
    created: int
    model: str
    system_fingerprint: str


class ChatCompletion(Enveloped):
    """`POST /v1/chat/completions`."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: Counts


class ChatChunk(Enveloped):
    """One event of its stream."""

    object: Literal["chat.completion.chunk"]
    choices: list[DeltaChoice]
    usage: Counts | None = None


class TextCompletion(Enveloped):
    """`POST /v1/completions`."""

    object: Literal["text_completion"]
    choices: list[TextChoice]
    usage: Counts


class TextChunk(Enveloped):
    """One event of its stream."""

    object: Literal["text_completion"]
    choices: list[TextChoice]
    usage: Counts | None = None


@dataclass(frozen=True, slots=True)
class Operation:
    """A route: its body, its response, and the events of its stream."""

    summary: str
    response: Any
    body: type[Struct] | None = None
    event: type[Struct] | None = None


HEALTH = Operation("Whether requests are accepted; 503 where not.", Health)
OPERATIONS: Mapping[tuple[str, str], Operation] = {
    ("GET", "/healthz"): HEALTH,
    ("GET", "/health"): HEALTH,
    ("GET", "/openapi.json"): Operation("This document.", dict[str, Any]),
    ("GET", "/v1/models"): Operation("The one model that is served.", Models),
    ("GET", "/v1/models/{model}"): Operation("A model by its id.", Model),
    ("POST", "/v1/chat/completions"): Operation("A chat completion.", ChatCompletion, ChatBody, ChatChunk),
    ("POST", "/v1/completions"): Operation("Text that continues a prompt.", TextCompletion, CompletionBody, TextChunk),
}


@functools.lru_cache(maxsize=1)
def document(model: str | None = None) -> bytes:
    """The document as JSON, of a gateway that serves this model; None while it loads one."""
    named = {"type": "string"} if model is None else {"type": "string", "enum": [model]}
    kinds = [kind for one in OPERATIONS.values() for kind in (one.body, one.response, one.event) if kind]
    schemas, components = msgspec.json.schema_components([*kinds, Error], ref_template=f"{SCHEMAS}{{name}}")
    for completion in (ChatBody, CompletionBody):
        components[completion.__name__]["properties"]["model"] = named
    schema_of = dict(zip(map(str, kinds), schemas))
    paths: dict[str, dict[str, Any]] = {}
    for (method, path), one in OPERATIONS.items():
        content = {"application/json": {"schema": schema_of[str(one.response)]}}
        if one.event:
            content["text/event-stream"] = {"schema": _event(schema_of[str(one.event)])}
        error = {"application/json": {"schema": schemas[-1]}}
        responses = {"200": {"description": "success", "content": content}}
        responses["503" if one is HEALTH else "default"] = {
            "description": "not accepted",
            "content": content if one is HEALTH else error,
        }
        found: dict[str, Any] = {"summary": one.summary, "responses": responses}
        if one is HEALTH:
            found["security"] = []
        if one.body:
            body = {"application/json": {"schema": schema_of[str(one.body)]}}
            found["requestBody"] = {"required": True, "content": body}
        names = re.findall(r"{(\w+)}", path)
        found["parameters"] = [{"name": name, "in": "path", "required": True, "schema": named} for name in names]
        paths.setdefault(path, {})[method.lower()] = found
    whole = {
        "openapi": "3.1.0",
        "info": {"title": "edgespec chat API", "version": "1"},
        "security": [{"key": []}],
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
    }
    return msgspec.json.encode(whole)


def _event(chunk: dict[str, Any]) -> dict[str, Any]:
    """A server-sent event as OpenAPI 3.2 describes it: in its data a chunk as JSON, or at the end [DONE]."""
    text = {"type": "string", "contentMediaType": "application/json", "contentSchema": chunk}
    data = {"anyOf": [{"const": "[DONE]"}, text]}
    return {"type": "object", "properties": {"data": data}, "required": ["data"]}
