"""A setting has one default: whatever bears its name in the product takes it from its declaration."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

import msgspec
import pytest

from cloud_gateway import parts as gateway_parts
from cloud_gateway.process import config as gateway
from edgespec import parts as worker_parts
from edgespec.worker import config as worker

ROOT = Path(__file__).parents[1]
FILES = [
    path
    for package in ("cloud_gateway", "edgespec")
    for path in sorted((ROOT / package).rglob("*.py"))
    if not path.is_relative_to(ROOT / "edgespec" / "lab")
]
OTHERS: Mapping[str, str] = {
    "branching": "one default for each rule; 0 in the configuration is the rule's own",
    "sequences": "likewise; a policy's is of the local draft",
    "threads": "0 in the configuration is a thread for each core, while a library call uses one",
    "host": "one for each port",
    "mode": "of a local draft, and of a worker beside its owner",
    "port": "one for each port, and the link port's in an address without one",
    "keep": "of files; elsewhere whether a closed request stays in the cache",
    "model": "which one; in [owner] what becomes of it",
    "name": "the policy's in [policy], a machine's elsewhere",
    "exact": "`auto` is resolved by the engine that is chosen",
    "requests": "0 is where a count begins",
}
"""Names that have more than one default on purpose, and why."""
TABLES = {"context", "n_gpu_layers"}
"""Keys of several tables, each with a default of its own, which happens to be the same number."""


@cache
def settings() -> set[str]:
    """The names of all keys of gateway.toml and worker.toml."""
    kinds = (gateway.schema(gateway_parts.all_parts()), worker.schema(worker_parts.all_parts()))
    tables = [field.default for kind in kinds for field in msgspec.structs.fields(kind)]
    return {key.name for table in tables for key in msgspec.structs.fields(type(table))}


def defaults(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """The fields of classes and parameters of functions that have a default."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for one in node.body:
                if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and one.value is not None:
                    yield one.target.id, one.value
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            at = [*node.args.posonlyargs, *node.args.args]
            yield from ((arg.arg, value) for arg, value in zip(at[::-1], node.args.defaults[::-1], strict=False))
            pairs = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
            yield from ((arg.arg, value) for arg, value in pairs if value is not None)


@cache
def literal_defaults(source: str) -> tuple[tuple[str, str], ...]:
    """Names and literal defaults; a default that names a constant is not one of its own, and None is none."""
    found = []
    for name, value in defaults(ast.parse(source)):
        with suppress(ValueError):
            found.append((name, repr(ast.literal_eval(value))))
    return tuple((name, literal) for name, literal in found if literal != "None")


def literals(sources: Mapping[str, str]) -> dict[str, dict[str, list[str]]]:
    """Name -> literal default -> files."""
    found: dict[str, dict[str, list[str]]] = {}
    for where, source in sources.items():
        for name, literal in literal_defaults(source):
            found.setdefault(name, {}).setdefault(literal, []).append(where)
    return found


def twice(sources: Mapping[str, str], names: set[str]) -> dict[str, dict[str, list[str]]]:
    """Settings with two or more literal defaults."""
    return {name: found for name, found in literals(sources).items() if name in names and len(found) > 1}


@cache
def product() -> dict[str, str]:
    return {str(path.relative_to(ROOT)): path.read_text() for path in FILES}


def test_no_setting_has_two_defaults() -> None:
    found = {name: values for name, values in twice(product(), settings()).items() if name not in OTHERS}
    assert not found


def test_no_number_of_a_setting_is_written_twice() -> None:
    """Also not the same one: it would be changed in one place only."""
    numbers = {
        name: places
        for name, values in literals(product()).items()
        if name in settings() - set(OTHERS) - TABLES
        for value, places in values.items()
        if value.replace(".", "").isdigit() and len(places) > 1
    }
    assert not numbers


@pytest.mark.parametrize(
    "line", ["def load(context, *, phi=0.5): ...", "class Rule:\n    phi: float = 3.0", "def f(phi=1): ..."]
)
def test_a_second_default_would_be_found(line: str) -> None:
    assert "phi" in twice({**product(), "more.py": line}, settings())


def test_every_exception_is_still_one() -> None:
    assert set(OTHERS) <= settings()
    idle = set(OTHERS) - set(twice(product(), settings()))
    assert not idle
