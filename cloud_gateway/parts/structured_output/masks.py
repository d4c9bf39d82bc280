"""Token masks on a thread beside the engine's.

llguidance takes 0.02 ms for a mask of an ordinary schema and up to 100 ms for one of a hostile schema, during which it
releases the GIL. So the engine asks for masks early, a pass runs meanwhile, and it waits for a late one no longer than
the scope's allowance; then that completion waits, and the others go on (`Constraint.ready`).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from cloud_gateway.core.verify.interface import Constraint, ConstraintError

SHARE = 0.1
"""Part of the time that the engine may spend waiting for the masks of one scope: 1 ms of each pass of 10 ms."""
BURST_S = 0.005
"""Of waiting at once, after a time without any."""
NICENESS = 10
"""Of the thread, so that the models have priority where they use every core."""

T = TypeVar("T")
Looked = Mapping[tuple[int, ...], tuple[int, Sequence[int]]]
"""For each path what `allowed` and `forced` say."""


class Allowance:
    """How long the engine may still wait for one scope; pure, seconds in and out."""

    def __init__(self) -> None:
        self._left_s = BURST_S
        self._then = 0.0

    def left_s(self, now: float) -> float:
        """What may be waited now."""
        self._left_s = min(BURST_S, self._left_s + SHARE * max(now - self._then, 0.0))
        self._then = now
        return self._left_s

    def spent(self, seconds: float) -> None:
        """The engine has waited."""
        self._left_s = max(self._left_s - seconds, 0.0)


class Lane:
    """The thread of one scope, which takes one job after the other. It ends with the last reference to the lane."""

    def __init__(self) -> None:
        self._jobs = ThreadPoolExecutor(1, "masks", initializer=_yield_to_models)
        self._allowance = Allowance()

    def submit(self, job: Callable[[], T]) -> Future[T]:
        return self._jobs.submit(job)

    def done(self, job: Future[T]) -> bool:
        """Whether a job is done, after waiting for it as long as is allowed. Engine's thread."""
        if not job.done():
            began = time.monotonic()
            wait([job], self._allowance.left_s(began))
            self._allowance.spent(time.monotonic() - began)
        return job.done()


class MasksBeside(Constraint):
    """One completion's constraint for the engine's thread; the true one, `_inner`, lives on the lane's."""

    def __init__(self, make: Callable[[], Constraint], lane: Lane) -> None:
        self._lane = lane
        self._inner: Constraint | None = None
        self._broken: ConstraintError | None = None
        self._masks: dict[tuple[int, ...], Future[NDArray[np.bool_] | None]] = {}
        """After the committed tokens and each path."""
        self._looked: Future[Looked] | None = None
        self._moved = lane.submit(partial(self._begin, make))
        """What is forced after the committed tokens."""
        self._mask(())

    def ready(self, path: Sequence[int], wake: Callable[[], None] | None = None) -> bool:
        mask = self._mask(path)
        done = self._lane.done(mask)
        if not done and wake is not None:
            mask.add_done_callback(lambda _: wake())
        return done

    def __call__(self, path: Sequence[int]) -> NDArray[np.bool_] | None:
        return self._mask(path).result()

    def ahead(self, paths: Sequence[Sequence[int]]) -> None:
        """One job says which paths are allowed, then each has its mask computed while the pass runs."""
        wanted = [tuple(path) for path in paths]
        self._looked = self._lane.submit(lambda: {path: self._look(path) for path in wanted})
        for path in wanted:
            self._mask(path)

    def allowed(self, path: Sequence[int]) -> int:
        """All of the path where the lane has not said otherwise in time: then a pass verifies more than it needs."""
        return self._known(path)[0]

    def forced(self, path: Sequence[int]) -> Sequence[int]:
        if path:
            return self._known(path)[1]
        if self._lane.done(self._moved):
            return self._moved.result()
        return ()

    def committed(self, tokens: Sequence[int]) -> None:
        """A constraint that they break says so at its next mask."""
        for mask in self._masks.values():
            mask.cancel()
        self._masks.clear()
        self._looked = None
        self._moved = self._lane.submit(partial(self._follow, list(tokens)))
        self._mask(())

    def _mask(self, path: Sequence[int]) -> Future[NDArray[np.bool_] | None]:
        key = tuple(path)
        if key not in self._masks:
            self._masks[key] = self._lane.submit(lambda: self._whole()(key))
        return self._masks[key]

    def _known(self, path: Sequence[int]) -> tuple[int, Sequence[int]]:
        unknown = len(path), ()
        if self._looked is None or not self._lane.done(self._looked):
            return unknown
        return self._looked.result().get(tuple(path), unknown)

    # --- on the lane's thread ----------------------------------------------------------------------------------------

    def _whole(self) -> Constraint:
        if self._broken is not None:
            raise self._broken
        assert self._inner is not None
        return self._inner

    def _begin(self, make: Callable[[], Constraint]) -> Sequence[int]:
        self._inner = make()
        return self._inner.forced(())

    def _follow(self, tokens: Sequence[int]) -> Sequence[int]:
        try:
            self._whole().committed(tokens)
            return self._whole().forced(())
        except ConstraintError as error:
            self._broken = error
            return ()

    def _look(self, path: tuple[int, ...]) -> tuple[int, Sequence[int]]:
        inner = self._whole()
        return inner.allowed(path), inner.forced(path)


def _yield_to_models() -> None:
    with suppress(OSError):  # a sandbox may forbid it
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
