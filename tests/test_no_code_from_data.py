"""Nothing that reads data can run code from it."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("edgespec", "cloud_gateway", "tools")
MODULES = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}
SWITCHES = {"allow_pickle", "trust_remote_code"}
CALLS = {"eval", "exec", "torch.load", "yaml.load", "yaml.unsafe_load", "pandas.read_pickle"}
WORDS = re.compile("|".join(rf"\b{word.split('.')[0]}\b" for word in MODULES | SWITCHES | CALLS))
"""None of them is in most files, which need not be parsed."""


def unsafe(source: str) -> Iterator[str]:
    """Imports and calls by which data can become code."""
    for node in ast.walk(ast.parse(source if WORDS.search(source) else "")):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in MODULES:
            yield str(node.module)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            if (name := ast.unparse(node.func)) in CALLS:
                yield name
        elif isinstance(node, ast.keyword) and node.arg in SWITCHES and ast.unparse(node.value) != "False":
            yield f"{node.arg}={ast.unparse(node.value)}"


@pytest.mark.claim("nothing-that-reads-data-can-run-code-from-it")
def test_nothing_that_reads_data_can_run_code_from_it() -> None:
    files = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    assert {path.relative_to(ROOT).parts[0] for path in files} == set(FOLDERS)
    found = {str(path.relative_to(ROOT)): names for path in files if (names := list(unsafe(path.read_text())))}
    assert found == {}


@pytest.mark.parametrize(
    "line",
    ["import pickle", "from pickle import loads", "torch.load(f)", "numpy.load(f, allow_pickle=True)", "eval(text)",
     "AutoModel.from_pretrained(p, trust_remote_code=flag)"],
)  # fmt: skip
def test_each_way_is_seen(line: str) -> None:
    assert list(unsafe(line))
