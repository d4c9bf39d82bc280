"""Checks of a JSON schema before it is compiled, in time linear in its size.

check_size(schema)    its nodes and depth; without recursion
finite(schema)        whether some value of finite size may satisfy it
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

MAX_SCHEMA_BYTES = 64 * 1024
MAX_NODES = 1024
"""Objects and lists. An object of so many properties takes 0.15 s; llguidance supports about 500 optional ones."""
MAX_DEPTH = 64
"""Objects and lists within each other. llguidance reads 127 levels."""
SCALARS = frozenset({"string", "number", "integer", "boolean", "null"})


def check_size(schema: Any) -> str | None:
    """The bound that a schema exceeds, as the end of a sentence; None where it exceeds none."""
    nodes, level = 0, [schema]
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for node in level:
            inner += [part for part in _parts(node) if isinstance(part, Mapping | list)]
            if nodes + len(inner) > MAX_NODES:
                return f"the schema has more than {MAX_NODES} objects and lists; ask for less at once"
        if not inner:
            return None
        nodes, level = nodes + len(inner), inner
    return f"the schema is nested more than {MAX_DEPTH} levels deep; move inner parts to '$defs'"


def _parts(node: Any) -> Iterator[Any]:
    return iter(node.values() if isinstance(node, Mapping) else node)


def finite(schema: Any) -> bool:
    """Whether some value of finite size may satisfy the schema: False where it requires itself without end.

    Considers `$ref`, `required`, `minItems`, `allOf`, `anyOf` and `oneOf`; all other keywords count as finite.
    The least fixed point over the graph of schemas: one is finite once each of its conditions has a finite choice
    (the linear method of Dowling and Gallier, 1984).
    """
    if not isinstance(schema, Mapping):
        return True
    nodes, places, open_conditions = [schema], {id(schema): 0}, [0]
    users: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    condition = 0
    for at, node in enumerate(nodes):  # which grows meanwhile
        for choices in _conditions(node, schema):
            if not all(isinstance(choice, Mapping) for choice in choices):
                continue
            condition += 1
            open_conditions[at] += 1
            for choice in choices:
                if id(choice) not in places:
                    places[id(choice)] = len(nodes)
                    nodes.append(choice)
                    open_conditions.append(0)
                users[places[id(choice)]].append((at, condition))
    return _holds(open_conditions, users)


def _holds(open_conditions: list[int], users: Mapping[int, Sequence[tuple[int, int]]]) -> bool:
    """Whether node 0 is finite. `users`: for each node, the nodes that have it as a choice, with the condition."""
    ready, met = [at for at, count in enumerate(open_conditions) if not count], set()
    while ready:
        for user, condition in users.get(ready.pop(), ()):
            if condition not in met:
                met.add(condition)
                open_conditions[user] -= 1
                if not open_conditions[user]:
                    ready.append(user)
    return not open_conditions[0]


def _conditions(node: Mapping[str, Any], root: Any) -> Iterator[Sequence[Any]]:
    """For each part that every value of this schema needs, the choices of which one has to be finite."""
    reference = node.get("$ref")
    if isinstance(reference, str):
        yield (_resolved(root, reference),)
    yield from (node[key] for key in ("anyOf", "oneOf") if isinstance(node.get(key), list))
    every = node.get("allOf")
    if isinstance(every, list):
        yield from ((one,) for one in every)
    kinds = node.get("type")
    names = [kinds] if isinstance(kinds, str) else kinds if isinstance(kinds, list) else []
    if not any(isinstance(name, str) and name in SCALARS for name in names):
        yield from ((part,) for part in _needed(node))


def _needed(node: Mapping[str, Any]) -> Iterator[Any]:
    """The schemas of the parts that every object or array of this schema has."""
    properties, required = node.get("properties"), node.get("required")
    if isinstance(properties, Mapping) and isinstance(required, list):
        yield from (properties.get(name) for name in required if isinstance(name, str))
    count, first = node.get("minItems"), node.get("prefixItems")
    if isinstance(count, int) and count > 0:
        first = first if isinstance(first, list) else []
        yield from first[:count]
        if count > len(first):
            yield node.get("items")


def _resolved(root: Any, reference: str) -> Any:
    """The target of a reference within the schema (RFC 6901); None for any other, which the compiler checks."""
    if not reference.startswith("#"):
        return None
    node = root
    for part in reference[1:].split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(node, list):
            node = node[int(name)] if re.fullmatch("[0-9]{1,9}", name) and int(name) < len(node) else None
        else:
            node = node.get(name) if isinstance(node, Mapping) else None
    return node
