"""The worker's loop: apply commits, draft one step, send new nodes. One thread owns the model.

A failure while serving one request ends only that request: it is declined, and the others continue. The loop itself
ends when the model fails, which is checked with a request of the worker's own.

The event loop passes messages in through `_inbox`; deltas leave through `outlet`, those of all requests in one frame.
While the link is busy, unsent nodes stay in their tree, where a commit still prunes them (back-pressure).
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from edgespec.core.drafting.algorithm2 import Drafting, DraftRule, Proposal
from edgespec.core.drafting.best_first import BestFirst, BestFirstRule
from edgespec.core.drafting.calibration import Calibrator
from edgespec.core.drafting.draft_curve import DraftCurve
from edgespec.core.drafting.ranking import Ranker, Spread
from edgespec.core.drafting.settings import DEFAULTS, PREFILL_BATCH
from edgespec.core.drafting.shares import Part
from edgespec.core.drafting.tree import Node
from edgespec.core.drafting.turns import Turns
from edgespec.core.errors import ModelError, RemoteProtocolError
from edgespec.core.protocol.inflow import TREES_BURST, TREES_PER_S, Bucket
from edgespec.core.protocol.messages import FRAME_NODES, Close, Commit, Decline, Open, Share, StepTimes, ToWorker, Tree
from edgespec.llamacpp.drafter import Drafter, DraftMemoryError, DraftTokenError
from edgespec.shared.log_text import LimitedLog, origin, places

log = logging.getLogger("edgespec.worker.daemon")

About = TypeVar("About", bound=Drafting | ToWorker)
Result = TypeVar("Result")

FREED = "the draft model is not loaded"
FAILED = "drafting for it failed at this worker"
"""The reason sent to the gateway for any unexpected failure."""
MAX_MODEL_FAILURES = 3
"""Consecutive failed checks of the model, without a successful step between them, after which the loop ends."""
MAX_BATCH_S = 0.1
"""Of one batch of catch-up, as the latest was measured: for so long other requests and commits wait."""
FIRST_BATCH = 16
"""Tokens of the first batch, which measures; 75 ms with the slowest format of the demo's draft."""
_CHECK = "check of the model"
_CHECK_TOKENS = (0,)


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
    """Callbacks to the link, supplied by the service and called on the drafting thread."""

    send: Callable[[Sequence[Tree | StepTimes | Decline]], None]
    """Passes messages of one frame to the event loop. After a `Tree` no more are sent until `Daemon.writable()`."""
    broken: Callable[[RemoteProtocolError], None]
    """Ends the link because the gateway violated the protocol."""
    loaded: Callable[[], None] = lambda: None
    """The model was loaded after it had been freed."""


