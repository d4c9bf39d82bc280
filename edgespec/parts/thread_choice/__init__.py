"""Thread choice: as many threads for each model as are fastest beside whatever else runs on the machine.

At the start it takes the fastest of 1, 2, 4 … threads up to the number of cores. One pass that others held up, or a
load that leaves fewer cores, leads to fewer threads at once (count.py). More are compared while no request runs. It
concerns models whose number of threads is configured as 0, on a CPU. The gateway has a part of the same name.

Without this part a model has one thread fewer than there are cores, at all times. On a quiet machine with two cores a
pass then takes up to twice as long; with many cores the difference is small. One busy process holds up no pass either
way. Two or more hold up passes without the part, up to forty times: there a number of threads should be configured.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from edgespec.shared.threads import FixedUse, ThreadUse
from edgespec.worker.part import WorkerPart


class FastestThreads:
    """The part's `ThreadRule`."""

    def counts(self) -> Sequence[int]:
        """Each about half the next, up to the number of cores."""
        from edgespec.parts.thread_choice.count import thread_counts

        return thread_counts(len(os.sched_getaffinity(0)))

    def use(self, counts: Sequence[int], take: Callable[[int], object], model: str) -> ThreadUse:
        """A number that follows passes and load, if there are several."""
        if len(counts) == 1:
            return FixedUse(counts[0], take, model)

        from edgespec.parts.thread_choice.chosen import ChosenThreads

        return ChosenThreads(counts, take, model)


FASTEST = FastestThreads()
PART = WorkerPart("thread_choice", threads=FASTEST)
