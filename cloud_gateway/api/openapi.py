"""The OpenAPI 3.1 document of `GET /openapi.json`, made from the types of bodies and responses."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Struct

from cloud_gateway.api.completions import (
    ChatChunk,
    ChatCompletion,
    Health,
    Model,
    Models,
    TextChunk,
    TextCompletion,
    Tokens,
    Version,
    Welcome,
)
from cloud_gateway.api.errors import Error
from cloud_gateway.api.responses import Response, ResponseEvent, ResponsesBody
from cloud_gateway.api.schema import ChatBody, CompletionBody, TokenizeBody

SCHEMAS = "#/components/schemas/"


@dataclass(frozen=True, slots=True)
class Operation:
    """A route: its method of `Api`, its body, its response, and the events of its stream."""

    endpoint: str
    summary: str
    response: Any
    body: type[Struct] | None = None
    event: type[Struct] | None = None
    public: bool = False


HEALTH = Operation("healthz", "Whether requests are accepted; 503 if not.", Health, public=True)
OPERATIONS: Mapping[tuple[str, str], Operation] = {
    ("GET", "/healthz"): HEALTH,
    ("GET", "/health"): HEALTH,
    ("GET", "/openapi.json"): Operation("openapi", "This document.", dict[str, Any]),
    ("GET", "/v1/models"): Operation("models", "The one model that is served.", Models),
    ("GET", "/v1/models/{model}"): Operation("model", "A model by its id.", Model),
    ("POST", "/v1/chat/completions"): Operation("chat", "A chat completion.", ChatCompletion, ChatBody, ChatChunk),
    ("POST", "/v1/responses"): Operation(
        "responses", "A response, without state.", Response, ResponsesBody, ResponseEvent
    ),
    ("POST", "/tokenize"): Operation("tokenize", "The tokens of a prompt.", Tokens, TokenizeBody),
    ("GET", "/version"): Operation("version", "The gateway's version.", Version),
    ("GET", "/"): Operation("welcome", "Paths to begin with.", Welcome, public=True),
    ("POST", "/v1/completions"): Operation(
        "completions", "Text that continues a prompt.", TextCompletion, CompletionBody, TextChunk
    ),
}


@functools.lru_cache(maxsize=1)
def document(models: Sequence[str] = (), refuses: Sequence[tuple[str, str]] = ()) -> bytes:
    """The document as JSON, of a gateway that serves a model by these names; none while it loads one.

    `refuses`: parameters that its engine cannot serve, each with the reason.
    """
    named: dict[str, Any] = {"type": "string", "enum": [*models]} if models else {"type": "string"}
    kinds = [kind for one in OPERATIONS.values() for kind in (one.body, one.response, one.event) if kind]
    schemas, components = msgspec.json.schema_components([*kinds, Error], ref_template=f"{SCHEMAS}{{name}}")
    for completion in (ChatBody, CompletionBody, ResponsesBody):
        properties = components[completion.__name__]["properties"]
        properties["model"] = named
        for name, why in refuses:
            if name in properties:
                properties[name] = properties[name] | {"description": f"Refused with 400: {why}."}
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
        if one.public:
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
