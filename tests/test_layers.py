"""The layers of the two packages, read from their imports (docs/architecture.md).

The core is pure: it may import what computes and nothing that waits, reads a clock, touches a file or draws from the
operating system. Above it, imports go down one list of packages (docs/architecture.md). Neither imports the lab,
which is a distribution of its own.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

PURE = frozenset(
    "__future__ abc array base64 binascii bisect collections contextlib copy dataclasses difflib enum fractions "
    "functools hashlib heapq hmac itertools json math operator re statistics string struct types typing unicodedata "
    "zlib cryptography msgspec nacl numpy spake2".split()
)
IMPURE_CALLS = frozenset({"open", "print", "input", "breakpoint", "exec", "eval", "__import__"})
BROAD = frozenset({"Exception", "BaseException"})
GATEWAY_ONLY = frozenset({"torch", "transformers", "accelerate", "safetensors", "prometheus_client"})
LLAMA = ("edgespec/llamacpp/", "cloud_gateway/models/drafts/gguf.py")
"""The files that may import llama.cpp, beside `gguf.py` of a worker's part; importers of these do so when a GGUF model
is loaded."""
LIBRARY = ("edgespec.core", "edgespec.shared", "edgespec.__version__")

# The packages of the project that each package may import, besides itself.
ALLOWED: dict[str, tuple[str, ...]] = {
    "edgespec/core": (),
    "edgespec/shared": ("edgespec.core",),
    "edgespec/llamacpp": ("edgespec.core", "edgespec.shared"),
    "edgespec/models": (*LIBRARY, "edgespec.llamacpp"),
    "edgespec/worker": (*LIBRARY, "edgespec.llamacpp"),
    "edgespec/parts": (*LIBRARY, "edgespec.llamacpp", "edgespec.models", "edgespec.worker"),
    "edgespec/__main__.py": ("edgespec",),
    "edgespec/__init__.py": (),
    "cloud_gateway/core": ("edgespec.core",),
    "cloud_gateway/models": (*LIBRARY, "edgespec.llamacpp", "cloud_gateway.core"),
    "cloud_gateway/engine": (*LIBRARY, "cloud_gateway.core", "cloud_gateway.models"),
    "cloud_gateway/links": (*LIBRARY, "cloud_gateway.core", "cloud_gateway.engine"),
    "cloud_gateway/api": (*LIBRARY, *(f"cloud_gateway.{room}" for room in ("core", "auth"))),
    "cloud_gateway/process": (*LIBRARY, "edgespec.llamacpp", "cloud_gateway"),
    "cloud_gateway/parts": (*LIBRARY, "cloud_gateway", "edgespec.parts"),
    "cloud_gateway": (*LIBRARY, "cloud_gateway"),
}
PARTS = ("cloud_gateway.parts", "edgespec.parts")
MAY_NAME_PARTS = (
    "cloud_gateway/__main__.py",
    "cloud_gateway/parts/",
    "edgespec/__main__.py",
    "edgespec/parts/",
)
"""The program's entry takes the list of parts and passes it on; the core never imports a part."""
INNER = {
    "edgespec/core/protocol": ("protocol", "errors", "numbers", "eviction"),
    "edgespec/core/sampling": ("sampling", "protocol", "errors", "numbers", "eviction"),
    "edgespec/core/pairing": ("pairing", "protocol", "errors", "numbers", "eviction"),
    "edgespec/core/drafting": ("drafting", "sampling", "protocol", "errors", "numbers", "eviction"),
}
"""The order of the subjects in edgespec/core."""


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
    """The reasons why a core module is impure."""
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
    room = next((place for place in ALLOWED if path == place or path.startswith(f"{place}/")), "")
    own = room.replace("/", ".")
    subject = next((place for place in INNER if path.startswith(f"{place}/")), None)
    for name in imports(ast.parse(source), path):
        if below(name, "edgespec", "cloud_gateway") and not below(name, own, *ALLOWED.get(room, ())):
            yield f"imports {name}; {room or path} may import {', '.join(ALLOWED.get(room, ())) or 'nothing'}"
        if subject and below(name, "edgespec.core") and name.split(".")[2] not in INNER[subject]:
            yield f"imports {name}, which stands above {subject}"
        if path.startswith("cloud_gateway/parts/") and below(name, "edgespec.parts"):
            part = path.split("/")[2]
            if not below(name, f"edgespec.parts.{part}"):
                yield f"imports {name}; a part imports of `edgespec.parts` only the one of its own name"
        if below(name, *PARTS) and not path.startswith(MAY_NAME_PARTS):
            yield f"imports {name}; no file outside a part names one"
        if below(name, "llama_cpp") and not (path.startswith(LLAMA) or re.match(r"edgespec/parts/\w+/gguf\.py", path)):
            yield f"imports {name}; only {' and '.join(LLAMA)} may"
        if path.startswith("edgespec/") and not path.startswith("edgespec/parts/") and below(name, *GATEWAY_ONLY):
            yield f"imports {name}; a worker must run without it"
        if below(name, "edgespec_lab", "tools", "tests"):
            yield f"imports {name}, which is not installed with it"


