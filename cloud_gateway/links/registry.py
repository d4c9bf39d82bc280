"""The state of the linked workers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from cloud_gateway.core.policies.estimators import RttEstimator, StepClock
from cloud_gateway.core.policies.policy import Points
from cloud_gateway.core.requests.router import LinkedWorker
from edgespec.core.protocol.messages import Hello
from edgespec.shared.wire import Wire

FIRST_STEP_S = 0.010
"""Draft step time that is assumed until a worker's frames have been measured."""


@dataclass(slots=True, eq=False)
class WorkerInfo:
    """One linked worker; updated while the link lasts."""

    id: str
    """Its key id: stable over reconnects; `cloud-gateway workers` lists and revokes workers by it."""
    name: str
    """From the operator's list of paired workers; the name in `hello` is not used."""
    session: bytes
    address: str
    hello: Hello
    rtt: RttEstimator = field(default_factory=RttEstimator)
    step: StepClock = field(default_factory=lambda: StepClock(FIRST_STEP_S))
    draft_points: Points = ()
    """Leaves and seconds of a draft step as the worker reports it; empty until it has."""
    paused_because: str | None = None
    probation_ends: asyncio.TimerHandle | None = None
    """Until then it gets no requests, because its links kept ending (cloud_gateway/core/limits/conduct.py)."""
    groups: frozenset[str] = frozenset()
    """Its groups in the operator's list (edgespec/core/pairing/groups.py); without a group it gets no request."""
    scopes: dict[int, bytes] = field(default_factory=dict)
    """The cache scopes of its open requests, which differ between API keys (cloud_gateway/core/limits/conduct.py)."""
    blamed_for: bytes | None = None
    """The scope of the request whose tree broke the protocol; None for any other fault."""
    requests: int = 0
    """That it takes at once, as it said when it connected; 0: it did not."""
    wire: Wire = field(repr=False, kw_only=True)

    @property
    def rtt_s(self) -> float:
        """Smoothed round trip time; the handshake provides the first sample."""
        return self.rtt.srtt_s or 0.0

    @property
    def step_s(self) -> float:
        """Draft step time, estimated from the spacing of its frames."""
        return self.step.step_s

    @property
    def probation(self) -> bool:
        """Whether it gets no requests yet, because its links kept ending."""
        return self.probation_ends is not None

    @property
    def paused(self) -> bool:
        """Whether it gets no requests: it has sent `Pause` and not yet `Resume`, or is on probation."""
        return self.probation or self.paused_because is not None

    def view(self) -> LinkedWorker:
        return LinkedWorker(
            self.id, self.rtt_s, self.rtt.high_s, self.step_s, self.paused, self.name, self.groups,
            self.draft_points, self.requests,
        )  # fmt: skip

    def __str__(self) -> str:
        return f"worker {self.name} ({self.id})"


class Registry:
    """The linked workers by id, on the event loop, and the frozen views of them that any thread may read.

    Every event of a link ends in `refresh`. A view is replaced only where something in it has changed, so that the
    engine, which asks at every decision, never makes one.
    """

    def __init__(self) -> None:
        self.workers: dict[str, WorkerInfo] = {}
        self.views: dict[str, LinkedWorker] = {}

    def add(self, worker: WorkerInfo) -> None:
        """It is linked; replaces a former link of the same worker."""
        self.workers[worker.id] = worker
        self.refresh(worker)

    def remove(self, worker: WorkerInfo) -> bool:
        """Its link has ended; whether it was still this worker's."""
        found = self.workers.get(worker.id) is worker
        if found:
            del self.workers[worker.id], self.views[worker.id]
        return found

    def refresh(self, worker: WorkerInfo) -> None:
        """Something may have changed; without effect for a link that has been replaced."""
        if self.workers.get(worker.id) is worker:
            view = worker.view()
            if view != self.views.get(worker.id):
                self.views[worker.id] = view
