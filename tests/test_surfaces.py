"""The public names of each package: its docstring lists them, and other packages of the product import no others."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = [path for top in ("cloud_gateway", "edgespec") for path in (ROOT / top).rglob("*.py")]
LAB = list((ROOT / "lab").rglob("*.py"))
"""A distribution of its own, which may import all; what only it imports of a package may be in the list."""
PACKAGES = {str(path.parent.relative_to(ROOT)): path for path in sorted(FILES) if path.name == "__init__.py"}
WHOLE = "all"
"""Stands for every name of a module that others import as a module."""


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def listed(package: str) -> dict[str, set[str]]:
    """Module -> public names, from lines such as "- `module`: `Name`, `other`" of the package's docstring."""
    text = ast.get_docstring(parsed(PACKAGES[package])) or ""
    entries = re.findall(r"^- `(\w+)`: (.*(?:\n  .*)*)", text, re.MULTILINE)
    return {module: {WHOLE} if names == WHOLE else set(re.findall(r"`(\w+)`", names)) for module, names in entries}


def defined(path: Path) -> set[str]:
    """Top-level names of a module."""
    found: set[str] = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found |= {name.id for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    return found


def used(importers: Sequence[Path] = FILES) -> Iterator[tuple[str, str, str]]:
    """(package, module, name) of each import from outside that package."""
    for path in importers:
        for node in ast.walk(parsed(path)):
            if not isinstance(node, ast.ImportFrom) or not node.module:
                continue
            for alias in node.names:
                package = node.module.replace(".", "/")
                module = ""
                name = alias.name
                if package in PACKAGES:  # the package itself, or one of its modules
                    if f"{package}/{name}" in PACKAGES or not (ROOT / package / f"{name}.py").exists():
                        continue
                    module = name
                    name = WHOLE
                else:
                    package, _, module = package.rpartition("/")
                if package in PACKAGES and not path.is_relative_to(ROOT / package):
                    yield package, module, name


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_has_what_its_docstring_lists(package: str) -> None:
    for module, names in listed(package).items():
        path = ROOT / package / f"{module}.py"
        assert path in FILES, f"{package} has no module {module}"
        assert names - {WHOLE} <= defined(path), f"{package}/{module}.py"


def test_other_packages_import_only_what_is_listed() -> None:
    secret = set()
    for package, module, name in used():
        public = listed(package).get(module, set())
        if name not in public and public != {WHOLE}:
            secret.add(f"{package}: `{module}`: `{name}`")
    assert not secret, "not in the docstring of the package:\n" + "\n".join(sorted(secret))


def test_what_is_listed_is_used_by_another_package() -> None:
    wanted = {(package, module, name) for package, module, name in used([*FILES, *LAB])}
    idle = {
        f"{package}: `{module}`: `{name}`"
        for package in PACKAGES
        for module, names in listed(package).items()
        for name in names
        if (package, module, name) not in wanted
    }
    assert not idle, "in the docstring, and imported by no other package:\n" + "\n".join(sorted(idle))
