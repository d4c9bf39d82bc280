"""The worker's loop: take in what the gateway committed, draft one step, stream what is new. One thread owns the model.

The event loop hands messages over through `_inbox`; deltas go back through `outlet`, one at a time: while the link is
busy, unsent nodes stay in their tree, where a commit still prunes them (design section 4, back-pressure).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from edgespec.core.bestfirst import BestFirst, BestFirstRule
from edgespec.core.calibration import Calibrator
from edgespec.core.drafting import Drafting, DraftRule
from edgespec.core.errors import RemoteProtocolError
from edgespec.core.messages import Close, Commit, Decline, Open, Tree
from edgespec.core.ranking import Ranker, Spread
from edgespec.core.tree import Node
from edgespec.drafter import Drafter, DraftMemoryError

log = logging.getLogger("edgespec.daemon")

FromGateway = Open | Commit | Close


@dataclass(slots=True)
class Given:
    """What this worker has given since it started, for `edgespec status`."""

    requests: int = 0
    steps: int = 0
    nodes: int = 0
    frames: int = 0
    committed: int = 0
    """Tokens committed by the gateway."""
    matched: int = 0
    """Committed tokens that the tree held."""
    drafting_s: float = 0.0
    host_s: float = 0.0
    """Time of busy turns outside the model."""


@dataclass(slots=True)
class Outlet:
    """The way back to the link, supplied by the service; both are called on the drafting thread."""

    send: Callable[[Tree | Decline], None]
    """Hands a message to the event loop. After a `Tree` the outlet is shut until `Daemon.writable()`."""
    broken: Callable[[RemoteProtocolError], None]
    """The gateway broke the protocol: the link ends."""


@dataclass(slots=True)
class Daemon:
    """Drafts for every open request in turn."""

    drafter: Drafter
    rule: DraftRule
    outlet: Outlet
    max_requests: int = 8
    prefill_batch: int = 64
    """Committed tokens evaluated at once; between batches other requests and commits have their turn."""
    prefix_cache: bool = True
    """Whether a closed request's prompt serves later ones of its cache scope that begin alike."""
    step_s: Callable[[int], float] | None = None
    """Seconds of a step by its leaves, by which the best-first rule chooses their number; None: always all."""
    clock: Callable[[], float] = time.perf_counter
    given: Given = field(default_factory=Given)
    paused: bool = False
    _requests: dict[int, Drafting] = field(default_factory=dict)
    _rankers: dict[int, Ranker] = field(default_factory=dict)
    """Order the guesses by the probability that the target takes them, which is not the draft's own (ranking.py)."""
    _spread: Spread = field(default_factory=Spread)
    _calibrator: Calibrator = field(default_factory=Calibrator)
    _turn: int = 0
    _inbox: deque[FromGateway | None] = field(default_factory=deque)
    _wake: threading.Event = field(default_factory=threading.Event)
    _sendable: bool = True
    _stopping: bool = False

    # --- called on the event loop --------------------------------------------------------------------------------

    def take(self, message: FromGateway) -> None:
        """A message of the gateway."""
        self._inbox.append(message)
        self._wake.set()

    def forget_all(self) -> None:
        """The link went: every request of it is over."""
        self._inbox.append(None)
        self.writable()

    def writable(self) -> None:
        """The link can take another delta."""
        self._sendable = True
        self._wake.set()

    def pause(self, paused: bool) -> None:
        """Stops drafting after the present step, or goes on."""
        self.paused = paused
        self._wake.set()

    def stop(self) -> None:
        """Ends `run` after the present step."""
        self._stopping = True
        self._wake.set()

    @property
    def open_requests(self) -> int:
        """Requests that are drafted for."""
        return len(self._requests)

    # --- the drafting thread -------------------------------------------------------------------------------------

    def run(self) -> None:  # main loop
        """Drafts until `stop`."""
        while not self._stopping:
            began, modelled = self.clock(), self.given.drafting_s
            self._take_in()
            self._send_one()
            work = None if self.paused else self._next()
            if work is None:
                self._wake.wait()
                self._wake.clear()
                continue
            self._draft(*work)
            self._send_one()
            self.given.host_s += self.clock() - began - (self.given.drafting_s - modelled)

    def _next(self) -> tuple[Drafting, list[Node]] | None:
        """The next request in turn that has something to draft, and its leaves; none of them: it has to catch up first.

        Each gets one step.
        """
        numbers = list(self._requests)
        for i in range(len(numbers)):
            drafting = self._requests[numbers[(self._turn + i) % len(numbers)]]
            if not drafting.ready:
                continue
            owes = self._owes(drafting)
            leaves = [] if owes else drafting.candidates()
            if owes or leaves:
                self._turn = (self._turn + i + 1) % len(numbers)
                return drafting, leaves
        return None

    def _owes(self, drafting: Drafting) -> bool:
        return self.drafter.pending(drafting.request) > self.prefill_batch

    def _draft(self, drafting: Drafting, leaves: Sequence[Node]) -> None:
        """One batch of catch-up, or one step over the most probable leaves (Algorithm 2)."""
        began = self.clock()
        try:
            if not leaves:
                self.drafter.catch_up(drafting.request, self.prefill_batch)
                self.given.drafting_s += self.clock() - began
                return
            root = drafting.tree.root
            paths = [leaf.path(root) for leaf in leaves]
            rank = self._rankers[drafting.request]
            proposals = self.drafter.step(drafting.request, paths, drafting.rule.branching, rank)
        except DraftMemoryError as error:
            self._decline(drafting.request, drafting.epoch, str(error))
            return
        self.given.drafting_s += self.clock() - began
        self.given.steps += 1
        self._take_in()
        drafting.record(leaves, proposals)

    def _send_one(self) -> None:
        """The next delta of the request that waited longest, if the link can take one."""
        if not self._sendable:
            return
        for number in list(self._requests):
            tree = self._requests[number].delta()
            if tree is not None:
                self._requests[number] = self._requests.pop(number)  # to the end of the line
                self._sendable = False
                self.given.frames += 1
                self.given.nodes += len(tree.tokens)
                self.outlet.send(tree)
                return

    def _take_in(self) -> None:
        while self._inbox:
            message = self._inbox.popleft()
            try:
                self._apply(message)
            except RemoteProtocolError as error:
                self.outlet.broken(error)

    def _apply(self, message: FromGateway | None) -> None:
        match message:
            case None:
                for number in list(self._requests):
                    self._close(number)
            case Open():
                self._open(message)
            case Commit():
                self._commit(message)
            case Close():
                drafting = self._requests.get(message.request)
                if drafting is not None and drafting.epoch == message.epoch:
                    self._close(message.request)

    def _check(self, tokens: Sequence[int]) -> None:
        if tokens and max(tokens) >= self.drafter.vocab_size:
            size = self.drafter.vocab_size
            raise RemoteProtocolError("vocabulary", f"the gateway sent a token outside the vocabulary of {size}")

    def _open(self, message: Open) -> None:
        self._check(message.tokens)
        if message.request in self._requests:
            self._close(message.request)
        if len(self._requests) >= self.max_requests:
            self._decline(message.request, message.epoch, f"{self.max_requests} requests are open already")
            return
        if message.prompt_len + self.rule.max_depth >= self.drafter.context:
            self._decline(message.request, message.epoch, f"the draft model's context is {self.drafter.context} tokens")
            return
        drafting = self._drafting(message)
        drafting.commit(0, message.tokens)
        try:
            self.drafter.open(message.request, message.tokens, message.cache_scope)
        except DraftMemoryError as error:
            self._decline(message.request, message.epoch, str(error))
            return
        self._requests[message.request] = drafting
        self._rankers[message.request] = Ranker(message.sampling, message.tokens, spread=self._spread, resolved=True)
        self.given.requests += 1

    def _drafting(self, message: Open) -> Drafting:
        """By the rule's kind; what one request teaches of the pair of models serves the next."""
        of = message.request, message.epoch, message.prompt_len
        if isinstance(self.rule, BestFirstRule):
            return BestFirst(*of, self.rule, calibrator=self._calibrator, step_s=self.step_s)
        return Drafting(*of, self.rule)

    def _commit(self, message: Commit) -> None:
        drafting = self._requests.get(message.request)
        if drafting is None or drafting.epoch != message.epoch:
            return
        self._check(message.tokens)
        matched = drafting.commit(message.prefix_len, message.tokens, message.prefix_hash)
        self.drafter.commit(message.request, message.tokens)
        in_answer = message.prefix_len >= drafting.prompt_len
        self._rankers[message.request].committed(message.tokens, answer=in_answer)
        self.given.committed += len(message.tokens)
        self.given.matched += matched

    def _decline(self, request: int, epoch: int, reason: str) -> None:
        self._close(request)
        self.outlet.send(Decline(request, epoch, reason[:200]))

    def _close(self, number: int) -> None:
        if self._requests.pop(number, None) is not None:
            self.drafter.close(number, keep=self.prefix_cache)
            self._rankers.pop(number, None)
