"""The configuration files that ship: complete, commented, and equal to the defaults in the code."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path

import msgspec
import pytest

from cloud_gateway.process.config import GatewaySettings
from edgespec.shared.settings import Section, find_line, keys, load
from edgespec.worker.config import WorkerSettings

CONFIGS = Path(__file__).parents[3] / "configs"
SHIPPED: list[tuple[str, type[Section]]] = [("worker.toml", WorkerSettings), ("gateway.toml", GatewaySettings)]
PAIRS = [(name, key, *given) for name, schema in SHIPPED for key, given in keys(schema).items()]


@cache
def shipped(name: str) -> dict[str, object]:
    return tomllib.loads((CONFIGS / name).read_text())


def in_file(name: str, key: str) -> object:
    value: object = shipped(name)
    for part in key.split("."):
        value = value[part]  # type: ignore[index]
    return value


def comment(name: str, key: str) -> str:
    """The comment lines directly above a key."""
    text = (CONFIGS / name).read_text()
    line = find_line(text, tuple(key.split(".")))
    assert line is not None
    above: list[str] = []
    for row in reversed(text.split("\n")[: line - 1]):
        if not row.startswith("#"):
            break
        above.insert(0, row.lstrip("# "))
    return " ".join(above)


@pytest.mark.parametrize(("name", "schema"), SHIPPED)
def test_a_shipped_file_loads_and_is_what_the_code_takes_without_one(name: str, schema: type[Section]) -> None:
    assert load(CONFIGS / name, schema) == schema()


def test_every_key_stands_in_the_shipped_file_with_its_default() -> None:
    for name, key, default, _ in PAIRS:
        if default is msgspec.NODEFAULT:
            assert in_file(name, key), key
        else:
            assert in_file(name, key) == (list(default) if isinstance(default, tuple) else default), key


def test_every_key_has_a_comment_that_names_what_is_allowed() -> None:
    for name, key, _, words in PAIRS:
        said = comment(name, key)
        assert len(said) > 20, key
        for must in re.findall(r'"[^"]*"|\d+|true|false', words):
            assert must in said, f"the comment on {key} does not say {must}"


@pytest.mark.parametrize(("name", "schema"), SHIPPED)
def test_no_line_of_a_shipped_file_is_longer_than_code_may_be(name: str, schema: type[Section]) -> None:
    assert max(map(len, (CONFIGS / name).read_text().split("\n"))) <= 120