def files(*packages: str) -> list[str]:
    return sorted(str(path.relative_to(ROOT)) for package in packages for path in (ROOT / package).rglob("*.py"))


def test_the_core_is_pure() -> None:
    for path in files("edgespec/core", "cloud_gateway/core"):
        assert list(purity_faults(path, (ROOT / path).read_text())) == [], path


def test_imports_point_towards_the_core() -> None:
    for path in files("edgespec", "cloud_gateway"):
        assert list(layer_faults(path, (ROOT / path).read_text())) == [], path


def test_the_lab_imports_nothing_that_is_not_installed_with_it() -> None:
    for path in files("lab"):
        names = imports(ast.parse((ROOT / path).read_text()), path)
        assert [name for name in names if below(name, "tools", "tests")] == [], path


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
        ("cloud_gateway/engine/loop.py", "from edgespec import worker"),
        ("cloud_gateway/engine/loop.py", "import edgespec.llamacpp.drafter"),
        ("cloud_gateway/engine/loop.py", "import llama_cpp"),
        ("cloud_gateway/engine/loop.py", "from cloud_gateway.api import schema"),
        ("cloud_gateway/core/verify/accept.py", "from cloud_gateway.engine import loop"),
        ("cloud_gateway/core/requests/generation.py", "from cloud_gateway.parts.example.format import Log"),
        ("cloud_gateway/models/drafts/lookup.py", "import llama_cpp"),
        ("cloud_gateway/models/drafts/gguf.py", "from edgespec.worker.link import Link"),
        ("cloud_gateway/process/serve.py", "from edgespec_lab import demo"),
        ("cloud_gateway/process/serve.py", "from cloud_gateway.parts.example import PART"),
        ("cloud_gateway/process/config.py", "def f():\n    from cloud_gateway.parts import PARTS"),
        ("edgespec/worker/daemon.py", "from edgespec.parts import PARTS"),
        ("cloud_gateway/parts/example/view.py", "from edgespec.parts.other import PART"),
        ("edgespec/worker/daemon.py", "from cloud_gateway.core.verify import candidates"),
        ("edgespec/worker/daemon.py", "from edgespec_lab.sim import world"),
        ("edgespec/worker/daemon.py", "def f():\n    import torch"),
        ("edgespec/shared/settings.py", "from edgespec.worker.daemon import Daemon"),
        ("edgespec/llamacpp/drafter.py", "from edgespec.worker import config"),
        ("edgespec/core/protocol/session.py", "from edgespec.core.drafting import tree"),
        ("edgespec/__main__.py", "from cloud_gateway.parts.example import look"),
        ("edgespec/__main__.py", "def f():\n    from edgespec_lab import demo"),
        ("edgespec/models/drafts.py", "from tools import models"),
    ],
)
def test_each_import_in_the_wrong_direction_is_seen(path: str, planted: str) -> None:
    assert list(layer_faults(path, planted))


@pytest.mark.parametrize(
    ("path", "fine"),
    [
        (
            "edgespec/core/drafting/x.py",
            "from __future__ import annotations\nimport numpy as np\nfrom edgespec.core.drafting.tree import Tree",
        ),
        (
            "cloud_gateway/core/x.py",
            "from edgespec.core.drafting import tree\nfrom cloud_gateway.core.verify import accept\nfrom . import y",
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
            ["torch", "transformers", "accelerate", "safetensors", "prometheus_client", "cloud_gateway", "numpy"],
        ),
        ("cloud_gateway.__main__", ["llama_cpp", "torch", "numpy"]),
    ],
)
def test_each_side_starts_without_what_only_the_other_installs(module: str, absent: list[str]) -> None:
    block = f"import sys; sys.modules.update(dict.fromkeys({absent}))"
    script = f"{block}; import {module} as m; m.build_parser()"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
