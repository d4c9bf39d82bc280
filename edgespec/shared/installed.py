"""What came with this installation: the files that ship beside the code, and the packages that its extras bring."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Any

from edgespec.core.errors import ConfigError, MissingPackageError

SHIPPED = Path(__file__).parents[1] / "shipped"
"""Example configurations; links into `configs` in a checkout, files in a wheel."""
_REQUIREMENT = re.compile(r"([\w.-]+).*; *extra *== *[\"'](\w+)")
_EXTRAS = ("worker", "gateway", "torch", "gpu", "shell")
"""In the order in which one is recommended for a package of several; not `dev`, which no program needs."""
_DISTRIBUTIONS = {"llama_cpp": "llama-cpp-python", "pynvml": "nvidia-ml-py"}
"""Modules that are not named as their distribution is."""


def shipped_text(name: str) -> str:
    """The content of a shipped file. Raises ConfigError if it is missing."""
    try:
        return (SHIPPED / name).read_text()
    except OSError:
        raise ConfigError(f"{SHIPPED / name} is missing: install edgespec again.") from None


def require(*modules: str) -> None:
    """Raises ModuleNotFoundError, which the command line explains, for a module that a later step or a child needs."""
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise ModuleNotFoundError(name=module)


def another(module: str, what: str) -> Any:
    """A module of the distribution edgespec-vllm (integrations/vllm). Raises ConfigError if it is not installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if not str(error.name).startswith("edgespec_vllm"):
            raise
        raise ConfigError(f"{what} needs the package edgespec-vllm; install it here too.") from None


def missing_package(module: str | None, program: str) -> MissingPackageError | None:
    """The error for a module that cannot be imported; None if no extra of edgespec brings it.

    `program`: of several extras, `cloud-gateway` recommends its own.
    """
    top = (module or "").split(".")[0]
    package = _DISTRIBUTIONS.get(top, top.replace("_", "-"))
    try:
        found = [_REQUIREMENT.match(line) for line in requires("edgespec") or ()]
    except PackageNotFoundError:
        return None
    extras = {one[2] for one in found if one and one[1] == package}
    order = ("gateway", *_EXTRAS) if program == "cloud-gateway" else _EXTRAS
    extra = next((one for one in order if one in extras), None)
    if extra is None:
        return None

    said = f'The package {package} is not installed for {sys.executable}: run `pip install "edgespec[{extra}]"` there.'
    if extra == "torch":
        said += " Without a GPU, name torch's index of CPU wheels with `--index-url`: they are much smaller."
    return MissingPackageError(said)
