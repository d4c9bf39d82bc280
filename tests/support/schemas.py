"""A nested schema for tests of constrained answers, and a judge of its values that shares no code with the grammar."""

from __future__ import annotations

from typing import Any

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
    home, tags, age = value["home"], value["tags"], value["age"]
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
