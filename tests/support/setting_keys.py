"""The keys of a schema of settings, for tests that compare them with files."""

from __future__ import annotations

import msgspec

from edgespec.shared.settings import _array, _field_types, _table, allowed


def keys(schema: type[msgspec.Struct], prefix: str = "") -> dict[str, tuple[object, str]]:
    """Every key of a schema, dotted, with its default and a description of its values; arrays without numbers."""
    found: dict[str, tuple[object, str]] = {}
    for name, kind in _field_types(schema).items():
        if inner := _table(kind) or _array(kind):
            found |= keys(inner, f"{prefix}{name}.")
        else:
            default = next(f.default for f in msgspec.structs.fields(schema) if f.encode_name == name)
            found[prefix + name] = default, allowed(kind)

    return found
