"""A setting has one default: whatever bears its name in the product takes it from its declaration."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

import msgspec
import pytest

from cloud_gateway.parts import all_parts as gateway_parts
from cloud_gateway.process import config as gateway
from edgespec.parts import all_parts as worker_parts
from edgespec.shared.settings import Section
from edgespec.worker import config as worker
from tools.check.core import is_core

ROOT = Path(__file__).parents[1]
FILES = [
    path.relative_to(ROOT).as_posix()
    for program in ("cloud_gateway", "edgespec")
    for path in (ROOT / program).rglob("*.py")
]
OTHERS: Mapping[str, str] = {
    "branching": "one default for each rule; 0 in the configuration is the rule's own",
    "sequences": "likewise; a policy's is of the local draft",
    "exact": "`auto` is resolved by the engine that is chosen",
    "requests": "0 is where a count begins",
}
"""Names that have more than one default on purpose, and why. A key of several tables is not looked for: it has one
default in each."""


def names_of(tables: Iterable[type[Section]]) -> set[str]:
    """The keys that one of the tables has, and no other."""
    times = Counter(name for table in tables for name in table.__struct_fields__)
    return {name for name, count in times.items() if count == 1}


@cache
def settings() -> set[str]:
    """The names of the core's keys of gateway.toml and worker.toml."""
    kinds = (gateway.GatewaySettings, worker.WorkerSettings)
    return names_of(type(table.default) for kind in kinds for table in msgspec.structs.fields(kind))


@cache
def of_core() -> dict[str, str]:
    """The sources of the core by path."""
    return {path: (ROOT / path).read_text() for path in FILES if is_core(path)}


def scopes() -> Iterator[tuple[str, set[str], dict[str, str]]]:
    """The core, and each part that has settings: its name, its keys and its sources."""
    yield "core", settings(), of_core()
    for part in (*gateway_parts(), *worker_parts()):
        folders = tuple(f"{program}/parts/{part.name}/" for program in ("cloud_gateway", "edgespec"))
        sources = {path: (ROOT / path).read_text() for path in FILES if path.startswith(folders)}
        if sources and part.settings:
            yield part.name, names_of(part.settings.values()), sources


SCOPES = list(scopes())


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


@pytest.mark.parametrize(("scope", "names", "sources"), SCOPES, ids=[scope for scope, _, _ in SCOPES])
def test_no_setting_has_two_defaults(scope: str, names: set[str], sources: Mapping[str, str]) -> None:
    assert not {name: values for name, values in twice(sources, names).items() if name not in OTHERS}, scope


@pytest.mark.parametrize(("scope", "names", "sources"), SCOPES, ids=[scope for scope, _, _ in SCOPES])
def test_no_number_of_a_setting_is_written_twice(scope: str, names: set[str], sources: Mapping[str, str]) -> None:
    """Also not the same one: it would be changed in one place only."""
    numbers = {
        name: places
        for name, values in literals(sources).items()
        if name in names - set(OTHERS)
        for value, places in values.items()
        if value.replace(".", "").isdigit() and len(places) > 1
    }
    assert not numbers, scope


@pytest.mark.parametrize(
    "line", ["def load(context, *, phi=0.5): ...", "class Rule:\n    phi: float = 3.0", "def f(phi=1): ..."]
)
def test_a_second_default_would_be_found(line: str) -> None:
    assert "phi" in twice({**of_core(), "more.py": line}, settings())


def test_every_exception_is_still_one() -> None:
    assert set(OTHERS) <= settings()
    idle = set(OTHERS) - set(twice(of_core(), settings()))
    assert not idle
