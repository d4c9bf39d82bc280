"""`python -m tools.check.release [TAG]`: whether this commit may be released as TAG (vVERSION of edgespec/__init__.py).

Checked: version, tag, change log and citation agree; the wire's version changed since the last release if and only if
its messages did; every dependency is locked, at a version that pyproject.toml allows.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

from edgespec import __version__
from edgespec_lab import verbs
from tools.check.dependencies import dependency_faults, normalised
from tools.lock import entries, pinned

ROOT = Path(__file__).parents[2]
MESSAGES = "edgespec/core/protocol/messages.py"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns 1 for a fault."""
    parser = argparse.ArgumentParser(prog="python -m tools.check.release", description=__doc__)
    parser.add_argument("tag", nargs="?", default=f"v{__version__}", metavar="TAG")
    parser.set_defaults(run=check)
    return verbs.run(parser, argv)


def check(options: argparse.Namespace) -> int:
    """Prints each fault."""
    version = options.tag.removeprefix("v")
    found = list(
        text_faults(version, __version__, (ROOT / "CHANGELOG.md").read_text(), (ROOT / "CITATION.cff").read_text())
    )
    tags = [tag for tag in _git("tag", "--list", "v*", "--sort=-version:refname").split() if tag != options.tag]
    if tags:
        found += wire_faults(_git("show", f"{tags[0]}:{MESSAGES}"), (ROOT / MESSAGES).read_text())
    found += [*dependency_faults(ROOT), *bound_faults(ROOT)]
    if _git("status", "--porcelain"):
        found.append("the working tree has changes that are not committed")
    print(f"release {options.tag} after {tags[0] if tags else 'nothing'}: {len(found)} faults")
    for fault in found:
        print(fault, file=sys.stderr)

    return bool(found)


def text_faults(version: str, own: str, changes: str, citation: str) -> Iterator[str]:
    """Places that name another version."""
    if own != version:
        yield f"edgespec/__init__.py has version {own}"
    if not re.search(rf"^## {re.escape(version)} \(\d{{4}}-\d\d-\d\d\)$", changes, re.MULTILINE):
        yield f"CHANGELOG.md has no heading `## {version} (DATE)`"
    if not re.search(rf"^version: {re.escape(version)}$", citation, re.MULTILINE):
        yield f"CITATION.cff has no `version: {version}`"


def wire_faults(before: str, now: str) -> Iterator[str]:
    """A version of the wire that does not follow its messages; both texts are the module of messages."""
    changed, (old, new) = messages(before) != messages(now), map(wire_version, (before, now))
    if changed and old == new:
        yield f"{MESSAGES}: messages changed since the last release, and VERSION is still {new}"
    elif not changed and old != new:
        yield f"{MESSAGES}: VERSION went from {old} to {new}, and no message changed"


def messages(source: str) -> dict[str, tuple[str, ...]]:
    """Each structure with its bases, options and fields, and each type that a field may name; no docstrings."""
    found = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            fields = [ast.unparse(one) for one in node.body if isinstance(one, ast.AnnAssign | ast.Assign)]
            found[node.name] = (*map(ast.unparse, (*node.bases, *node.keywords)), *fields)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = (ast.unparse(node.value),)

    return {name: text for name, text in found.items() if name not in ("VERSION", "PROTOCOL")}


def wire_version(source: str) -> str:
    """The number of the wire's version."""
    (version,) = re.findall(r"^VERSION = (\d+)$", source, re.MULTILINE)
    return str(version)


def bound_faults(root: Path) -> Iterator[str]:
    """Packages whose locked version is below the one that pyproject.toml asks for."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    locked = {
        name: pinned(entry)
        for file in (root / "requirements").glob("*.txt")
        for name, entry in entries(file.read_text()).items()
    }
    for one in [*project["dependencies"], *(each for extra in extras for each in extra)]:
        name, _, lowest = one.partition(">=")
        version = locked.get(normalised(name), "==0").partition("==")[2]
        if _numbers(version) < _numbers(lowest):
            yield f"requirements/ locks {name} {version}, below {lowest}: run `python -m tools.lock`"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version.partition("+")[0])))


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main())
