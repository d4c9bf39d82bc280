"""Cuts a run into pieces, spreads them over processes and stops at the first failure."""

from __future__ import annotations

import asyncio
import math
import multiprocessing
import resource
import signal
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from tools.fuzz import api_cases, decoders, openapi_cases, served, tree_cases

CPU_S = 60.0
"""Processor time of the process; a case takes some milliseconds."""
MEMORY_MB = 512
"""By which the process may grow."""


@contextmanager
def bounded() -> Iterator[None]:
    """Raises AssertionError if what is done inside takes too much time or memory, as only an input does that decoders
    should have refused. In the main thread only.
    """
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    former = signal.signal(signal.SIGVTALRM, _stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, former)
    grown_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown_mb < MEMORY_MB, f"it took {grown_mb:.0f} MB of memory"


def _stop(*_: object) -> None:
    raise AssertionError(f"it took {CPU_S:g} s of processor time")


@dataclass(frozen=True)
class Kind:
    """One kind of case: what it runs by its name, which share of a run it has, how many make up a piece."""

    case: Callable[[str], Counter[str]]
    share: float
    piece: int
    """About half a second."""
    weight: int = 1
    """Inputs of one case: a walk has several rounds."""
    together: bool = False
    """Whether the cases of a piece go to one gateway, and so have one name, which ends with their number."""


def _count(name: str) -> int:
    return int(name.split(":")[3])


KINDS: Mapping[str, Kind] = {
    "http": Kind(lambda name: asyncio.run(served.cases(name, _count(name))), 0.00004, 50, together=True),
    "openapi": Kind(lambda name: asyncio.run(openapi_cases.cases(name, _count(name))), 0.0016, 500, together=True),
    "tree": Kind(tree_cases.case, 0.08, 40, tree_cases.ROUNDS),
    "api": Kind(lambda name: Counter([api_cases.case(name)]), 0.08, 500),
    "decoder": Kind(decoders.case, 0.84, 60, decoders.INPUTS),
}
"""Those are first in a run that take longest, so that no process is left alone with them at the end."""


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
        """By which `--case` repeats each one, or all together."""
        if KINDS[self.kind].together:
            yield f"{self.seed}:{self.kind}:{self.start}:{self.count}"
        else:
            yield from (f"{self.seed}:{self.kind}:{i}" for i in range(self.start, self.start + self.count))


@dataclass(frozen=True)
class Result:
    """What came of a piece; `failure` says at which case it ended, and how."""

    piece: Piece
    seen: Counter[str]
    failure: tuple[str, str] | None = None


def pieces(cases: int, seed: int, kinds: Collection[str] = tuple(KINDS)) -> list[Piece]:
    """A run of at least so many inputs, of these kinds by their shares; a short one leaves the rarest out."""
    found = list[Piece]()
    whole = sum(KINDS[name].share for name in kinds)
    left = cases
    for name in sorted(kinds, key=lambda name: KINDS[name].share, reverse=True):
        kind = KINDS[name]
        total = math.ceil(min(cases * kind.share / whole, left) / kind.weight) if left > 0 else 0
        left -= total * kind.weight
        starts = range(0, total, kind.piece)
        cut = [(start, min(kind.piece, total - start)) for start in starts]
        found = [Piece(name, seed, start, count, count * kind.weight) for start, count in cut] + found

    return found


def one(name: str) -> Counter[str]:
    """Runs the case of this name. Raises whatever it fails with."""
    kind = name.split(":")[1]
    with nullcontext() if KINDS[kind].together else bounded():
        return KINDS[kind].case(name)


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
    with tempfile.TemporaryDirectory(prefix="edgespec-fuzz-") as folder, _context.Pool(jobs, _begin, (folder,)) as pool:
        for result in pool.imap_unordered(run_piece, todo):
            done(result)
            if result.failure is not None:
                return result.failure  # leaving the block ends the others
    return None


_context = multiprocessing.get_context("spawn")


def _begin(folder: str) -> None:
    """In a new process: what it leaves when it is ended goes with the folder."""
    tempfile.tempdir = folder