@dataclass(slots=True)
class Daemon:
    """Drafts for every open request in turn."""

    drafter: Drafter
    rule: DraftRule
    outlet: Outlet
    max_requests: int = DEFAULTS.requests
    prefill_batch: int = PREFILL_BATCH
    """Most committed tokens evaluated in one batch; other requests and commits are served between batches."""
    curve: DraftCurve | None = None
    """Times of a step, from which the best-first rule chooses its leaves; None: always the maximum, and no reports."""
    translated: Callable[..., Drafting] | None = None
    """Makes a request's state if the draft model has other tokens (`Translator.drafting`); None: they are the same."""
    load: Callable[[], Drafter] | None = None
    """Loads the model after it was freed; None: it is never freed."""
    rtt_s: float = 0.0
    """Round trip time of the link."""
    clock: Callable[[], float] = time.perf_counter
    stats: WorkerStats = field(default_factory=WorkerStats)
    paused: bool = False
    loaded: bool = True
    """Whether the model is in memory."""
    _keep: bool = True
    _requests: dict[int, Drafting] = field(default_factory=dict)
    _rankers: dict[int, Ranker] = field(default_factory=dict)
    """Order draft tokens by the probability that the target takes them, not by the draft's own (ranking.py)."""
    _spread: Spread = field(default_factory=Spread)
    _calibrator: Calibrator = field(default_factory=Calibrator)
    _turns: Turns = field(default_factory=Turns)
    _token_s: float = 0.0
    """Seconds to read a token in the latest batch of catch-up; 0 before the first."""
    _inbox: deque[ToWorker | None] = field(default_factory=deque)
    _wake: threading.Event = field(default_factory=threading.Event)
    _sendable: bool = True
    _tree_rate: Bucket = field(default_factory=lambda: Bucket(TREES_PER_S, TREES_BURST))
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
        self.rtt_s += (rtt_s - self.rtt_s) / (8 if self.rtt_s else 1)

    def writable(self) -> None:
        """The link can take another delta."""
        self._sendable = True
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
            began, modelled = self.clock(), self.stats.drafting_s
            self._take_in()
            self._free_or_load()
            work = None if self.paused else self._next()
            self._send_due(math.inf if work is None else began + self._expected_s(*work))
            if work is None:
                if self.loaded and not self.paused and not self._requests:
                    self.drafter.idle()
                self._wake.wait(self._rate_wait_s())
                self._wake.clear()
                continue
            self._draft(*work)
            self.stats.host_s += self.clock() - began - (self.stats.drafting_s - modelled)

    def _free_or_load(self) -> None:
        """Does what `keep_model` asked for last."""
        if self._keep == self.loaded:
            return
        if self.loaded:
            self._forget_all()
            self.drafter.shutdown()
            self.loaded = False
        elif self.load is not None:
            before, self.drafter = self.drafter, self.load()
            self.drafter.passes, self.drafter.rows = before.passes, before.rows
            self.loaded = True
            self.outlet.loaded()

    def _rate_wait_s(self) -> float | None:
        """Seconds until the next tree may be sent, where the rate limit holds one back; None: no time limit."""
        wait_s = self._tree_rate.free_at - self.clock()
        return wait_s if wait_s > 0 and self._requests else None

    def _next(self) -> tuple[Drafting, list[Node]] | None:
        """The next request that can draft, and its leaves; without leaves it has to catch up first."""
        for number in self._turns.order(self._requests):
            drafting = self._requests[number]
            leaves = self._isolated(drafting, self._leaves)
            if leaves is not None:
                return drafting, leaves
        return None

    @property
    def _batch(self) -> int:
        """Tokens of a batch of catch-up."""
        return max(min(int(MAX_BATCH_S / self._token_s), self.prefill_batch), 1) if self._token_s else FIRST_BATCH

    def _expected_s(self, drafting: Drafting, leaves: Sequence[Node]) -> float:
        """Seconds until the next chance to send."""
        return MAX_BATCH_S if not leaves else self.curve(len(leaves)) if self.curve else 0.0

    def _leaves(self, drafting: Drafting) -> list[Node] | None:
        """The leaves to evaluate next; empty where it has to catch up first, None where there is nothing to do."""
        if not drafting.ready:
            return None
        if self.drafter.backlog(drafting.request) > self._batch:
            return []
        return drafting.candidates() or None

    def _draft(self, drafting: Drafting, leaves: Sequence[Node]) -> None:
        """One batch of catch-up, or one step over the most probable leaves (Algorithm 2)."""
        began, before = self.clock(), self.drafter.rows
        proposals = self._isolated(drafting, lambda drafting: self._evaluate(drafting, leaves))
        took = self.clock() - began
        self.stats.drafting_s += took
        self._turns.used(drafting.request, took)
        if not proposals:
            return
        self.stats.steps += 1
        if self.curve is not None and self.drafter.rows - before == len(leaves):  # nothing but leaves was evaluated
            self.curve.sample(len(leaves), took)
            if (report := self.curve.changed(self.clock())) is not None:
                self.outlet.send([report])
        self._take_in()
        self._isolated(drafting, lambda drafting: drafting.record(leaves, proposals))

    def _evaluate(self, drafting: Drafting, leaves: Sequence[Node]) -> Sequence[Proposal]:
        """The model's part of `_draft`; a catch-up returns no proposals."""
        proposals: Sequence[Proposal] = ()
        if leaves:
            rank = self._rankers[drafting.request]
            proposals = self.drafter.step(drafting.request, drafting.paths(leaves), drafting.rule.branching, rank)
        else:
            began, before = self.clock(), self.drafter.rows
            self.drafter.catch_up(drafting.request, self._batch)
            self._token_s = (self.clock() - began) / max(self.drafter.rows - before, 1)
        self._model_failures = 0
        return proposals

    def _send_due(self, end: float) -> None:
        """Sends the deltas that should not wait until `end`, in one frame, those that waited longest first."""
        now, nodes, trees = self.clock(), 0, list[Tree]()
        if not self._sendable or self._tree_rate.free_at > now:
            return
        for number in [number for number, one in self._requests.items() if one.due(now, end, self.rtt_s)]:
            if nodes >= FRAME_NODES:
                break
            tree = self._isolated(self._requests[number], lambda drafting: drafting.delta())
            if tree is not None:
                self._requests[number] = self._requests.pop(number)  # to the end of the queue
                trees.append(tree)
                nodes += len(tree.tokens)
        if trees:
            self._sendable = False
            self.stats.frames += 1
            self.stats.nodes += nodes
            self._tree_rate.take(1, self.clock())
            self.outlet.send(trees)

    def _take_in(self) -> None:
        while self._inbox:
            message = self._inbox.popleft()
            try:
                if message is None:
                    self._forget_all()
                else:
                    self._isolated(message, self._apply)
            except RemoteProtocolError as error:
                self.outlet.broken(error)

    def _isolated(self, about: About, work: Callable[[About], Result]) -> Result | None:
        """Runs `work(about)`; where that fails, declines the request and returns None.

        Raises RemoteProtocolError where the gateway violated the protocol, and ModelError when the model fails.
        """
        try:
            return work(about)
        except RemoteProtocolError:
            raise
        except Exception as error:  # noqa: BLE001  no failure of one request may end the others
            expected = isinstance(error, DraftMemoryError | DraftTokenError)
            if not expected:
                # The type and the place only: the text of a foreign exception may quote the prompt.
                text = f"request {about.request} is declined, drafting for it failed: {places(error)}"
                self._lines.warning(origin(error), text)
            if not isinstance(about, Drafting) or self._requests.get(about.request) is about:
                self._decline(about.request, about.epoch, str(error) if expected else FAILED, keep=expected)
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
                    drafting.part = Part(message.index, message.count)

    def _open(self, message: Open) -> None:
        if message.request in self._requests:
            self._close(message.request)
        if not self.loaded:
            self._decline(message.request, message.epoch, FREED)
            return
        if len(self._requests) >= self.max_requests:
            self._decline(message.request, message.epoch, f"{self.max_requests} requests are open already")
            return
        if message.prompt_len + self.rule.max_depth >= self.drafter.context:
            self._decline(message.request, message.epoch, f"the draft model's context is {self.drafter.context} tokens")
            return
        drafting = self._drafting(message)
        drafting.commit(0, message.tokens)
        self.drafter.open(message.request, drafting.to_read, message.cache_scope)
        self._requests[message.request] = drafting
        ranked_by, read, noise = drafting.ranked_by(message.sampling), drafting.to_read, drafting.noise
        self._rankers[message.request] = Ranker(ranked_by, read, spread=self._spread, resolved=True, noise=noise)
        self.stats.requests += 1

    def _drafting(self, message: Open) -> Drafting:
        """The state for the rule's kind; calibration and spread are shared by all requests."""
        of = message.request, message.epoch, message.prompt_len
        if not isinstance(self.rule, BestFirstRule):
            return Drafting(*of, self.rule)
        if self.translated is not None:
            return self.translated(*of, self.rule, calibrator=self._calibrator, step_s=self.curve)
        return BestFirst(*of, self.rule, calibrator=self._calibrator, step_s=self.curve)

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
            self._turns.drop(number)
            self.drafter.close(number, keep=keep)
