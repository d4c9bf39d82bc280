"""The requests of engines outside this process, and which worker drafts for which (README.md).

Chains need many tokens ahead of the target, and one worker shares its model among its requests. So each worker serves
few requests well, and the others run without drafts. Everything runs on the event loop.

What a worker brought is counted by vLLM, which verifies: a worker cannot state it. The counts rank the workers for the
next requests by the same rules as in the gateway (`cloud_gateway.core.requests.router.Merit`).
"""

from __future__ import annotations

import hmac
import logging
import secrets
from collections.abc import Callable, Sequence, Set
from typing import NamedTuple

from cloud_gateway.core.requests.assignment import PATIENCE, READ, opening
from cloud_gateway.core.requests.events import FrameArrived
from cloud_gateway.core.requests.router import LinkedWorker, Merit, choose
from cloud_gateway.core.verify.candidates import CandidateTree
from cloud_gateway.engine.exchange import Declined, LinkEvent, WorkerGone
from cloud_gateway.links.server import Links
from edgespec.core.errors import RemoteProtocolError
from edgespec.core.protocol.messages import MAX_DEPTH, Close, Commit, Tree
from edgespec.core.protocol.worth import WorkerFigures
from edgespec_vllm.link.stream import Assignment, Engine, Stream
from edgespec_vllm.messages import PASS_NODES, Closed, Leave, Opened, Tokens, Want

log = logging.getLogger("edgespec_vllm.link.streams")
AHEAD = 2.0
"""Draft steps of a worker for each of its requests in one pass of the target; with fewer it is always behind."""

SMOOTHING = 0.1
"""Weight of a new sample in the mean time between two passes of an engine."""


class Ledger:
    """Is given who drafts for a request, by its tag; here nobody keeps it."""

    def key(self, tag: str) -> str:
        """The API key of the request, for the mean over keys of a worker's worth; vLLM alone knows no keys."""
        return ""

    def assigned(self, tag: str, worker: str, name: str) -> None:
        """A worker is sent the request."""

    def released(self, tag: str, worker: str, name: str, why: str, frames: int) -> None:
        """Nothing more of it is sent to the worker, which sent so many frames."""

    def frame(self, tag: str, name: str, fresh: int, *, useful: bool) -> None:
        """A frame came, with so many new candidates."""

    def verified(self, tag: str, name: str, drafted: int, accepted: int) -> None:
        """vLLM has verified so many more candidates, and accepted so many of them."""


class Loaded(NamedTuple):
    """A linked worker and the engines of the requests that it has, one for each request."""

    view: LinkedWorker
    engines: Sequence[Engine]


