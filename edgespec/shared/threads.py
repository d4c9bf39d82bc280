"""How many threads evaluate a model: the seam at which a part chooses, and the core's rule, a fixed number.

The threads of a pass wait for each other, and each of them keeps its core busy while it waits. So one thread that
shares its core with another process holds up all: with as many threads as cores, one busy loop beside them made passes
forty times as long. llama.cpp has a setting for threads that sleep instead (`poll`), but not in a build with OpenMP,
which the packages are. The core's rule therefore leaves one core to other processes. It measures nothing, so a second
busy process still holds up passes, and a quiet machine with two cores evaluates with one.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

log = logging.getLogger("edgespec.threads")

Step = Callable[[], object]
"""A pass over one row, which changes no request."""


class ThreadUse(Protocol):
    """The number of threads of one model. An engine calls it on the thread that evaluates the model."""

    def begin(self, step: Step) -> None:
        """Called once, when the model is loaded: sets the number for the first pass. It may run `step` a few times."""

    def watched(self, rows: int) -> AbstractContextManager[None]:
        """Around each pass, over so many rows. After the pass it may set another number for the next one."""

    def idle(self, step: Step) -> None:
        """Called while no request waits: it may run `step` with other numbers, for some milliseconds."""


class ThreadRule(Protocol):
    """Chooses numbers of threads for the models of a process, if the configuration leaves them open."""

    def counts(self) -> Sequence[int]:
        """The numbers that passes may have, ascending. Called when a model is loaded, which is tested with each."""

    def use(self, counts: Sequence[int], take: Callable[[int], object], model: str) -> ThreadUse:
        """Called once for each model, after `counts`.

        `counts`: those that passed the test, at least one; `take`: sets the number from the next pass on; `model`:
        what the log calls it.
        """


class Unchanged:
    """A `ThreadUse` that leaves the number as it is."""

    def begin(self, step: Step) -> None:
        """Nothing."""

    def watched(self, rows: int) -> AbstractContextManager[None]:
        """Nothing around a pass."""
        return nullcontext()

    def idle(self, step: Step) -> None:
        """Nothing."""


class FixedUse(Unchanged):
    """A `ThreadUse` that sets one number at the start."""

    def __init__(self, count: int, take: Callable[[int], object], model: str) -> None:
        self._count = count
        self._take = take
        self._model = model

    def begin(self, step: Step) -> None:
        self._take(self._count)
        log.info("the %s takes %d threads", self._model, self._count)


@dataclass(frozen=True, slots=True)
class FixedRule:
    """A `ThreadRule` with one number: a configured one, or the core's."""

    count: int = 0
    """0: one fewer than the cores that this process may use, at least one."""

    def counts(self) -> Sequence[int]:
        if self.count:
            return [self.count]
        return [max(len(os.sched_getaffinity(0)) - 1, 1)]

    def use(self, counts: Sequence[int], take: Callable[[int], object], model: str) -> ThreadUse:
        return FixedUse(counts[-1], take, model)


ONE_CORE_LEFT = FixedRule()
"""The core's rule."""


def fixed_if(count: int, rule: ThreadRule) -> ThreadRule:
    """A rule with a configured number of threads, or `rule` if that is 0."""
    if count:
        return FixedRule(count)
    return rule


def begun(use: ThreadUse, step: Step, *, on_gpu: bool) -> ThreadUse:
    """`use` after its beginning. With layers on a GPU the number stays, since passes that wait for it look held up."""
    use.begin(step)
    if on_gpu:
        return Unchanged()
    return use
