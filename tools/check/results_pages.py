"""Whether a page of docs/results names a commit that exists, a machine, and a command that can be run today."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

NO_MEASUREMENT = ("README.md", "paths.md")
"""An index, and a page of publications."""
COMMIT = re.compile(r"\b(?:(?=\d*[a-f])(?=[a-f]*\d)[0-9a-f]{7,12}|(?<=commit )[0-9a-f]{7,12})\b")
MACHINE = re.compile(r"\bcores?\b|\btimes are virtual\b")
COMMAND = re.compile(r"\b(?:python -m (?P<module>[\w.]+)(?: +(?P<verb>[a-z][a-z-]*)\b)?|make (?P<target>[a-z-]+))")


def page_faults(root: Path, text: str, exists: Callable[[str], bool]) -> Iterator[str]:
    """One sentence for each thing that a page lacks or names wrongly; `exists` answers for a commit."""
    commits = sorted(set(COMMIT.findall(text)))
    if not commits:
        yield "names no commit at which it was measured"
    yield from (f"names commit {commit}, which does not exist" for commit in commits if not exists(commit))

    if not MACHINE.search(text):
        yield "names no machine: how many cores, of which processor, or that times are virtual"

    commands = list(COMMAND.finditer(text))
    if not commands:
        yield "names no command that repeats it"
    for command in commands:
        module = command["module"]
        if module and not runs(root, module, command["verb"]):
            yield f"names `{command[0]}`, which does not exist"


def runs(root: Path, module: str, verb: str | None) -> bool:
    """Whether one of the project's modules can be run, with this verb if it has verbs; a library's always can."""
    package = module.partition(".")[0]
    if package not in ("edgespec", "edgespec_lab", "integrations", "tests", "tools"):
        return True

    top = root / "lab" if package == "edgespec_lab" else root
    place = top / module.replace(".", "/")
    if place.with_suffix(".py").is_file():
        return True
    if not (place / "__main__.py").is_file():
        return False

    return verb is None or any(f'"{verb}"' in path.read_text() for path in place.rglob("*.py"))


def results_faults(root: Path) -> Iterator[str]:
    """The faults of all pages. In a shallow clone every commit counts as one that exists."""
    shallow = _git(root, "rev-parse", "--is-shallow-repository").stdout.strip() == "true"

    def exists(commit: str) -> bool:
        return shallow or _git(root, "cat-file", "-e", f"{commit}^{{commit}}").returncode == 0

    for page in sorted((root / "docs" / "results").glob("*.md")):
        if page.name not in NO_MEASUREMENT:
            yield from (f"docs/results/{page.name} {fault}" for fault in page_faults(root, page.read_text(), exists))


def _git(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
