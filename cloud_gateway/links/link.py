"""One link of a worker: what its messages change, and the table of all linked workers that the engine reads.

A worker without the target's tokenizer is linked for that alone: it fetches the file once from its beginning to its
end, each key seldom.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

from cloud_gateway.core.policies.estimators import RttEstimator, StepClock
from cloud_gateway.core.policies.policy import Points
from cloud_gateway.core.requests.events import FrameArrived
from cloud_gateway.core.requests.router import LinkedWorker
from cloud_gateway.engine.exchange import Declined, Inbox, WorkerGone, WorkerReady
from edgespec.core.errors import RemoteProtocolError
from edgespec.core.protocol.gateway_session import GatewaySession
from edgespec.core.protocol.handshake import CloseCode
from edgespec.core.protocol.messages import (
    MAX_PIECE_BYTES,
    Bye,
    Decline,
    Fetch,
    Hello,
    Pause,
    Piece,
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
FETCH_S = 120.0
"""For a whole tokenizer: 64 pieces of four megabytes take as many round trips."""
EVERY_S = 10.0
"""Between two beginnings of a key: a worker keeps what it has fetched."""


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


@dataclass(slots=True)
class Offer:
    """The file, and when each paired key last began to fetch it."""

    file: bytes
    digest: bytes = field(init=False)
    _began: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.digest = hashlib.sha256(self.file).digest()

    def begin(self, worker: str, wire: Wire) -> Sending:
        """For this link of a worker, which ends in time. Raises RemoteProtocolError (`busy`) soon after a former."""
        loop = asyncio.get_running_loop()
        if loop.time() - self._began.get(worker, -EVERY_S) < EVERY_S:
            raise RemoteProtocolError("busy", "it has just fetched the tokenizer", close_code=CloseCode.SLOW)
        self._began[worker] = loop.time()
        loop.call_later(FETCH_S, wire.end, RemoteProtocolError("slow", f"no tokenizer in {FETCH_S:g} s"))
        return Sending(self)


@dataclass(slots=True)
class Sending:
    """What one link has fetched."""

    offer: Offer
    sent: int = 0

    def next(self, event: Event) -> Piece:
        """The piece that was asked for. Raises RemoteProtocolError (`unexpected`) for all but a `Fetch` of the next."""
        at = event.at if isinstance(event, Fetch) else -1
        data = self.offer.file[self.sent : self.sent + MAX_PIECE_BYTES]
        if at != self.sent or not data:
            raise RemoteProtocolError("unexpected", f"not the piece of the tokenizer from byte {self.sent}")
        self.sent += len(data)
        return Piece(self.offer.digest, len(self.offer.file), data)


class Link:
    """One connection to the gateway: unproven until the handshake ends, then a worker's."""

    def __init__(
        self, ws: LimitedConnection, session: GatewaySession, registry: Registry, inbox: Inbox, vocab_size: int,
        linked: Callable[[Link], None], recheck: Callable[[WorkerInfo], None],
    ) -> None:  # fmt: skip
        """`linked` is called once the handshake has succeeded, `recheck` of the worker after each round trip."""
        self.wire: Wire
        self.worker: WorkerInfo | None = None
        self.sending: Sending | None = None
        """What it fetches, in place of a worker's link."""
        self.ws, self.session, self.first_rtt_s = ws, session, 0.0
        self._registry, self._inbox, self._vocab_size = registry, inbox, vocab_size
        self._linked, self._recheck = linked, recheck

    @property
    def who(self) -> str:
        """For logs. A name counts only once it is proven."""
        return str(self.worker) if self.worker else self.ws.peer

    def take(self, event: Event) -> None:
        """Handles one event of the session."""
        worker, inbox, refresh = self.worker, self._inbox, self._registry.refresh  # before what is posted
        match event:
            case RttSample(rtt_s):
                self._sample(rtt_s)
            case Linked():
                self._linked(self)
            case Fetch() if self.sending is None:
                raise RemoteProtocolError("unexpected", "a worker with a tokenizer fetches none")
            case _ if self.sending is not None and not isinstance(event, Bye):
                self.wire.send(self.sending.next(event))
            case _ if worker is None:
                assert isinstance(event, Bye), f"{type(event).__name__} before the handshake"
            case Tree():
                self._tree(worker, event)
            case StepTimes():
                worker.draft_points = step_curve(event)
                refresh(worker)
            case Pause():
                worker.paused_because = event.reason
                worker.step.broken()
                refresh(worker)
                inbox.post(WorkerGone(worker.id, event.reason))
            case Resume():
                worker.paused_because = None
                refresh(worker)
                inbox.post(WorkerReady(worker.id))
            case Decline():
                inbox.post(Declined(worker.id, event.request, event.reason))

    def _sample(self, rtt_s: float) -> None:
        if self.worker is None:
            self.first_rtt_s = rtt_s
        else:
            self.worker.rtt.sample(rtt_s)
            self._registry.refresh(self.worker)
            self._recheck(self.worker)

    def _tree(self, worker: WorkerInfo, tree: Tree) -> None:
        try:
            check_tree_shape(tree, self._vocab_size)
        except RemoteProtocolError:
            worker.blamed_for = worker.scopes.get(tree.request, b"")
            raise
        worker.step.frame(self.session.received_at, levels(tree))
        self._registry.refresh(worker)
        self._inbox.post(FrameArrived(worker.id, tree))
