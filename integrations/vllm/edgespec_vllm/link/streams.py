"""The requests of engines outside this process, and which worker drafts for which (README.md).

Chains need many tokens ahead of the target, and one worker shares its model among its requests. So each worker serves
few requests well, and the others run without drafts. Everything runs on the event loop.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Protocol

from cloud_gateway.core.requests.assignment import PATIENCE, opening
from cloud_gateway.core.requests.events import FrameArrived
from cloud_gateway.core.requests.router import LinkedWorker, Merit, choose
from cloud_gateway.core.verify.candidates import CandidateTree
from cloud_gateway.engine.exchange import Declined, LinkEvent, WorkerGone
from cloud_gateway.links.server import Links
from edgespec.core.drafting.tree import Node
from edgespec.core.errors import RemoteProtocolError
from edgespec.core.protocol.messages import MAX_COST, MAX_DEPTH, Close, Commit, Sampling, Tree
from edgespec_vllm.messages import Chain, Closed, FromLink, Leave, Opened, Tokens, Want

log = logging.getLogger("edgespec_vllm.link.streams")
AHEAD = 2.0
"""Draft steps of a worker for each of its requests in one pass of the target; with fewer it is always behind."""

WINDOW, WORTH = 64, 1 / 8
"""Of so many candidates verified for a request at least this share must be accepted: with four requests on a CPU a row
that is refused takes 12 to 17 % of a token's time (dev/decisions/130-vllm.md)."""


class Engine(Protocol):
    """The connection of one engine."""

    drafts: int

    def send(self, message: FromLink) -> None:
        """Writes a message, or drops a `Chain` while the engine does not read."""


class Ledger:
    """Is given who drafts for a request, by its tag; here nobody keeps it."""

    def assigned(self, tag: str, worker: str, name: str) -> None:
        """A worker is sent the request."""

    def released(self, tag: str, worker: str, name: str, why: str, frames: int) -> None:
        """Nothing more of it is sent to the worker, which sent so many frames."""

    def frame(self, tag: str, name: str, fresh: int, *, useful: bool) -> None:
        """A frame came, with so many new candidates."""

    def verified(self, tag: str, name: str, drafted: int, accepted: int) -> None:
        """vLLM has verified so many more candidates, and accepted so many of them."""


class Stream:
    """One request of an engine; `id`: on the wire to workers."""

    def __init__(self, id: int, engine: Engine, opened: Opened) -> None:  # noqa: A002
        self.id, self.engine, self.number = id, engine, opened.request
        self.groups, self.scope = frozenset(opened.groups), opened.scope
        self.sampling = Sampling(min(opened.temperature, 2.0), min(opened.top_k, 2**20), opened.top_p)
        self.tree: CandidateTree | None = None
        """None until the first tokens have come."""
        self.have = 0
        self.complete = False
        """`tree` has all that was committed when the engine last sent some."""
        self.worker: str | None = None
        self.name, self.tag, self.frames = "", opened.tag, 0
        """The worker's for people; the request's for the ledger; frames of the worker."""
        self.drafted = self.accepted = self.epoch = 0
        self.judged = 0, 0
        """`drafted` and `accepted` when `refused` last began to count."""
        self.ready = False
        """The worker has been sent the prompt."""
        self.tried: set[str] = set()
        self.idle = 0
        """Passes in a row that chose no candidate."""
        self.sent = 0
        """The last node of the tree that was sent."""
        self.committed_at = 0.0

    def refused(self) -> bool:
        """Whether the latest WINDOW candidates cost more than they saved; then the next ones are counted."""
        drafted, accepted = self.drafted - self.judged[0], self.accepted - self.judged[1]
        if drafted < WINDOW:
            return False
        self.judged = self.drafted, self.accepted
        return accepted < WORTH * drafted

    def chains(self) -> Iterator[Chain]:
        """The paths to the leaves that came since the last call."""
        assert self.tree is not None
        tree, root = self.tree.tree, self.tree.root
        for number in range(self.sent + 1, tree.next_id):
            leaf = tree.nodes.get(number)
            if leaf is None or leaf.children:
                continue
            path: list[Node] = []
            while leaf is not root and leaf is not None:
                path.append(leaf)
                leaf = leaf.parent
            path = path[::-1][:MAX_DEPTH]
            costs = [round(1000 * (node.cost - node.parent.cost)) for node in path if node.parent is not None]
            bounded = [min(max(cost, 0), MAX_COST) for cost in costs]
            yield Chain(self.number, root.position + 1, [node.token for node in path], bounded)
        self.sent = tree.next_id - 1


