"""Chats with forms and schemas, for `python -m tools.fuzz`."""

from __future__ import annotations

import msgspec

from cloud_gateway.parts.structured_output.grammar import check_schema
from tools.fuzz.decoder import JSON, Decoder

CHAT = (
    b'{"model":"fuzz","messages":[{"role":"user","content":"hi"}],"response_format":{"type":"json_schema",'
    b'"json_schema":{"name":"s","schema":{"$defs":{"x":{"anyOf":[{"type":"null"},{"$ref":"#/$defs/x"}]}},'
    b'"$ref":"#/$defs/x/anyOf/1"}}}}'
)
SCHEMAS = [
    (
        b'{"type":"object","properties":{"a":{"$ref":"#/$defs/n~1/1"},"b":{"type":"array","minItems":2,"prefixItems":[{}],'
        b'"items":{"$ref":"#"}}},"required":["a","b"],"$defs":{"n/":[{},{"oneOf":[{"enum":[1]},{"allOf":[{}]}]}]}}'
    ),
    b'{"anyOf":[{"$ref":"#/anyOf/1"},{"type":["string","null"]}]}',
]


def schema(data: bytes) -> object:
    """A schema whose size was checked, or any other JSON. Raises DecodeError."""
    try:
        value = msgspec.json.decode(data)
    except (UnicodeDecodeError, RecursionError) as error:  # as the API refuses the body
        raise msgspec.DecodeError from error
    if isinstance(value, dict):
        check_schema(value)
    return value


DECODERS = {"JSON schema": Decoder(schema, SCHEMAS, msgspec.DecodeError, JSON)}
