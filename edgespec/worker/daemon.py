"""The worker's loop: apply commits, draft one step, send new nodes. One thread owns the model.

A step evaluates leaves of all requests in one pass of the model (edgespec/core/drafting/together.py).
A failure while serving one request ends only that request: it is declined, and the others continue. The loop itself
ends when the model fails, which is checked with a request of the worker's own.

The event loop passes messages in through `_inbox`; deltas leave through `outlet`, those of all requests in one frame.
While the link is busy, unsent nodes stay in their tree, where a commit still prunes them (back-pressure).
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeVar

from edgespec.core.drafting.algorithm2 import Drafting, Proposal
from edgespec.core.drafting.best_first import BestFirstRule, Starts
from edgespec.core.drafting.ranking import Asked, Ranker
from edgespec.core.drafting.settings import DEFAULTS
from edgespec.core.drafting.together import MAX_BATCH_S, DraftCurve, Reading, shared
from edgespec.core.drafting.tree import BranchShare, Node
from edgespec.core.errors import ModelError, RemoteProtocolError
from edgespec.core.protocol.inflow import TREES_BURST, TREES_PER_S, Bucket
from edgespec.core.protocol.messages import (
    FRAME_NODES,
    Close,
    Commit,
    Decline,
    Open,
    Share,
    StepTimes,
    ToWorker,
    Tree,
)
from edgespec.llamacpp.drafter import Drafter, DraftMemoryError, DraftTokenError
from edgespec.shared.log_text import LimitedLog, origin, places
from edgespec.worker.step_timer import StepTimer

log = logging.getLogger("edgespec.worker.daemon")

Result = TypeVar("Result")

FREED = "the draft model is not loaded"
FAILED = "drafting for it failed at this worker"
"""The reason sent to the gateway for any unexpected failure."""
MAX_MODEL_FAILURES = 3
"""Consecutive failed checks of the model, without a successful step between them, after which the loop ends."""
Work = Sequence[tuple[Drafting, Sequence[Node]]]
"""Requests and their leaves for one pass; one without leaves: a batch of its prompt."""
_CHECK = "check of the model"
_CHECK_TOKENS = (0,)


class Evaluated(NamedTuple):
    """A request's part of a step, with a proposal for each leaf."""

    drafting: Drafting
    leaves: Sequence[Node]
    proposals: Sequence[Proposal]


@dataclass(slots=True)
class WorkerStats:
    """Since the worker started, for `edgespec status`."""

    requests: int = 0
    steps: int = 0
    nodes: int = 0
    frames: int = 0
    committed: int = 0
    """Tokens committed by the gateway."""
    matched: int = 0
    """Committed tokens that were in the tree."""
    drafting_s: float = 0.0
    host_s: float = 0.0
    """Time of busy iterations outside the model."""


@dataclass(slots=True)
class Outlet:
    """The link as the drafting thread sees it: callbacks, supplied by the service, and what may be sent when."""

    send: Callable[[Sequence[Tree | StepTimes | Decline]], None]
    """Passes messages of one frame to the event loop. After a `Tree` no more are sent until `Daemon.writable()`."""
    broken: Callable[[RemoteProtocolError], None]
    """Ends the link because the gateway violated the protocol."""
    loaded: Callable[[], None] = lambda: None
    """The model was loaded after it had been freed."""
    rtt_s: float = 0.0
    """Round trip time of the link."""
    writable: bool = True
    rate: Bucket = field(default_factory=lambda: Bucket(TREES_PER_S, TREES_BURST))

    def wait_s(self, now: float) -> float:
        """Seconds until the rate limit admits the next trees."""
        return max(self.rate.free_at - now, 0.0)


