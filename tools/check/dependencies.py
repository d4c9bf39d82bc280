"""Whether what the code imports is declared, and what is declared is pinned and has its reason."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from importlib.metadata import packages_distributions
from pathlib import Path

OWN = frozenset({"edgespec", "cloud_gateway", "edgespec_lab", "tools", "tests"})
FOLDERS = ("edgespec", "cloud_gateway", "lab", "tools", "tests")
UNINSTALLED: Mapping[str, list[str]] = {
    "pynvml": ["nvidia-ml-py"],
    "opentelemetry": ["opentelemetry-sdk"],
}  # of extras that `make setup` leaves out


def dependency_faults(root: Path) -> Iterator[str]:
    """One sentence for each dependency without a pin or a reason, and for each import that nothing declares."""
    declared = declared_packages(root)
    reasons = (root / "docs" / "dependencies.md").read_text()
    pins = "".join(file.read_text() for file in sorted((root / "requirements").glob("*.txt")))
    for package in sorted(declared):
        if f"`{package}`" not in reasons:
            yield f"docs/dependencies.md gives no reason for {package}"
        if not re.search(rf"^{re.escape(package)}==", pins, re.MULTILINE):
            yield f"requirements/ does not lock {package}: run `python -m tools.lock`"
    distributions = {**UNINSTALLED, **packages_distributions()}
    for module, path in sorted(imported_modules(root).items()):
        packages = {normalised(name) for name in distributions.get(module, [module])}
        if not packages & declared:
            yield f"{path} imports {module}, which pyproject.toml does not declare"


def declared_packages(root: Path) -> set[str]:
    """The names of all dependencies in pyproject.toml, extras included."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    listed = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    return {normalised(re.split(r"[^\w.-]", requirement)[0]) for requirement in listed}


def imported_modules(root: Path) -> dict[str, Path]:
    """The top-level modules that are imported and belong neither to Python nor to the project, each with one file."""
    found: dict[str, Path] = {}
    for path in (path for folder in FOLDERS for path in (root / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            else:
                continue
            for module in (name.split(".")[0] for name in names):
                if module not in sys.stdlib_module_names and module not in OWN:
                    found.setdefault(module, path.relative_to(root))

    return found


def normalised(name: str) -> str:
    """A package's name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()
