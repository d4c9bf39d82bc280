"""The border between the core and its parts, and the public names that two modules define.

The product is `cloud_gateway` and `edgespec`. A part is a folder `cloud_gateway/parts/NAME` or
`edgespec/parts/NAME`; one that both programs need has the same name in both. The core is the rest of the product, and
the two lists `parts/__init__.py` belong to neither.

A file names a part if an identifier, an import or a string that is not a docstring has the part's name as whole words:
`AuditSection`, `self.audit` and `"[audit]"` name the part `audit`. Comments and docstrings are not searched: the names
of parts are words of the language, too.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = ("cloud_gateway", "edgespec")
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
"""Words of an identifier in snake case or camel case, or of a sentence."""
COMMON = frozenset({"all_parts", "main", "schema"})
"""Names that mean the same in both programs: the list of parts, the entry point, the settings with those of parts."""


@dataclass(frozen=True, slots=True)
class PartFolders:
    """A part by its name, and the folders of its code, by their paths in the repository."""

    name: str
    folders: tuple[str, ...]

    @property
    def tests(self) -> str:
        """The folder of its tests."""
        return f"tests/parts/{self.name}"

    @property
    def tools(self) -> str:
        """The folder of what measures it."""
        return f"tools/parts/{self.name}"

    def owns(self, path: str) -> bool:
        """Whether a file is in one of the part's folders."""
        return path.startswith(tuple(f"{folder}/" for folder in (*self.folders, self.tests, self.tools)))


@dataclass(frozen=True, slots=True)
class Definition:
    """A class or function at the top of a module."""

    name: str
    path: str
    line: int


def part_folders(root: Path) -> list[PartFolders]:
    """The parts that the repository has, by name."""
    folders: defaultdict[str, list[str]] = defaultdict(list)
    for program in PROGRAMS:
        for marker in sorted((root / program / "parts").glob("*/__init__.py")):
            folder = marker.parent
            folders[folder.name].append(folder.relative_to(root).as_posix())

    return [PartFolders(name, tuple(paths)) for name, paths in sorted(folders.items())]


def is_product(path: str) -> bool:
    """Whether a file is installed for users; the lab, a distribution of its own, is for those who measure."""
    return path.startswith(tuple(f"{program}/" for program in PROGRAMS))


def is_list(path: str) -> bool:
    """Whether a file is one of the two lists of parts."""
    return path in {f"{program}/parts/__init__.py" for program in PROGRAMS}


def is_core(path: str) -> bool:
    """Whether a file of the product stays if every part is removed."""
    return is_product(path) and not path.startswith(tuple(f"{program}/parts/" for program in PROGRAMS))


def words(text: str) -> list[str]:
    """The words of an identifier, a path or a sentence, in lower case."""
    return [word.lower() for word in WORD.findall(text)]


def terms(source: str) -> set[tuple[str, ...]]:
    """The words of each identifier, and of each string that is not a docstring, of a Python source."""
    documentation = {
        node.value.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    spelled: set[tuple[str, ...]] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        is_string = token.type == tokenize.STRING and token.start[0] not in documentation
        if is_string or token.type == tokenize.NAME:
            spelled.add(tuple(words(token.string)))

    return spelled


def names_part(spelled: Iterable[Sequence[str]], part: str) -> bool:
    """Whether the words of a part's name stand side by side in one of the terms."""
    name = words(part)
    length = len(name)
    return any(
        list(term[start : start + length]) == name for term in spelled for start in range(len(term) - length + 1)
    )


def naming(parts: Sequence[PartFolders], sources: Mapping[str, str]) -> dict[str, set[str]]:
    """The files of the product outside of a part that name it, by the part's name.

    Args:
        parts: The parts of the repository.
        sources: Texts of its Python files by path.
    """
    files: dict[str, set[str]] = {part.name: set() for part in parts}
    if not parts:
        return files

    for path, source in sources.items():
        if not is_product(path) or is_list(path):
            continue
        spelled = terms(source)
        for part in parts:
            if not part.owns(path) and names_part(spelled, part.name):
                files[part.name].add(path)

    return files


def naming_faults(files: Mapping[str, set[str]], allowed: Mapping[str, frozenset[str]]) -> Iterator[str]:
    """One sentence for each file that names a part without an exception, and for each exception that nothing needs."""
    for part, paths in files.items():
        exceptions = allowed.get(part, frozenset())
        for path in sorted(paths - exceptions):
            yield f"{path} names the part {part}: let the part bring this by one of the seams (docs/architecture.md)"
        for path in sorted(exceptions - paths):
            yield f"{path} does not name the part {part} any more: remove it from NAMING in tools/check/budget.py"

    for part in sorted(allowed.keys() - files.keys()):
        yield f"{part} is no part: remove it from NAMING in tools/check/budget.py"


def definitions(path: str, source: str) -> Iterator[Definition]:
    """The public classes and functions at the top of a module."""
    for node in ast.parse(source).body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if not node.name.startswith("_") and node.name not in COMMON:
            yield Definition(node.name, path, node.lineno)


def taken_twice(sources: Mapping[str, str]) -> dict[str, list[Definition]]:
    """Public names of the product that two modules or more define, each with its definitions."""
    by_name: defaultdict[str, list[Definition]] = defaultdict(list)
    for path, source in sources.items():
        if is_product(path):
            for definition in definitions(path, source):
                by_name[definition.name].append(definition)

    return {name: places for name, places in sorted(by_name.items()) if len({place.path for place in places}) > 1}
