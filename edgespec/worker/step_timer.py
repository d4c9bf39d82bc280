"""Times of draft steps by their leaves, and the seam of a part that measures them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from edgespec.core.protocol.messages import MAX_LEAVES
from edgespec.llamacpp.drafter import Drafter
from edgespec.worker.config import WorkerSettings

ASSUMED: Mapping[int, float] = {1: 0.02, MAX_LEAVES: 0.02 * (1 + 0.6 * (MAX_LEAVES - 1))}
"""Seconds by leaves if nothing is known. Formats that gain from batches pay less for a leaf, and Q4_1 pays a whole step
(edgespec/llamacpp/step_time.py): with this curve a step has few leaves, which is never much worse. Steps of requests
correct its level (`DraftCurve.sample`)."""


class StepTimer:
    """Times the steps of a loaded draft model. This one, the core's, leaves it at the assumed curve."""

    def known(self) -> Mapping[int, float]:
        """Seconds by leaves, 1 among them, for the start. The service calls it once, before the worker links."""
        return ASSUMED

    def measure(self, drafter: Drafter, now: float, wanted: Callable[[], bool]) -> Mapping[int, float] | None:
        """Seconds by leaves; None if there is nothing new.

        The drafting thread calls it whenever no request is open and the worker may draft. It is to return soon after
        `wanted` has said that there is other work.
        """
        return None

    def wait_s(self, now: float) -> float | None:
        """Seconds until `measure` should be called again without a request before; None: it need not be."""
        return None

    def status(self) -> Mapping[str, object]:
        """Fields that it adds to the worker's status; JSON types. On the event loop."""
        return {}


class MakeStepTimer(Protocol):
    """Makes a timer. The service calls that of the first part which has one, when the draft model is loaded."""

    def __call__(self, settings: WorkerSettings, drafter: Drafter) -> StepTimer: ...
