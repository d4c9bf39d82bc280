"""The layers of the two packages, read from their imports (docs: README, "Layout").

The core is pure: it may import what computes and nothing that waits, reads a clock, touches a file or draws from the
operating system. The gateway stands on `edgespec.core` and `edgespec.shared`; the worker never needs the gateway.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

PURE = frozenset(
    "__future__ abc array base64 binascii bisect collections contextlib copy dataclasses enum fractions functools "
    "hashlib heapq hmac itertools json math operator re statistics string struct types typing unicodedata "
    "zlib cryptography msgspec nacl numpy spake2".split()
)
IMPURE_CALLS = frozenset({"open", "print", "input", "breakpoint", "exec", "eval", "__import__"})
BROAD = frozenset({"Exception", "BaseException"})
GATEWAY_ONLY = frozenset({"torch", "transformers", "accelerate", "safetensors", "prometheus_client"})
BOTH_SIDES = ("edgespec/demo", "edgespec/replay")
"""Verbs of `edgespec` that show both sides together, and load what they need when they run."""
MAY_USE_LLAMA = ("cloud_gateway/drafts/gguf.py", "cloud_gateway/target/llamacpp")


def imports(tree: ast.AST, path: str) -> Iterator[str]:
    """Every module or name that a file imports, dotted and absolute, wherever in the file the import stands."""
    package = path.removesuffix(".py").split("/")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = [] if node.level == 0 else package[: len(package) - node.level + 1]
            base = ".".join([*start, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def below(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def purity_faults(path: str, source: str) -> Iterator[str]:
    """What makes a core module impure."""
    own = ("edgespec.core", "cloud_gateway.core") if path.startswith("cloud_gateway/") else ("edgespec.core",)
    tree = ast.parse(source)
    for name in imports(tree, path):
        if name.split(".")[0] not in PURE and not below(name, *own):
            yield f"imports {name}"
        if below(name, "numpy.random"):
            yield f"imports {name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_CALLS:
            yield f"line {node.lineno} calls {node.func.id}()"
        if isinstance(node, ast.ExceptHandler):
            caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
            if any(one is None or (isinstance(one, ast.Name) and one.id in BROAD) for one in caught):
                yield f"line {node.lineno} has a broad except"
        if isinstance(node, ast.AsyncFunctionDef | ast.Await):
            yield f"line {node.lineno} is asynchronous"


def layer_faults(path: str, source: str) -> Iterator[str]:
    """Imports that point the wrong way, in any file of the two packages."""
    for name in imports(ast.parse(source), path):
        if path.startswith("cloud_gateway/"):
            allowed = ["edgespec.core", "edgespec.shared", "edgespec.__version__"]
            allowed += ["edgespec.drafter", "edgespec.calibrate"] if path == "cloud_gateway/drafts/gguf.py" else []
            if below(name, "edgespec") and not below(name, *allowed):
                yield f"imports {name}; the gateway may use {' and '.join(allowed)} only"
            if below(name, "llama_cpp") and not path.startswith(MAY_USE_LLAMA):
                yield f"imports {name}; a gateway without a GGUF draft or target must run without llama.cpp"
        elif not path.startswith(BOTH_SIDES):
            if below(name, "cloud_gateway"):
                yield f"imports {name}; a worker stands alone"
            if below(name, *GATEWAY_ONLY):
                yield f"imports {name}; a worker must run without it"
        if (
            path.startswith("edgespec/shared/")
            and below(name, "edgespec")
            and not below(name, "edgespec.core", "edgespec.shared")
        ):
            yield f"imports {name}; shared helpers stand on the core only"
        if below(name, "tools", "tests"):
            yield f"imports {name}, which is not installed"


def files(*packages: str) -> list[str]:
    return sorted(str(path.relative_to(ROOT)) for package in packages for path in (ROOT / package).rglob("*.py"))


@pytest.mark.parametrize("path", files("edgespec/core", "cloud_gateway/core"))
def test_the_core_is_pure(path: str) -> None:
    assert list(purity_faults(path, (ROOT / path).read_text())) == []


@pytest.mark.parametrize("path", files("edgespec", "cloud_gateway"))
def test_imports_point_towards_the_core(path: str) -> None:
    assert list(layer_faults(path, (ROOT / path).read_text())) == []


@pytest.mark.parametrize(
    "planted",
    [
        "import time",
        "from os import urandom",
        "import asyncio.events",
        "from edgespec import keystore",
        "from edgespec.shared import settings",
        "from cloud_gateway.core import merge",
        "from ..link import Link",
        "from numpy import random",
        "def f():\n    import socket",
        "x = open('file')",
        "try:\n    pass\nexcept Exception:\n    pass",
        "try:\n    pass\nexcept (ValueError, BaseException):\n    pass",
        "try:\n    pass\nexcept:\n    pass",
        "async def f() -> None: ...",
    ],
)
def test_each_impurity_in_the_core_is_seen(planted: str) -> None:
    assert list(purity_faults("edgespec/core/planted.py", planted))


@pytest.mark.parametrize(
    ("path", "planted"),
    [
        ("cloud_gateway/engine.py", "from edgespec import keystore"),
        ("cloud_gateway/engine.py", "import edgespec.drafter"),
        ("cloud_gateway/engine.py", "import llama_cpp"),
        ("cloud_gateway/drafts/lookup.py", "from edgespec.drafter import Drafter"),
        ("cloud_gateway/drafts/gguf.py", "from edgespec.link import Link"),
        ("edgespec/daemon.py", "from cloud_gateway.core import merge"),
        ("edgespec/daemon.py", "def f():\n    import torch"),
        ("edgespec/shared/settings.py", "from edgespec.daemon import run"),
        ("edgespec/demo.py", "from tools import models"),
    ],
)
def test_each_import_in_the_wrong_direction_is_seen(path: str, planted: str) -> None:
    assert list(layer_faults(path, planted))


@pytest.mark.parametrize(
    ("path", "fine"),
    [
        (
            "edgespec/core/x.py",
            "from __future__ import annotations\nimport numpy as np\nfrom edgespec.core.tree import Tree",
        ),
        (
            "cloud_gateway/core/x.py",
            "from edgespec.core import tree\nfrom cloud_gateway.core.merge import x\nfrom . import y",
        ),
    ],
)
def test_what_the_core_may_import_is_left_alone(path: str, fine: str) -> None:
    assert list(purity_faults(path, fine)) == list(layer_faults(path, fine)) == []


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        (
            "edgespec.__main__",
            ["torch", "transformers", "accelerate", "safetensors", "prometheus_client", "cloud_gateway"],
        ),
        ("cloud_gateway.__main__", ["llama_cpp"]),
    ],
)
def test_each_side_starts_without_what_only_the_other_installs(module: str, absent: list[str]) -> None:
    block = f"import sys; sys.modules.update(dict.fromkeys({absent}))"
    script = f"{block}; import {module} as m; m.build_parser()"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
