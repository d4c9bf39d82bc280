"""Counts rooms and arrows: `python -m tools.check.structure`.

The rooms of a folder are the files and folders directly inside it, without `__init__.py`; an arrow is one room that
imports from another, at any depth and place. Rooms of a circle import each other, directly or through others; an arrow
within a circle runs back up. The top of a folder is its entry points, which nothing in the folder imports.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path

Arrows = Mapping[str, Set[str]]

BOUNDS = {"cloud_gateway": 12, "cloud_gateway/core": 6, "edgespec": 8}
"""Maximum rooms of a folder: what fits on one page of docs/architecture.md."""


@dataclass(frozen=True, slots=True)
class Folder:
    """One folder: its rooms, the arrows between them, and the groups of rooms that import each other."""

    path: str
    arrows: Arrows
    circles: tuple[tuple[str, ...], ...]

    @property
    def count(self) -> int:
        return sum(map(len, self.arrows.values()))

    @property
    def back_up(self) -> list[str]:
        """Arrows within circles: fewer would have to run back up in any order of the rooms."""
        return [f"{a} -> {b}" for circle in self.circles for a in circle for b in sorted(self.arrows[a] & {*circle})]

    def faults(self) -> Iterator[str]:
        """The figures above the bounds, one sentence each."""
        most = BOUNDS.get(self.path)
        if most is not None and len(self.arrows) > most:
            yield f"{self.path} has {len(self.arrows)} rooms; at most {most} are allowed"
        for circle in self.circles:
            yield f"{self.path}: {', '.join(circle)} import each other ({'; '.join(self.back_up)})"


def folders(root: Path, *packages: str) -> list[Folder]:
    """All folders with code below `packages`, each with what its rooms import from each other."""
    files = sorted(path for package in packages for path in (root / package).rglob("*.py"))
    known = {_module(path, root) for path in files}
    links = {(_module(path, root), name) for path in files for name in _imports(path, root, known)}
    parents = sorted({path.parent for path in files})
    return [_folder(parent, root, links) for parent in parents]


def _folder(folder: Path, root: Path, links: Set[tuple[str, str]]) -> Folder:
    path = str(folder.relative_to(root))
    prefix = (*path.split("/"),)
    arrows: dict[str, set[str]] = {
        room.stem: set()
        for room in sorted(folder.iterdir())
        if room.stem != "__init__" and (room.suffix == ".py" or next(room.rglob("*.py"), None) is not None)
    }
    for source, used in links:
        a = _room(source, prefix)
        b = _room(used, prefix)
        if a in arrows and b in arrows and a != b:
            arrows[a].add(b)

    return Folder(path, arrows, tuple(_circles(arrows)))


def _room(module: str, prefix: tuple[str, ...]) -> str:
    """The room of a folder that a module is in; "" if it is in none."""
    parts = module.split(".")
    inside = len(parts) > len(prefix) and tuple(parts[: len(prefix)]) == prefix
    if inside:
        return parts[len(prefix)]
    return ""


def _module(path: Path, root: Path) -> str:
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def _imports(path: Path, root: Path, known: Set[str]) -> Iterator[str]:
    """The project's modules that a file imports. A name that a package re-exports counts as the package."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                if full in known or node.module in known:
                    yield full if full in known else node.module


def _circles(arrows: Arrows) -> Iterator[tuple[str, ...]]:
    """Groups of two rooms or more of which each reaches every other."""
    reached = {room: _reach(room, arrows) for room in arrows}
    seen: set[str] = set()
    for room in arrows:
        group = {other for other in reached[room] if room in reached[other]}
        if len(group) > 1 and room not in seen:
            seen |= group
            yield tuple(sorted(group))


def _reach(room: str, arrows: Arrows) -> set[str]:
    found: set[str] = set()
    todo = [room]
    while todo:
        new = arrows[todo.pop()] - found
        found |= new
        todo.extend(new)

    return found


def main() -> int:
    """Prints the folders; returns 1 for a fault."""
    measured = folders(Path(), "edgespec", "cloud_gateway")
    faults = [fault for folder in measured for fault in folder.faults()]
    print(f"{'folder':40} rooms arrows back up")
    for one in measured:
        print(f"{one.path:40} {len(one.arrows):5} {one.count:6} {len(one.back_up):7}")
    print("\n".join(faults), file=sys.stderr, end="\n" if faults else "")
    if faults:
        return 1

    return 0


if __name__ == "__main__":
    sys.exit(main())
