"""`python -m tools.check.docs` holds README.md and docs/ against the tree: what they name must exist.

Checked: relative links and their anchors; paths and test names in backticks; commands of `edgespec`, `cloud-gateway`,
`make` and `python -m tools.…` with their options, against the real parsers; a reason for every dependency; that pages
of docs/results name an existing commit, a machine and a command; and, in all tracked files, that no path of one machine
and no registry's host name is left.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from cloud_gateway import __main__ as cloud_gateway
from edgespec import __main__ as edgespec
from tools.check.commands import command_faults
from tools.check.dependencies import dependency_faults
from tools.check.results_pages import results_faults

FOLDERS = ("cloud_gateway", "configs", "dev", "docs", "edgespec", "tests", "tools")
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
FENCE = re.compile(r"^ *(```|~~~)")
PATH = re.compile(rf"^(?:{'|'.join(FOLDERS)})/[\w./*-]*(?:::\w+)?$")
LEAK = re.compile(
    r"(?<![\w.-])/(?:w[o]rk|f[a]rm|r[o]ot)/[\w.]|p[y]thonhosted\.org|p[y]pi\.org|n[p]mjs\.(?:org|com)|deb\.d[e]bian\.org"
)


def documents(root: Path) -> list[Path]:
    """README.md and everything below docs/."""
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]


def prose_and_code(text: str) -> tuple[str, list[str]]:
    """A Markdown text without its fenced blocks, and the lines of those blocks (continued lines joined)."""
    prose: list[str] = []
    code: list[str] = []
    fenced = False
    for line in text.splitlines():
        if FENCE.match(line):
            fenced = not fenced
        elif not fenced:
            prose.append(line)
        elif code and code[-1].endswith("\\"):
            code[-1] = code[-1][:-1] + " " + line.strip()
        else:
            code.append(line.strip())

    return "\n".join(prose), code


def anchors(text: str) -> set[str]:
    """The anchors of a Markdown text's headings, as code hosts make them."""
    headings = re.findall(r"^#+ +(.+?) *#*$", prose_and_code(text)[0], re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def link_faults(root: Path, document: Path, text: str) -> Iterator[str]:
    """Links that lead nowhere inside the tree."""
    for match in LINK.finditer(prose_and_code(text)[0]):
        target = match[1] or match[2]
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (document.parent / name).resolve() if name else document
        if not path.exists() or not path.is_relative_to(root.resolve()):
            yield f"the link to {target} leads nowhere"
        elif anchor and path.suffix == ".md" and anchor not in anchors(path.read_text()):
            yield f"the link to {target} names no heading"


def path_faults(root: Path, text: str) -> Iterator[str]:
    """Paths in backticks that do not exist, and `file.py::test` if the file has no such test."""
    for span in CODE.findall(prose_and_code(text)[0]):
        if not PATH.match(span):
            continue
        name, _, test = span.partition("::")
        if not name.endswith("/") and "." not in name.rsplit("/", 1)[-1]:
            continue  # `edgespec/1` is the protocol's name
        found = sorted(root.glob(name.rstrip("/")))
        if not found:
            yield f"`{span}` does not exist"
        elif test and test not in defined_names(found[0].read_text()):
            yield f"`{span}` does not exist in that file"


def defined_names(source: str) -> set[str]:
    """Every function and class of a Python source."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return {node.name for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)}


def load_parsers() -> dict[str, argparse.ArgumentParser]:
    """The parsers of the commands."""
    return {"edgespec": edgespec.build_parser(), "cloud-gateway": cloud_gateway.build_parser()}


def targets(root: Path) -> set[str]:
    """The targets of the Makefile."""
    return set(re.findall(r"^([\w-]+):", (root / "Makefile").read_text(), re.MULTILINE))


def text_faults(root: Path, document: Path, text: str, parsers: Mapping[str, argparse.ArgumentParser]) -> Iterator[str]:
    """Everything that one document names and that does not exist."""
    yield from link_faults(root, document, text)
    yield from path_faults(root, text)
    prose, code = prose_and_code(text)
    for line in [*CODE.findall(prose), *code]:
        yield from command_faults(line, parsers, targets(root), root)


def leak_faults(root: Path) -> Iterator[str]:
    """Paths of one machine and hosts of registries in tracked files."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        path = root / name
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (UnicodeDecodeError, FileNotFoundError):
            continue  # binary, or deleted and not committed yet
        yield from (
            f"{name}:{n}: {hit[0]}… must not land" for n, line in enumerate(lines, 1) if (hit := LEAK.search(line))
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Prints each fault; returns 1 when there is one."""
    root = Path((argv or ["."])[0]).resolve()
    parsers = load_parsers()
    found = list[str]()
    for document in documents(root):
        name = document.relative_to(root)
        found += [f"{name}: {fault}" for fault in text_faults(root, document, document.read_text(), parsers)]
    found += [*dependency_faults(root), *leak_faults(root), *results_faults(root)]
    print(f"docs: {len(documents(root))} documents, {len(found)} faults")
    for fault in found:
        print(fault, file=sys.stderr)

    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
