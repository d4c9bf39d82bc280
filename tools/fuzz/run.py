"""Cuts a run into pieces, spreads them over processes and stops at the first failure."""

from __future__ import annotations

import asyncio
import multiprocessing
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tools.fuzz import api_cases, served, tree_cases

API_PIECE, TREE_PIECE, HTTP_PIECE = 500, 40, 50
"""Cases, walks and bodies of one piece: about half a second each."""
HTTP_SHARE = 2000
"""One case in so many goes through the whole gateway, which takes twenty times as long."""


@dataclass(frozen=True)
class Piece:
    """Cases `start` to `start + count` of one kind."""

    kind: str
    seed: int
    start: int
    count: int
    cases: int
    """What it counts for: a walk has several rounds."""

    def names(self) -> Iterator[str]:
        """By which `--case` repeats each one; of those through the gateway all together."""
        if self.kind == "http":
            yield f"{self.seed}:http:{self.start}:{self.count}"
        else:
            yield from (f"{self.seed}:{self.kind}:{i}" for i in range(self.start, self.start + self.count))


@dataclass(frozen=True)
class Result:
    """What came of a piece; `failure` says at which case it ended, and how."""

    piece: Piece
    seen: Counter[str]
    failure: tuple[str, str] | None = None


def pieces(cases: int, seed: int) -> list[Piece]:
    """A run of so many cases: half of them rounds with trees, the others bodies, some through the whole gateway."""
    http = cases // HTTP_SHARE
    walks = -(-(cases // 2) // tree_cases.ROUNDS)
    bodies = cases - http - walks * tree_cases.ROUNDS
    cut = [("http", http, HTTP_PIECE, 1), ("tree", walks, TREE_PIECE, tree_cases.ROUNDS), ("api", bodies, API_PIECE, 1)]
    found = []
    for kind, total, size, weight in cut:
        for start in range(0, max(total, 0), size):
            count = min(size, total - start)
            found.append(Piece(kind, seed, start, count, count * weight))
    return found


def one(name: str) -> Counter[str]:
    """Runs the case of this name. Raises whatever it fails with."""
    kind = name.split(":")[1]
    if kind == "http":
        return asyncio.run(served.cases(name, int(name.split(":")[3])))
    return Counter([api_cases.case(name)]) if kind == "api" else tree_cases.case(name)


def run_piece(piece: Piece) -> Result:
    """Runs all cases of a piece, up to the first that fails."""
    seen: Counter[str] = Counter()
    with warnings.catch_warnings(action="error"):  # numpy warns of what is not a number before it spoils anything
        for name in piece.names():
            try:
                seen += one(name)
            except Exception:  # noqa: BLE001  whatever it is, it is what was looked for
                return Result(piece, seen, (name, traceback.format_exc()))
    return Result(piece, seen)


def run(todo: list[Piece], jobs: int, done: Callable[[Result], None]) -> tuple[str, str] | None:
    """Runs the pieces in `jobs` processes, the longest kind first; returns the first failure, after which it stops."""
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for result in pool.imap_unordered(run_piece, todo):
            done(result)
            if result.failure is not None:
                return result.failure  # leaving the block ends the others
    return None