class Streams:
    """All of them; the inbox of the links."""

    def __init__(self, links: Links, clock: Callable[[], float], ledger: Ledger | None = None) -> None:
        self._links = links
        self._clock = clock
        self._ledger = ledger or Ledger()
        self._streams: dict[int, Stream] = {}
        self._of: dict[tuple[Engine, int], Stream] = {}
        self._last = 0
        self._periods_s: dict[Engine, float] = {}
        """Smoothed time between two passes, by engine: those of several ranks or models differ."""
        self._scope_secret = secrets.token_bytes(32)
        """Never stored, as the gateway's own (`cloud_gateway.auth.CacheScopes`): prefixes that workers still hold are
        not reused after a restart, and no worker can link a client's requests over restarts."""
        self.merit = Merit()
        self.drafted = 0
        self.accepted = 0
        """Candidates that vLLM has verified and accepted since the start."""

    @property
    def open(self) -> int:
        """Requests that workers may see."""
        return len(self._streams)

    @property
    def helped(self) -> int:
        """Requests that a worker drafts for."""
        return sum(stream.assignment is not None for stream in self._streams.values())

    def tree(self, engine: Engine, request: int) -> CandidateTree | None:
        """The candidates for a request of this engine; None before its tokens have come."""
        stream = self._of.get((engine, request))
        if stream is None:
            return None
        return stream.tree

    # --- from the engines ------------------------------------------------------------------------------------------

    def opened(self, engine: Engine, message: Opened) -> None:
        """A request that workers of its groups may see."""
        if (engine, message.request) in self._of:
            return

        self._last += 1
        stream = Stream(self._last, engine, message, self._ledger.key(message.tag))
        self._streams[self._last] = stream
        self._of[engine, message.request] = stream
        self._assign()

    def tokens(self, engine: Engine, message: Tokens) -> None:
        """A part of its prompt, or what the target chose."""
        stream = self._of.get((engine, message.request))
        if stream is None or message.start != stream.have:
            return  # sent before the last `Want`

        accepted = self._count(stream, message)
        stream.have += len(message.tokens)
        stream.complete = not message.left
        if stream.tree is None:
            stream.tree = CandidateTree(message.tokens)
        else:
            self._commit(stream, message, accepted)
        self._open(stream)
        if stream.assignment is not None and stream.assignment.opened:
            stream.credited = stream.assignment.name

    def closed(self, engine: Engine, message: Closed) -> None:
        """A request is over."""
        stream = self._of.pop((engine, message.request), None)
        if stream is not None:
            self._end(stream, message)
            self._assign()

    def gone(self, engine: Engine) -> None:
        """An engine's connection ended, and so its requests here."""
        ended = [number for other, number in self._of if other is engine]
        for number in ended:
            self._end(self._of.pop((engine, number)), Closed(number))
        self._periods_s.pop(engine, None)
        self._assign()

    # --- from the links --------------------------------------------------------------------------------------------

    def post(self, event: LinkEvent) -> None:
        """Takes in what a link reports."""
        match event:
            case FrameArrived(worker, frame):
                self._frame(worker, frame)
            case WorkerGone(worker):
                for stream in self._streams.values():
                    if stream.assignment is not None and stream.assignment.worker == worker:
                        self._leave(stream, "worker gone")
            case Declined(worker, request):
                declined = self._streams.get(request)
                given = declined.assignment if declined is not None else None
                if declined is not None and given is not None and given.worker == worker:
                    declined.tried.add(worker)
                    self._leave(declined, "declined")
        if not isinstance(event, FrameArrived):
            self._assign()

    # --- inside ----------------------------------------------------------------------------------------------------

    def _end(self, stream: Stream, message: Closed) -> None:
        verified = message.drafted > stream.drafted
        accepted = self._count(stream, message)
        if verified and stream.assignment is not None:
            stream.assignment.passed(accepted)
        del self._streams[stream.id]
        self._release(stream, "ended")

    def _count(self, stream: Stream, message: Tokens | Closed) -> int:
        """Books the draft tokens that were verified since the last message to the worker whose candidates they were.

        Returns how many were accepted of the worker that drafts now.
        """
        drafted = message.drafted - stream.drafted
        if drafted <= 0:
            return 0

        accepted = max(message.accepted - stream.accepted, 0)
        stream.drafted = message.drafted
        stream.accepted = message.accepted

        self.drafted += drafted
        self.accepted += accepted
        self._ledger.verified(stream.tag, stream.credited, drafted, accepted)
        if stream.assignment is None or stream.assignment.name != stream.credited:
            return 0

        stream.assignment.verified(drafted, accepted)
        return accepted

    def _open(self, stream: Stream) -> None:
        """Sends its worker the tokens, once they are complete."""
        given = stream.assignment
        if given is None or given.opened or stream.tree is None or not stream.complete:
            return

        given.opened = True
        given.prompt_len = len(stream.tree.prefix)
        scope = self._scope_of(given.worker, stream.scope)
        bodies = opening(stream.id, given.epoch, stream.tree.prefix, stream.sampling, scope)
        self._links.send(given.worker, list(bodies))

    def _scope_of(self, worker: str, scope: bytes) -> bytes:
        """The cache scope as it is sent to one worker: it can neither try salts nor compare scopes with another one."""
        if not scope:
            return b""
        return hmac.digest(self._scope_secret, scope + worker.encode(), "sha256")

    def _commit(self, stream: Stream, message: Tokens, accepted: int) -> None:
        assert stream.tree is not None
        depth = min(stream.engine.drafts, stream.tree.depth(), MAX_DEPTH)
        matched = stream.tree.advance(message.tokens)
        stream.room = PASS_NODES
        given = stream.assignment
        if given is None or not given.opened:
            return

        given.tokens += len(message.tokens)
        period_s = self._passed(stream.engine, given)
        if matched < len(message.tokens):
            self._links.diverged(given.worker)
        micros = min(round(period_s * 1e6), 60_000_000)
        digest = stream.tree.prefix.digest
        commit = Commit(stream.id, given.epoch, message.start, message.tokens, digest, micros, micros, depth)
        self._links.send(given.worker, [commit])

        # What there was no room for in the last pass.
        self._send_chains(stream)

        given.passed(accepted)
        if given.refused() or given.idle >= self._patience(stream, given):
            stream.tried.add(given.worker)
            self._leave(stream, "useless")
            self._assign()

    def _passed(self, engine: Engine, given: Assignment) -> float:
        """Seconds since the request's last commit, a sample of the engine's period; 0 at the first one."""
        now = self._clock()
        before = given.committed_at
        given.committed_at = now
        if before is None:
            return 0.0

        period_s = now - before
        mean_s = self._periods_s.get(engine, period_s)
        self._periods_s[engine] = mean_s + SMOOTHING * (period_s - mean_s)
        return period_s

    def _patience(self, stream: Stream, given: Assignment) -> int:
        """Passes in a row without an accepted candidate after which a worker leaves the request.

        A worker that may still be reading the prompt has a pass more for each READ tokens. One whose last request
        brought nothing has them only if no other worker is free, so that a silent one cannot take them again and again.
        """
        if given.has_read:
            return PATIENCE

        if given.idle >= PATIENCE and self.merit.of(given.name).useless:
            excluded = stream.tried | {given.worker}
            if self._choose(stream, self._with_room(), excluded) is not None:
                return PATIENCE
        return PATIENCE + given.prompt_len // READ

    def _frame(self, worker: str, frame: Tree) -> None:
        stream = self._streams.get(frame.request)
        given = stream.assignment if stream is not None else None
        if stream is None or stream.tree is None or given is None:
            return
        if given.worker != worker or given.epoch != frame.epoch:
            return

        try:
            merged = stream.tree.merge((worker, frame.epoch), frame, worker)
        except RemoteProtocolError as error:
            self._links.punish(worker, error, frame.request)
            return
        given.received(useful=merged.useful)
        self._ledger.frame(stream.tag, given.name, merged.fresh, useful=merged.useful)
        if merged.fresh:
            self._send_chains(stream)

    def _send_chains(self, stream: Stream) -> None:
        for chain in stream.chains():
            stream.engine.send(chain)

    # --- which worker has which request ----------------------------------------------------------------------------

    def _assign(self) -> None:
        """Gives workers with room to the requests that have waited longest for one."""
        workers = self._with_room()
        for stream in self._streams.values():
            if not workers:
                return
            if stream.assignment is not None:
                continue
            worker = self._choose(stream, workers, stream.tried)
            if worker is None:
                continue

            # Of ten requests one goes to a worker that was passed over, so that one that recovered is found again.
            if not stream.tried and self.merit.explores():
                worker = self._choose(stream, workers, stream.tried, explore=True) or worker
            self._give(stream, worker)
            workers = self._with_room()

    def _with_room(self) -> Sequence[Loaded]:
        """Linked workers that take another request."""
        engines: dict[str, list[Engine]] = {}
        for stream in self._streams.values():
            if stream.assignment is not None:
                engines.setdefault(stream.assignment.worker, []).append(stream.engine)
        views = [view for view in self._links.linked().values() if not view.paused]
        loaded = [Loaded(view, engines.get(view.id, [])) for view in views]
        return [worker for worker in loaded if len(worker.engines) < self.capacity(worker.view, worker.engines)]

    def _choose(
        self, stream: Stream, workers: Sequence[Loaded], exclude: Set[str], *, explore: bool = False
    ) -> LinkedWorker | None:
        """The best of `workers` for a request, by the router's rules; None if none suits."""
        suited = {
            worker.view.id: worker for worker in workers
            if len(worker.engines) < self.capacity(worker.view, [*worker.engines, stream.engine])
        }  # fmt: skip
        views = [worker.view for worker in suited.values()]
        load = {name: len(worker.engines) for name, worker in suited.items()}
        chosen = choose(views, load, stream.groups, self.merit, exclude=exclude, explore=explore)
        if chosen is not None:
            return suited[chosen].view

        return None

    def _give(self, stream: Stream, worker: LinkedWorker) -> None:
        self.merit.given(worker.label)
        stream.epoch += 1
        stream.assignment = Assignment(worker.id, worker.label, stream.epoch)
        self._ledger.assigned(stream.tag, worker.id, worker.label)
        stream.engine.send(Want(stream.number, stream.have))
        self._open(stream)

    def capacity(self, worker: LinkedWorker, engines: Sequence[Engine]) -> int:
        """Requests of these engines that a worker can keep ahead of; the engine with the shortest period decides."""
        period_s = min((self._periods_s.get(engine, 0.0) for engine in engines), default=0.0)
        return max(1, int(period_s / (AHEAD * worker.step_s)))

    def _leave(self, stream: Stream, why: str) -> None:
        stream.engine.send(Leave(stream.number))
        self._release(stream, why)

    def _release(self, stream: Stream, why: str) -> None:
        given = stream.assignment
        if given is None:
            return

        stream.assignment = None
        if stream.tree is not None:
            stream.tree.forget((given.worker, given.epoch))
        figures = WorkerFigures(given.tokens, given.accepted, given.verified_tokens, given.frames, given.late)
        self.merit.ended(given.name, stream.key, given.rounds, given.frames, given.accepted, figures)
        self._links.account(given.worker, self.merit.of(given.name).figures)
        self._links.send(given.worker, [Close(stream.id, given.epoch, why)])
        self._ledger.released(stream.tag, given.worker, given.name, why, given.frames)
