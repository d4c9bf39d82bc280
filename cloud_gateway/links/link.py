"""One link of a worker: what its messages change, and the table of all linked workers that the engine reads.

A worker that has linked only to fetch the target's tokenizer is not in that table, and its messages go to a `Download`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Protocol

from cloud_gateway.core.policies.estimators import RttEstimator, StepClock
from cloud_gateway.core.requests.events import FrameArrived
from cloud_gateway.core.requests.router import LinkedWorker
from cloud_gateway.engine.exchange import Declined, Inbox, WorkerGone, WorkerReady
from edgespec.core.errors import RemoteProtocolError
from edgespec.core.protocol.gateway_session import GatewaySession
from edgespec.core.protocol.messages import (
    Bye,
    Decline,
    Fetch,
    Hello,
    Pause,
    Resume,
    StepTimes,
    Tree,
    check_tree_shape,
    levels,
    step_curve,
)
from edgespec.core.protocol.session import Event, Linked, RttSample
from edgespec.shared.limited_port import LimitedConnection
from edgespec.shared.wire import Wire

FIRST_STEP_S = 0.010
"""Draft step time that is assumed until a worker's frames have been measured."""


@dataclass(slots=True, eq=False)
class WorkerInfo(LinkedWorker):
    """One linked worker with what the link layer keeps of it.

    `id` is its key id: stable over reconnects; `cloud-gateway workers` lists and revokes workers by it. `name` and
    `groups` are those of the operator's list of paired workers; without a group it gets no request.
    """

    rtt_s: float = 0.0
    """Smoothed round trip time; the handshake provides the first sample."""
    rtt_high_s: float = 0.0
    step_s: float = FIRST_STEP_S
    paused: bool = False
    """Whether it gets no requests: it has sent `Pause` and not yet `Resume`, or is on probation."""
    session: bytes = field(kw_only=True)
    address: str = field(kw_only=True)
    hello: Hello = field(kw_only=True)
    wire: Wire = field(repr=False, kw_only=True)
    rtt: RttEstimator = field(default_factory=RttEstimator)
    step: StepClock = field(default_factory=lambda: StepClock(FIRST_STEP_S))
    paused_because: str | None = None
    probation_ends: asyncio.TimerHandle | None = None
    """Until then it gets no requests (cloud_gateway/core/limits/probation.py)."""
    probation_because: str = ""
    scopes: dict[int, bytes] = field(default_factory=dict)
    """The cache scopes of its open requests, which differ between API keys."""
    features: Collection[str] = ()
    """Of its upgrade: messages beyond those that every worker takes, and others that nobody here knows."""
    blamed_for: bytes | None = None
    """The scope of the request whose tree broke the protocol; None for any other fault."""

    @property
    def probation(self) -> bool:
        """Whether it gets no requests yet, for the reason of `probation_because`."""
        return self.probation_ends is not None

    def sampled(self, rtt_s: float) -> None:
        """Takes in one measured round trip."""
        self.rtt.sample(rtt_s)
        self.rtt_s = self.rtt.srtt_s or 0.0
        self.rtt_high_s = self.rtt.high_s

    def pause(self, because: str | None) -> None:
        """It has sent `Pause`, for this reason, or `Resume`, or its probation has begun or ended."""
        self.paused_because = because
        self.paused = self.probation or because is not None

    def __str__(self) -> str:
        return f"worker {self.name} ({self.id})"


class Download(Protocol):
    """Serves one link of a worker that has linked only to fetch the target's tokenizer."""

    def take(self, event: Event) -> None:
        """Called on the event loop with each message but `Bye`. Raises RemoteProtocolError, which ends the link."""


class TokenizerOffer(Protocol):
    """The target's tokenizer, for workers whose draft model has another one. On the event loop; a part brings it."""

    @property
    def sends(self) -> bool:
        """Whether there is something to fetch. The handshake refuses a worker that would fetch nothing."""

    @property
    def advice(self) -> str:
        """The end of the sentence with which the handshake refuses another tokenizer: a remedy for the admin."""

    def begin(self, worker: str, wire: Wire) -> Download:
        """Called once the worker of this key id has proven its key. It may end the link later by `wire`.

        Raises RemoteProtocolError, which ends the link.
        """


class Link:
    """One connection to the gateway: unproven until the handshake ends, then a worker's."""

    def __init__(
        self,
        ws: LimitedConnection,
        session: GatewaySession,
        inbox: Inbox,
        vocab_size: int,
        linked: Callable[[Link], None],
        recheck: Callable[[WorkerInfo], None],
    ) -> None:
        """`linked` is called once the handshake has succeeded, `recheck` of the worker after each round trip."""
        self.wire: Wire
        self.worker: WorkerInfo | None = None
        self.download: Download | None = None
        """Serves it in the place of a worker's link."""
        self.ws = ws
        self.session = session
        self.first_rtt_s = 0.0
        self._inbox = inbox
        self._vocab_size = vocab_size
        self._linked = linked
        self._recheck = recheck

    @property
    def who(self) -> str:
        """For logs. A name counts only once it is proven."""
        if self.worker:
            return str(self.worker)
        return self.ws.peer

    def take(self, event: Event) -> None:
        """Handles one event of the session."""
        worker = self.worker
        inbox = self._inbox
        match event:
            case RttSample(rtt_s):
                self._sample(rtt_s)
            case Linked():
                self._linked(self)
            case Fetch() if self.download is None:
                raise RemoteProtocolError("unexpected", "a worker with a tokenizer fetches none")
            case _ if self.download is not None and not isinstance(event, Bye):
                self.download.take(event)
            case _ if worker is None:
                assert isinstance(event, Bye), f"{type(event).__name__} before the handshake"
            case Tree():
                self._tree(worker, event)
            case StepTimes():
                worker.draft_points = step_curve(event)
            case Pause():
                worker.pause(event.reason)
                worker.step.broken()
                inbox.post(WorkerGone(worker.id, event.reason))
            case Resume():
                worker.pause(None)
                inbox.post(WorkerReady(worker.id))
            case Decline():
                inbox.post(Declined(worker.id, event.request, event.reason))

    def _sample(self, rtt_s: float) -> None:
        if self.worker is None:
            self.first_rtt_s = rtt_s
        else:
            self.worker.sampled(rtt_s)
            self._recheck(self.worker)

    def _tree(self, worker: WorkerInfo, tree: Tree) -> None:
        """Checks a tree's shape, measures the step and posts it to the engine."""
        try:
            check_tree_shape(tree, self._vocab_size)
        except RemoteProtocolError:
            worker.blamed_for = worker.scopes.get(tree.request, b"")
            raise

        worker.step.frame(self.session.received_at, levels(tree))
        worker.step_s = worker.step.step_s
        self._inbox.post(FrameArrived(worker.id, tree))
