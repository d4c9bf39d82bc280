"""The prompts and the schema of `tools.lossless schema`, and a validator that shares nothing with the grammar."""

from __future__ import annotations

import json
import re
from typing import Any

TOPICS = (
    "a lighthouse,a violin,the Atlantic,a fox,a bakery,a glacier,chess,a telescope,a tram,an orchard,a desert,"
    "a submarine,a library,an owl,a bridge,a volcano,a bicycle,a market,a whale,a clock,a harbour,a forest,"
    "a kite,a castle,a robot,a piano,a rainbow,a spider,a school,a pyramid,a comet,a tea house,a windmill,"
    "a river,a wolf,a museum,a rocket,a garden,a mirror,a camel,a stadium,an island,a beehive,a train,"
    "a canyon,a theatre,a penguin,a ship,a cave,a farm"
).split(",")
"""Fifty, one for each prompt."""
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "kind": {"enum": ["place", "animal", "thing", "idea"]},
        "size": {
            "type": "object",
            "properties": {
                "metres": {"type": "number", "minimum": 0, "maximum": 100000},
                "large": {"type": "boolean"},
            },
            "required": ["metres", "large"],
            "additionalProperties": False,
        },
        "facts": {
            "type": "array",
            "minItems": 1,
            "maxItems": 2,
            "items": {
                "type": "object",
                "properties": {
                    "year": {"type": ["integer", "null"], "minimum": 1000, "maximum": 2100},
                    "text": {"type": "string", "maxLength": 60},
                    "code": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
                },
                "required": ["year", "text", "code"],
                "additionalProperties": False,
            },
        },
    },
    "required": ["name", "kind", "size", "facts"],
    "additionalProperties": False,
}
QUESTION = "Describe {topic} as JSON with the fields name, kind, size and facts."
KINDS: dict[str, tuple[type, ...]] = {
    "object": (dict,), "array": (list,), "string": (str,), "number": (int, float), "integer": (int,),
    "boolean": (bool,), "null": (type(None),),
}  # fmt: skip


def satisfies(value: Any, schema: dict[str, Any]) -> bool:
    """Whether a JSON value satisfies a schema of the keywords that SCHEMA uses."""
    if "enum" in schema:
        return value in schema["enum"]
    kinds = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
    if not any(isinstance(value, KINDS[kind]) and (kind == "boolean") == isinstance(value, bool) for kind in kinds):
        return False
    if isinstance(value, dict):
        known = schema["properties"]
        return set(schema["required"]) <= set(value) <= set(known) and all(
            satisfies(one, known[key]) for key, one in value.items()
        )
    if isinstance(value, list):
        return schema["minItems"] <= len(value) <= schema["maxItems"] and all(
            satisfies(one, schema["items"]) for one in value
        )
    if isinstance(value, str):
        return len(value) <= schema.get("maxLength", 10**9) and bool(re.search(schema.get("pattern", ""), value))
    return value is None or isinstance(value, bool) or schema["minimum"] <= value <= schema["maximum"]


def valid(text: str) -> bool:
    """Whether a text is JSON that satisfies SCHEMA."""
    try:
        return satisfies(json.loads(text), SCHEMA)
    except ValueError:
        return False