@dataclass(slots=True)
class Daemon:
    """Drafts for all open requests."""

    drafter: Drafter
    starts: Starts
    outlet: Outlet
    max_requests: int = DEFAULTS.requests
    reading: Reading = field(default_factory=Reading)
    """Of prompts, in batches; other requests and commits are served between them."""
    curve: DraftCurve | None = None
    """Times of a step, from which the best-first rule chooses its leaves; None: always the maximum, and no reports."""
    timer: StepTimer = field(default_factory=StepTimer)
    """Measures the curve while no request is open."""
    load: Callable[[], Drafter] | None = None
    """Loads the model after it was freed; None: it is never freed."""
    clock: Callable[[], float] = time.perf_counter
    stats: WorkerStats = field(default_factory=WorkerStats)
    paused: bool = False
    loaded: bool = True
    """Whether the model is in memory."""
    _keep: bool = True
    _requests: dict[int, Drafting] = field(default_factory=dict)
    _rankers: dict[int, Ranker] = field(default_factory=dict)
    _inbox: deque[ToWorker | None] = field(default_factory=deque)
    _wake: threading.Event = field(default_factory=threading.Event)
    _stopping: bool = False
    _model_failures: int = 0
    _lines: LimitedLog = field(default_factory=lambda: LimitedLog(log))
    """Clients can make requests fail one after the other."""

    # --- called on the event loop --------------------------------------------------------------------------------

    def take(self, message: ToWorker) -> None:
        """Queues a message of the gateway."""
        self._inbox.append(message)
        self._wake.set()

    def forget_all(self) -> None:
        """Drops all requests, since the link ended."""
        self._inbox.append(None)
        self.writable()

    def round_trip(self, rtt_s: float) -> None:
        """One measured round trip; smoothed as in RFC 6298."""
        if self.outlet.rtt_s:
            self.outlet.rtt_s += (rtt_s - self.outlet.rtt_s) / 8
        else:
            self.outlet.rtt_s = rtt_s

    def writable(self) -> None:
        """The link can take another delta."""
        self.outlet.writable = True
        self._wake.set()

    def pause(self, paused: bool) -> None:
        """Stops drafting after the current step, or resumes."""
        self.paused = paused
        self._wake.set()

    def keep_model(self, keep: bool) -> None:
        """Frees the model and all requests after the current step, or loads it and calls `outlet.loaded`."""
        self._keep = keep or self.load is None
        self._wake.set()

    def stop(self) -> None:
        """Ends `run` after the current step."""
        self._stopping = True
        self._wake.set()

    @property
    def open_requests(self) -> int:
        """Number of open requests."""
        return len(self._requests)

    # --- the drafting thread -------------------------------------------------------------------------------------

    def run(self) -> None:  # main loop
        """Drafts until `stop`. Raises the model's error after MAX_MODEL_FAILURES consecutive failed checks."""
        while not self._stopping:
            began = self.clock()
            modelled = self.stats.drafting_s
            self._take_in()
            self._free_or_load()
            work = self._next()
            if not work:
                self._send_due(math.inf)
                self._wake.wait(self._idle())
                self._wake.clear()
                continue

            self._send_due(began + self._expected_s(work))
            self._draft(work)
            self.stats.host_s += self.clock() - began - (self.stats.drafting_s - modelled)

    def _idle(self) -> float | None:
        """Uses time without work for the model; returns seconds until there may be more to do. None: only a message
        brings work."""
        if self._requests:
            return self.outlet.wait_s(self.clock()) or None
        if self.paused or not self.loaded:
            return None

        self.drafter.idle()
        points = self.timer.measure(self.drafter, self.clock(), self._interrupted)
        if points is not None:
            self.curve = DraftCurve(points)
            self.outlet.send([self.curve.report()])
        return self.timer.wait_s(self.clock())

    def _interrupted(self) -> bool:
        """Whether the thread has to do something else than to use idle time."""
        return bool(self._inbox) or self.paused or not self._keep or self._stopping

    def _free_or_load(self) -> None:
        """Does what `keep_model` asked for last."""
        if self._keep == self.loaded:
            return

        if self.loaded:
            self._forget_all()
            self.drafter.shutdown()
            self.loaded = False
        elif self.load is not None:
            before = self.drafter
            self.drafter = self.load()
            self.drafter.passes = before.passes
            self.drafter.rows = before.rows
            self.loaded = True
            self.outlet.loaded()

    def _next(self) -> Work:
        """What the model does next: a batch of a prompt, or the best leaves of the requests that can draft."""
        if self.paused:
            return ()

        batch = self.reading.batch
        room = batch
        parts: list[tuple[Drafting, Sequence[Node]]] = []
        behind: list[Drafting] = []
        for number, drafting in list(self._requests.items()):
            if not drafting.ready:
                continue

            pending = self.drafter.backlog(number)
            if pending > batch:
                behind.append(drafting)
            elif pending <= room:
                leaves = self._isolated(drafting, drafting.candidates)
                if leaves:
                    room -= pending
                    parts.append((drafting, leaves))

        if behind and (self.reading.due or not parts):
            first = behind[0]
            self._requests[first.request] = self._requests.pop(first.request)  # the next batch is another's
            return [(first, ())]

        rule = self.starts.rule
        if isinstance(rule, BestFirstRule):
            return shared(parts, self.drafter.together, self.curve, self.clock(), self.outlet.rtt_s)
        return shared(parts, rule.sequences, None, self.clock(), self.outlet.rtt_s)

    def _expected_s(self, work: Work) -> float:
        """Seconds until the next chance to send."""
        count = sum(len(leaves) for _, leaves in work)
        if not count:
            return MAX_BATCH_S
        if self.curve is None:
            return 0.0
        return self.curve(count)

    def _draft(self, work: Work) -> None:
        """One batch of a prompt, or one step over the most probable leaves (Algorithm 2)."""
        began = self.clock()
        before = self.drafter.rows
        first, leaves = work[0]
        if not leaves:
            self._isolated(first, partial(self._read, first))
            self.stats.drafting_s += self.clock() - began
            return

        evaluated = self._evaluate(work)
        took = self.clock() - began
        self.stats.drafting_s += took
        self.reading.drafted(took)
        if not evaluated:
            return

        self.stats.steps += 1
        count = sum(len(part.leaves) for part in evaluated)
        if self.curve is not None and self.drafter.rows - before == count:  # nothing but leaves was evaluated
            self.curve.sample(count, took)
            report = self.curve.changed(self.clock())
            if report is not None:
                self.outlet.send([report])

        self._take_in()
        for part in evaluated:
            record = partial(part.drafting.record, part.leaves, part.proposals)
            self._isolated(part.drafting, record)

    def _read(self, drafting: Drafting) -> None:
        """Reads one batch of a prompt."""
        began = self.clock()
        before = self.drafter.rows
        self.drafter.catch_up(drafting.request, self.reading.batch)
        self.reading.read(self.drafter.rows - before, self.clock() - began)
        self._model_failures = 0

    def _evaluate(self, work: Work) -> list[Evaluated]:
        """The model's part of a step. If a pass for several fails, each has one of its own, so that only those are
        declined that fail alone."""
        if len(work) > 1:
            with contextlib.suppress(Exception):
                return self._step(work)

        evaluated: list[Evaluated] = []
        for part in work:
            evaluated += self._isolated(part[0], partial(self._step, [part])) or ()

        return evaluated

    def _step(self, work: Work) -> list[Evaluated]:
        """One step over these leaves, in one pass."""
        asked: list[Asked] = []
        for drafting, leaves in work:
            ranker = self._rankers[drafting.request]
            paths = drafting.paths(leaves)
            asked.append(Asked(drafting.request, paths, drafting.rule.branching, ranker))

        results = self.drafter.step_together(asked)
        self._model_failures = 0
        return [Evaluated(*part, proposals) for part, proposals in zip(work, results)]

    def _send_due(self, end: float) -> None:
        """Sends the deltas that should not wait until `end`, in one frame, those that waited longest first."""
        now = self.clock()
        if not self.outlet.writable or self.outlet.wait_s(now):
            return

        due = [drafting for drafting in self._requests.values() if drafting.due(now, end, self.outlet.rtt_s)]
        nodes = 0
        trees: list[Tree] = []
        for drafting in due:
            if nodes >= FRAME_NODES:
                break

            tree = self._isolated(drafting, drafting.delta)
            if tree is not None:
                self._requests[drafting.request] = self._requests.pop(drafting.request)  # to the end of the queue
                trees.append(tree)
                nodes += len(tree.tokens)

        if trees:
            self.outlet.writable = False
            self.stats.frames += 1
            self.stats.nodes += nodes
            self.outlet.rate.take(1, self.clock())
            self.outlet.send(trees)

    def _take_in(self) -> None:
        """Applies the messages that have come."""
        while self._inbox:
            message = self._inbox.popleft()
            try:
                if message is None:
                    self._forget_all()
                else:
                    self._isolated(message, partial(self._apply, message))
            except RemoteProtocolError as error:
                self.outlet.broken(error)

    def _isolated(self, about: Drafting | ToWorker, work: Callable[[], Result]) -> Result | None:
        """Runs `work`; if that fails, declines the request that it is about and returns None.

        Raises RemoteProtocolError if the gateway violated the protocol, and ModelError when the model fails.
        """
        try:
            return work()
        except RemoteProtocolError:
            raise
        except Exception as error:  # noqa: BLE001  no failure of one request may end the others
            expected = isinstance(error, DraftMemoryError | DraftTokenError)
            reason = str(error)
            if not expected:
                # The type and the place only: the text of a foreign exception may quote the prompt.
                text = f"request {about.request} is declined, drafting for it failed: {places(error)}"
                self._lines.warning(origin(error), text)
                reason = FAILED

            if not isinstance(about, Drafting) or self._requests.get(about.request) is about:
                self._decline(about.request, about.epoch, reason, keep=expected)
            if isinstance(error, ModelError):
                self._check_model()

        return None

    def _check_model(self) -> None:
        """Evaluates one token, so that the failure of one request alone does not end the loop."""
        try:
            self.drafter.open(_CHECK, _CHECK_TOKENS)
            try:
                self.drafter.step(_CHECK, [()], 1)
            finally:
                self.drafter.close(_CHECK, keep=False)
            self._model_failures = 0
        except DraftMemoryError:  # other requests use all of it, so the model works
            return
        except Exception:  # any failure to evaluate one token counts
            self._model_failures += 1
            if self._model_failures >= MAX_MODEL_FAILURES:
                raise

    def _forget_all(self) -> None:
        for number in list(self._requests):
            self._close(number)

    def _apply(self, message: ToWorker) -> None:
        match message:
            case Open():
                self._open(message)
            case Commit():
                self._commit(message)
            case Share() | Close():
                drafting = self._requests.get(message.request)
                if drafting is None or drafting.epoch != message.epoch:
                    return
                if isinstance(message, Close):
                    self._close(message.request)
                elif message.index < message.count:
                    drafting.part = BranchShare(message.index, message.count)

    def _open(self, message: Open) -> None:
        if message.request in self._requests:
            self._close(message.request)

        reason = self._refusal(message)
        if reason is not None:
            self._decline(message.request, message.epoch, reason)
            return

        drafting = self.starts.drafting(message)
        self.drafter.open(message.request, drafting.to_read, message.cache_scope)
        self._requests[message.request] = drafting
        self._rankers[message.request] = self.starts.ranker(message, drafting)
        self.stats.requests += 1

    def _refusal(self, message: Open) -> str | None:
        """Why a request cannot be opened; None if it can."""
        if not self.loaded:
            return FREED
        if len(self._requests) >= self.max_requests:
            return f"{self.max_requests} requests are open already"
        if message.prompt_len + self.starts.rule.max_depth >= self.drafter.context:
            return f"the draft model's context is {self.drafter.context} tokens"
        return None

    def _commit(self, message: Commit) -> None:
        drafting = self._requests.get(message.request)
        if drafting is None or drafting.epoch != message.epoch:
            return

        chosen = message.pass_us > 0  # by a pass: neither the rest of a prompt nor a piece of an answer for the queue
        matched = drafting.commit(message.prefix_len, message.tokens, message.prefix_hash, chosen=chosen)
        drafting.rhythm.committed(message.pass_us / 1e6, self.clock())
        self.drafter.commit(message.request, drafting.to_read)
        in_answer = message.prefix_len >= drafting.prompt_len
        self._rankers[message.request].committed(drafting.to_read, answer=in_answer, chosen=chosen)
        if chosen:
            self.stats.committed += len(message.tokens)
            self.stats.matched += matched

    def _decline(self, request: int, epoch: int, reason: str, *, keep: bool = True) -> None:
        self._close(request, keep=keep)
        self.outlet.send([Decline(request, epoch, reason[:200])])

    def _close(self, number: int, *, keep: bool = True) -> None:
        """`keep` is False after a failure that may have left the model's memory in an unknown state."""
        if self._requests.pop(number, None) is not None:
            self._rankers.pop(number, None)
            self.drafter.close(number, keep=keep)
