"""Times a worker's draft steps while it is idle, and stores the times for its next start (timer.py).

Without this part a worker keeps an assumed curve, whose level follows the steps of requests and whose shape does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgespec.worker.config import WorkerSettings
from edgespec.worker.part import WorkerPart

if TYPE_CHECKING:
    from edgespec.llamacpp.drafter import Drafter
    from edgespec.worker.step_timer import StepTimer


def _timer(settings: WorkerSettings, drafter: Drafter) -> StepTimer:
    from edgespec.parts.stopwatch.timer import Stopwatch

    return Stopwatch(settings.draft, drafter)


PART = WorkerPart("stopwatch", timer=_timer)