class Streams:
    """All of them; the inbox of the links."""

    def __init__(self, links: Links, clock: Callable[[], float], ledger: Ledger | None = None) -> None:
        self._links, self._clock, self._ledger = links, clock, ledger or Ledger()
        self._streams: dict[int, Stream] = {}
        self._of: dict[tuple[Engine, int], Stream] = {}
        self._last = 0
        self._period_s = 0.0
        """Smoothed time between two passes of an engine."""
        self.merit = Merit()

    # --- from the engines ------------------------------------------------------------------------------------------

    def opened(self, engine: Engine, message: Opened) -> None:
        """A request that workers of its groups may see."""
        if (engine, message.request) in self._of:
            return
        self._last += 1
        self._streams[self._last] = self._of[engine, message.request] = Stream(self._last, engine, message)
        self._assign()

    def tokens(self, engine: Engine, message: Tokens) -> None:
        """A part of its prompt, or what the target chose."""
        stream = self._of.get((engine, message.request))
        if stream is None or message.start != stream.have:
            return  # sent before the last `Want`
        self._count(stream, message)
        start, stream.have = stream.have, stream.have + len(message.tokens)
        if stream.tree is None:
            stream.tree = CandidateTree(message.tokens)
        else:
            self._commit(stream, start, message.tokens)
        stream.complete = not message.left
        self._open(stream)

    def closed(self, engine: Engine, message: Closed) -> None:
        """A request is over."""
        stream = self._of.pop((engine, message.request), None)
        if stream is not None:
            self._count(stream, message)
            del self._streams[stream.id]
            self._release(stream, "ended")
            self._assign()

    def gone(self, engine: Engine) -> None:
        """An engine's connection ended, and so its requests here."""
        for other, number in [*self._of]:
            if other is engine:
                self.closed(engine, Closed(number))

    # --- from the links --------------------------------------------------------------------------------------------

    def post(self, event: LinkEvent) -> None:
        """Takes in what a link reports."""
        match event:
            case FrameArrived(worker, frame):
                self._frame(worker, frame)
            case WorkerGone(worker):
                for stream in self._streams.values():
                    if stream.worker == worker:
                        self._leave(stream, "worker gone")
            case Declined(worker, request):
                declined = self._streams.get(request)
                if declined is not None and declined.worker == worker:
                    declined.tried.add(worker)
                    self._leave(declined, "declined")
        if not isinstance(event, FrameArrived):
            self._assign()

    # --- inside ----------------------------------------------------------------------------------------------------

    def _count(self, stream: Stream, message: Tokens | Closed) -> None:
        """Books the draft tokens that were verified since the last message to the worker that has the request."""
        drafted, accepted = message.drafted - stream.drafted, message.accepted - stream.accepted
        if drafted > 0:
            stream.drafted, stream.accepted = message.drafted, message.accepted
            self._ledger.verified(stream.tag, stream.name, drafted, max(accepted, 0))

    def _open(self, stream: Stream) -> None:
        """Sends its worker the tokens, once they are complete."""
        if stream.worker is None or stream.tree is None or stream.ready or not stream.complete:
            return
        stream.ready = True
        bodies = opening(stream.id, stream.epoch, stream.tree.prefix, stream.sampling, stream.scope)
        self._links.send(stream.worker, list(bodies))

    def _commit(self, stream: Stream, start: int, tokens: list[int]) -> None:
        assert stream.tree is not None
        now, depth = self._clock(), min(stream.engine.drafts, stream.tree.depth(), MAX_DEPTH)
        matched = stream.tree.advance(tokens)
        if stream.worker is None or not stream.ready:
            return
        period_s, stream.committed_at = now - stream.committed_at if stream.committed_at else 0.0, now
        self._period_s += 0.1 * (period_s - self._period_s) if self._period_s else period_s
        if matched < len(tokens):
            self._links.diverged(stream.worker)
        micros = min(round(period_s * 1e6), 60_000_000)
        digest = stream.tree.prefix.digest
        commit = Commit(stream.id, stream.epoch, start, tokens, digest, micros, micros, depth)
        self._links.send(stream.worker, [commit])
        stream.idle = 0 if matched else stream.idle + 1
        if stream.idle > PATIENCE + start // 16 or stream.refused():
            stream.tried.add(stream.worker)
            self._leave(stream, "useless")
            self._assign()

    def _frame(self, worker: str, frame: Tree) -> None:
        stream = self._streams.get(frame.request)
        if stream is None or stream.tree is None or (stream.worker, stream.epoch) != (worker, frame.epoch):
            return
        try:
            merged = stream.tree.merge((worker, frame.epoch), frame, worker)
        except RemoteProtocolError as error:
            self._links.punish(worker, error, frame.request)
            return
        stream.frames += 1
        self._ledger.frame(stream.tag, stream.name, merged.fresh, useful=merged.useful)
        if merged.fresh:
            for chain in stream.chains():
                stream.engine.send(chain)

    def _assign(self) -> None:
        """Gives workers with room to the requests that have waited longest for one."""
        views = [view for view in self._links.linked().values() if not view.paused]
        load = Counter(stream.worker for stream in self._streams.values() if stream.worker is not None)
        for stream in self._streams.values():
            free = [view for view in views if load[view.id] < self.capacity(view)]
            if not free:
                return
            if stream.worker is None:
                stream.worker = choose(free, load, stream.groups, self.merit, exclude=stream.tried)
                if stream.worker is not None:
                    load[stream.worker] += 1
                    stream.name, stream.frames = self._links.linked()[stream.worker].label, 0
                    self._ledger.assigned(stream.tag, stream.worker, stream.name)
                    stream.epoch, stream.ready, stream.idle, stream.committed_at = stream.epoch + 1, False, 0, 0.0
                    stream.judged = stream.drafted, stream.accepted
                    stream.engine.send(Want(stream.number, stream.have))
                    self._open(stream)

    def capacity(self, worker: LinkedWorker) -> int:
        """Requests that a worker can keep ahead of."""
        return max(1, int(self._period_s / (AHEAD * worker.step_s)))

    def _leave(self, stream: Stream, why: str) -> None:
        stream.engine.send(Leave(stream.number))
        self._release(stream, why)

    def _release(self, stream: Stream, why: str) -> None:
        if stream.worker is not None:
            if stream.tree is not None:
                stream.tree.forget((stream.worker, stream.epoch))
            self._links.send(stream.worker, [Close(stream.id, stream.epoch, why)])
            self._ledger.released(stream.tag, stream.worker, stream.name, why, stream.frames)
            stream.worker = None
