"""A nested schema, a judge of its values that shares no code with the grammar, and schemas of at most 64 KiB that are
as costly as possible for code that follows references repeatedly, compares patterns in pairs, or recurses to their
full depth.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

MAX_BYTES = 64 * 1024
"""The size of the largest schema that is compiled."""
NESTED: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "kind": {"enum": ["cat", "dog", None]},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 6}, "minItems": 1, "maxItems": 3},
        "home": {
            "type": "object",
            "properties": {"zip": {"type": "string", "pattern": "^[0-9]{5}$"}, "near": {"type": "boolean"}},
            "required": ["zip", "near"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "kind", "age", "tags", "home"],
    "additionalProperties": False,
}


def keeps_nested(value: Any) -> bool:
    """Whether a value satisfies NESTED."""
    home = value["home"]
    tags = value["tags"]
    age = value["age"]
    return (
        set(value) == {"name", "kind", "age", "tags", "home"}
        and set(home) == {"zip", "near"}
        and isinstance(value["name"], str)
        and len(value["name"]) <= 12
        and value["kind"] in ("cat", "dog", None)
        and type(age) is int
        and 0 <= age <= 99
        and 1 <= len(tags) <= 3
        and all(isinstance(tag, str) and len(tag) <= 6 for tag in tags)
        and len(home["zip"]) == 5
        and home["zip"].isdigit()
        and type(home["near"]) is bool
    )


Maker = Callable[[int], dict[str, Any]]


def ladder(levels: int, step: Callable[[dict[str, str]], dict[str, Any]]) -> dict[str, Any]:
    """Definitions, each of which refers to the next one as `step` says; the last is null."""
    defs = {str(n): step({"$ref": f"#/$defs/{n + 1}"}) for n in range(levels)}
    return {"$ref": "#/$defs/0", "$defs": defs | {str(levels): {"type": "null"}}}


def requiring(levels: int) -> dict[str, Any]:
    """Each requires two properties that refer to the next: 2^levels ways to go."""
    return ladder(levels, lambda to: {"type": "object", "properties": {"a": to, "b": to}, "required": ["a", "b"]})


def circles(count: int) -> dict[str, Any]:
    """Definitions that all require each other, and so no value."""
    defs = {
        str(n): {"required": ["a", "b"], "properties": {x: {"$ref": f"#/$defs/{(n * k + 1) % count}"} for x, k in PAIR}}
        for n in range(count)
    }
    return {"$ref": "#/$defs/0", "$defs": defs}


PAIR = (("a", 2), ("b", 3))


def nested(levels: int) -> dict[str, Any]:
    """Arrays of arrays."""
    schema: dict[str, Any] = {"type": "null"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema, "minItems": 1}
    return schema


MAKERS: dict[str, Maker] = {
    "required references": requiring,
    "circles": circles,
    "ladder of allOf": lambda n: ladder(n, lambda to: {"allOf": [to, to]}),
    "ladder of anyOf": lambda n: ladder(n, lambda to: {"anyOf": [to, to]}),
    "ladder of oneOf": lambda n: ladder(n, lambda to: {"oneOf": [to, to]}),
    "nested": nested,
    "wide enum": lambda n: {"enum": [f"v{i * 7919 % 100_003:x}" for i in range(n)]},
    "properties": lambda n: {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(n)}},
    "patternProperties": lambda n: {"patternProperties": {f"^(a|b)*x{i}$": {"type": "string"} for i in range(n)}},
    "allOf of patterns": lambda n: {"allOf": [{"type": "string", "pattern": f"a.*{i}.*b"} for i in range(n)]},
    "allOf of anyOf": lambda n: {"allOf": [{"anyOf": [{"const": f"{i}"}, {"const": f"{i}x"}]} for i in range(n)]},
    "one long reference": lambda n: {"$ref": "#" + "/a" * n},
    "references to one": lambda n: {"anyOf": [{"$ref": "#/$defs/a"}] * n, "$defs": {"a": {"required": ["x"]}}},
}


def largest(name: str, size: int = MAX_BYTES) -> dict[str, Any]:
    """One of a kind that takes nearly so many bytes, by the size of a smaller one; deeper ones than 900 levels cannot
    be written."""
    make = MAKERS[name]
    count = 900
    return make(count if name == "nested" else int(0.92 * count * size / len(json.dumps(make(count)))))
