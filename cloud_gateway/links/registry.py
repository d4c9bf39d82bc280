"""The state of a linked worker, and the events that links report to the engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from cloud_gateway.core.policies.actions import Points
from cloud_gateway.core.policies.estimators import RttEstimator, StepClock
from edgespec.core.protocol.messages import Decline, Hello, Tree
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
    linked_at: float
    """Seconds of the event loop's clock."""
    rtt: RttEstimator = field(default_factory=RttEstimator)
    step: StepClock = field(default_factory=lambda: StepClock(FIRST_STEP_S))
    draft_points: Points = ()
    """Leaves and seconds of a draft step as the worker reports it; empty until it has."""
    paused_because: str | None = None
    probation: bool = False
    """Whether it gets no requests yet, because its links kept ending (cloud_gateway/core/limits/probation.py)."""
    groups: frozenset[str] = frozenset()
    """Its groups in the operator's list (edgespec/core/pairing/groups.py); without a group it gets no request."""
    trees: int = 0
    nodes: int = 0
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
    def paused(self) -> bool:
        """Whether it gets no requests: it has sent `Pause` and not yet `Resume`, or is on probation."""
        return self.probation or self.paused_because is not None

    def __str__(self) -> str:
        return f"worker {self.name} ({self.id})"


class LinkEvents(Protocol):
    """What the links report to the engine. All methods are called on the event loop and must not block."""

    def on_up(self, worker: WorkerInfo) -> None:
        """A worker is linked; after a reconnect, `on_down` of its former link was called first."""

    def on_down(self, worker: WorkerInfo, why: str) -> None:
        """Its link has ended, for any reason; called once for each `on_up`."""

    def on_tree(self, worker: WorkerInfo, tree: Tree) -> None:
        """New nodes of checked shape; the merge checks depth, ids and prefix."""

    def on_pause(self, worker: WorkerInfo, reason: str) -> None:
        """It has stopped drafting, as when its owner uses the machine: its requests move to other workers."""

    def on_resume(self, worker: WorkerInfo) -> None:
        """It drafts again after a pause."""

    def on_decline(self, worker: WorkerInfo, decline: Decline) -> None:
        """It will not draft for this request."""

    def on_rejected(self, reason: str) -> None:
        """Something was refused; `reason` is a closed label for metrics."""
