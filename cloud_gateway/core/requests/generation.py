"""One request from its arrival to its end: a pure state machine that the engine and the simulator drive.

    outputs = generation.handle(input, now)     something happened (steps.py); what follows from it, in order
    action = generation.decide(link, costs, now)    in status DECODE: verify, draft, catch up, or wait until a time

The statuses and what each may lead to are the table in `steps.py`. What has a thread, a clock or a socket is the
driver's: slots, models, workers' links, the client's stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from cloud_gateway.core.policies.actions import Action, Costs, LinkView, Outcome
from cloud_gateway.core.policies.colocated import Plain
from cloud_gateway.core.policies.policy import Policy
from cloud_gateway.core.policies.settings import DEFAULTS
from cloud_gateway.core.requests.accounting import Account, FrameLedger
from cloud_gateway.core.requests.assignment import Assignment, Assignments
from cloud_gateway.core.requests.request import Finish, GenerationRequest, TokensEvent, Usage
from cloud_gateway.core.requests.rounds import Rounds
from cloud_gateway.core.requests.steps import (
    SPENT,
    TABLE,
    Admitted,
    Assigned,
    Cancelled,
    Declined,
    Drafted,
    DropDraft,
    Emit,
    Ended,
    Finished,
    FrameArrived,
    FrameTaken,
    Input,
    Keep,
    Listener,
    NoWorker,
    Output,
    PassFailed,
    Preempted,
    Prefilled,
    Punish,
    Reopen,
    Rows,
    SpeculationFailed,
    Status,
    Stopped,
    Verified,
    Withdrawn,
    WorkerGone,
    WorkerWanted,
)
from cloud_gateway.core.sources.asking import Sources
from cloud_gateway.core.verify.accept import Walk, at_open_end, walk
from cloud_gateway.core.verify.candidates import CandidateTree
from cloud_gateway.core.verify.flatten import FlatTree, flatten
from cloud_gateway.core.verify.guide import Guide, ready_at
from cloud_gateway.core.verify.interface import ConstraintError
from cloud_gateway.core.verify.logprobs import walk_logprobs
from cloud_gateway.core.verify.verification import Verification
from edgespec.core.drafting.tree import Node
from edgespec.core.errors import RemoteProtocolError
from edgespec.core.protocol.messages import Sampling

MAX_RETRIES = 2
"""Retries of one request in fresh slots; after the last one its passes stay its own."""


@dataclass(slots=True, eq=False)
class Generation:
    """One request. `now` is seconds on the driver's clock throughout."""

    id: int
    request: GenerationRequest
    controller: Policy
    verification: Verification
    submitted: float
    context: int
    """Most tokens that a slot can hold."""
    eos: frozenset[int] = frozenset()
    offload: bool = False
    """Whether workers may draft for it."""
    verify_nodes: int = DEFAULTS.verify_nodes
    """Candidates of the pass that ends a round whose budget is used up."""
    worker_sampling: Sampling = field(default_factory=Sampling)
    """The sampling parameters as sent to workers: the seed removed unless it is shared."""
    sources: Sources | None = None
    usage: Usage = field(default_factory=Usage)
    frames: FrameLedger = field(default_factory=FrameLedger)
    status: Status = field(default=Status.QUEUED, init=False)
    reading: Sequence[int] = field(init=False)
    """What the slot is given to read: the prompt, and after a retry also what was emitted before."""
    prefilled: int = field(default=0, init=False)
    """Tokens of `reading` whose keys and values the target holds; the last one is row 0 of the first verify."""
    tree: CandidateTree = field(init=False)
    assignments: Assignments = field(init=False)
    excluded_workers: set[str] = field(default_factory=set, init=False)
    """Workers that declined, broke the protocol or brought nothing for this request."""
    cancelled: bool = field(default=False, init=False)
    alone: bool = field(default=False, init=False)
    """Its passes are its own until one succeeds: an earlier one, over several requests perhaps, has failed."""
    retries: int = field(default=0, init=False)
    plain_since_fault: bool = field(default=False, init=False)
    listener: Listener | None = field(default=None, init=False)
    _account: Account = field(init=False)
    _rounds: Rounds = field(init=False)
    _guide: Guide | None = field(default=None, init=False)
    """For an answer with a constraint that helps to draft."""

    def __post_init__(self) -> None:
        self.tree = CandidateTree(self.request.tokens)
        self.reading = self.request.tokens
        self.assignments = Assignments(self.id, not self.request.constraint)
        self._rounds = Rounds(self.verify_nodes)
        self._account = Account(self.submitted, self.usage, self.frames)
        self._account.submitted_with(len(self.request.tokens), self.controller.name)
        if self.request.constraint and self.verification.by_match and self.controller.name != "plain":
            self._guide = Guide(self.request.constraint)

    @property
    def wants_worker(self) -> bool:
        """Whether a worker may draft for it and none does."""
        return self.may_offload and self.assignment is None

    @property
    def may_offload(self) -> bool:
        """Whether workers may draft for it now."""
        return self.offload and self.status in (Status.PREFILL, Status.DECODE)

    @property
    def assignment(self) -> Assignment | None:
        """Its first worker's; None while nobody drafts."""
        return self.assignments.first

    @property
    def first_token(self) -> float | None:
        """When it was emitted; None before."""
        return self._account.first_token

    @property
    def room(self) -> int:
        """Tokens that the slot can still take."""
        return self.context - len(self.tree.prefix)

    @property
    def remaining(self) -> int:
        """Answer tokens that may still be emitted."""
        return min(self.request.max_tokens - self.usage.completion_tokens, self.room)

    def handle(self, step: Input, now: float) -> Sequence[Output]:
        """Takes in what happened. Raises ValueError for what cannot happen in this status."""
        if type(step) not in TABLE[self.status]:
            raise ValueError(f"{type(step).__name__} cannot happen to a request that is {self.status.value}")
        own = self._rounds.own.at(now)
        if isinstance(step, SPENT):
            self._account.charge(step, own)
            return ()
        if self.status is Status.FINISHED:
            return ()
        outputs = self._take_in(step, own)
        if self.listener is not None:
            self.listener.handled(step, outputs, now)
        return outputs

    def _take_in(self, step: Input, now: float) -> Sequence[Output]:
        match step:
            case FrameArrived():
                return self._frame(step, now)
            case Verified():
                return self._verified(step, now)
            case Drafted():
                self.tree.propose(step.leaves, step.proposals)
                return ()
            case Assigned() | NoWorker() | WorkerGone() | Declined() | Withdrawn():
                return self._worker(step)
            case Admitted() | Prefilled():
                return self._read(step, now)
            case _:
                return self._trouble(step)

    def decide(self, link: LinkView | None, costs: Costs, now: float) -> Action:
        """What the policy wants next, within the bounds of a round. `link` is None while no worker drafts."""
        self._rounds.inform(self.controller)
        if self.sources is not None:
            list(self.sources.ask(self.tree, self.usage.sources, self.listener))  # those that nobody has asked
        limited = replace(costs, remaining=self.remaining)
        action = self._rounds.decide(self.controller, self.tree, link, limited, now)
        self._account.decided(self.controller)
        if self.listener is not None:
            self.listener.decided(link, costs, now, action)
        return action

    def select(self, nodes: Sequence[Node]) -> Sequence[Node]:
        """What of these to verify: near the end of the context only as many as there is room for, and what the
        constraint allows."""
        if len(nodes) > self.room:
            nodes = self.tree.best(self.room)
        if self._guide is None:
            return nodes
        chosen = self._guide.select(self.tree, nodes, self.room)
        if self.listener is not None:
            self.listener.guided(nodes, chosen)
        return chosen

    def flatten(self, nodes: Sequence[Node]) -> FlatTree:
        """The tree to verify."""
        return flatten(self.tree.root, nodes)

    # --- reading -------------------------------------------------------------------------------------------------

    def _read(self, step: Admitted | Prefilled, now: float) -> Sequence[Output]:
        if isinstance(step, Prefilled):
            self.prefilled += step.tokens
            self._account.prefilled(step.seconds)
        else:
            self.prefilled = step.reused
            self._account.admitted(now, self._rounds.own.stopped_s)
        self.status = Status.PREFILL if self.prefilled < len(self.reading) - 1 else Status.DECODE
        if self.status is Status.DECODE:
            self._rounds.own.resume()
            self._account.decodes(now)
        return (WorkerWanted(),) if isinstance(step, Admitted) and self.offload else ()

    # --- the worker's side ---------------------------------------------------------------------------------------

    def _worker(self, step: Assigned | NoWorker | WorkerGone | Declined | Withdrawn) -> Sequence[Output]:
        if isinstance(step, NoWorker):
            self._account.not_assigned(step.why)
            return ()
        if isinstance(step, Assigned):
            return self._assign(step)
        given = self.assignments.of(step.worker)
        if given is None:
            return ()
        if isinstance(step, Declined) or (isinstance(step, Withdrawn) and step.useless):
            self.excluded_workers.add(step.worker)
        if isinstance(step, Withdrawn):
            return self._release(given, "nothing accepted" if step.useless else "needed elsewhere")
        if isinstance(step, Declined):
            return [*self._release(given, "declined"), WorkerWanted()]
        outputs = self._release(given, "moved")
        self.tree.discard(step.worker)
        return [*outputs, WorkerWanted()]

    def _assign(self, step: Assigned) -> Sequence[Output]:
        free = self.wants_worker or (step.beside and self.may_offload and self.assignments.of(step.worker) is None)
        if not free:
            return ()
        given, outputs = self.assignments.add(step, self.tree.prefix, self.worker_sampling)
        self._account.assigned(given.worker, given.name)
        return outputs

    def _release(self, given: Assignment, why: str) -> list[Output]:
        """Takes the request away from a worker; its candidates stay, since they are verified anyway."""
        self.tree.forget(given.epoch)
        return [*self.assignments.remove(given, why)]

    def _release_all(self, why: str) -> list[Output]:
        return [output for given in self.assignments.given[::-1] for output in self._release(given, why)]

    def _frame(self, step: FrameArrived, now: float) -> Sequence[Output]:
        """Merges a frame of a present assignment; one of another worker or epoch is stale."""
        given = self.assignments.of(step.worker, step.frame.epoch)
        self.frames.count("received")
        if given is None:
            self.frames.count("stale")
            return (FrameTaken("stale", step.worker),)
        self._rounds.inform(self.controller)
        try:
            merged = self.tree.merge(given.epoch, step.frame, given.worker)
        except RemoteProtocolError as error:
            self.frames.count("rejected")
            self.excluded_workers.add(step.worker)
            return (FrameTaken("rejected", step.worker), Punish(step.worker, error, self.id))
        kind = "used" if merged.fresh else "stale"
        self.frames.count(kind)
        self._account.frame(given.worker, merged.fresh)
        given.frames += bool(merged.fresh)
        if merged.useful and not given.ready:
            given.has_read()
            if given.epoch == 1:
                self._account.worker_ready(now)
        self.controller.received(merged, now)
        return (FrameTaken(kind, step.worker, not merged.prefix, merged.useful),)

    # --- one round -----------------------------------------------------------------------------------------------

    def _verified(self, step: Verified, now: float) -> Sequence[Output]:
        """Walks the verified tree and commits what the target chose."""
        self._rounds.inform(self.controller)
        self.alone = self.retries >= MAX_RETRIES
        try:
            taken, outcome = self._accept(step.tree, step.rows, now)
        except ConstraintError as error:
            return self._finish("error", str(error))
        tokens, finish = taken.tokens, self._finish_of(taken.tokens)
        answer = tokens[:-1] if finish == "stop" else tokens
        commits = self.assignments.commit(self.tree.prefix, tokens, self._rounds.times.latest, outcome)
        outputs: list[Output] = [Keep(taken.rows, tokens), *commits]
        if answer and not self.cancelled:
            top = self.request.top_logprobs
            logprobs = None if top is None else walk_logprobs(step.rows.logits, taken, top)[: len(answer)]
            outputs.append(Emit(TokensEvent(tuple(answer), logprobs)))
        more = self.assignments.useless(len(self.request.tokens)) if finish is None else self._finish(finish)
        return [*outputs, *more]

    def _accept(self, flat: FlatTree, rows: Rows, now: float) -> tuple[Walk, Outcome]:
        """Raises ConstraintError."""
        stops: frozenset[int] = frozenset() if self.request.ignore_eos else self.eos
        choose, constraint = self.verification.at(flat, rows), self.request.constraint
        taken = walk(flat, choose, stop=stops.__contains__, limit=self.remaining, ready=ready_at(flat, constraint))
        self._account.round(flat, taken, now, self.assignments.given, self.tree.root)
        at_leaf = at_open_end(flat, taken) and not self._forbade(flat, taken.rows[-1])
        self.tree.advance(taken.tokens)
        self.verification.committed(taken.tokens)
        if constraint is not None:
            constraint.committed(taken.tokens)
        if self._guide is not None and taken.tokens[-1] not in self.eos:
            forced = self._guide.propose(self.tree)
            if self.listener is not None:
                self.listener.proposed(forced)
        entropy, position = rows.entropy(taken.rows[-1]), self.tree.root.position
        outcome = Outcome(max(flat.depths), len(taken.tokens), at_leaf, entropy, position)
        self._rounds.ended(outcome, now)
        return taken, outcome

    def _forbade(self, flat: FlatTree, row: int) -> bool:
        """Whether the constraint forbade a candidate after this row, which was then a wrong one."""
        return self._guide is not None and self._guide.forbade(flat.nodes[row - 1] if row else self.tree.root)

    def _finish_of(self, tokens: list[int]) -> Finish | None:
        """Why the answer ends after these tokens, or None."""
        if self.cancelled:
            return "cancelled"
        if not self.request.ignore_eos and tokens[-1] in self.eos:
            return "stop"
        return "length" if self.remaining <= 0 else None

    # --- failures and ends ---------------------------------------------------------------------------------------

    def _trouble(self, step: Input) -> Sequence[Output]:
        match step:
            case PassFailed():
                return self._retry(step)
            case SpeculationFailed(why, worker):
                if worker is not None:
                    self.frames.count("rejected")
                return self._decode_plainly(why)
            case Ended(error):
                return self._finish("error", error)
            case Cancelled():
                self.cancelled = True
                return self._finish("cancelled") if self.status is Status.QUEUED else ()
            case Preempted():
                return self._preempt()
            case _:
                assert isinstance(step, Stopped)
                return self._finish("cancelled")

    def _retry(self, step: PassFailed) -> Sequence[Output]:
        """Starts again in a fresh slot, with what was emitted as part of the prompt; ends where that was tried."""
        if step.alone and self.alone:
            return self._finish("error", f"The target model failed on this request ({step.what}); please try again.")
        self.retries, self.alone = self.retries + 1, True
        outputs = self._decode_plainly("a pass of the target model failed")
        self._read_again()
        return [*outputs, Reopen()]

    def _preempt(self) -> Sequence[Output]:
        """Gives up slot, workers and local draft until it is admitted again; policy, candidates and draws stay."""
        if self.cancelled:
            return self._finish("cancelled")
        self._rounds.own.stop()
        self._read_again()
        return [*self._release_all("preempted"), DropDraft()]

    def _read_again(self) -> None:
        self.reading, self.prefilled, self.status = list(self.tree.prefix.tokens), 0, Status.QUEUED

    def _decode_plainly(self, why: str) -> Sequence[Output]:
        """Gives up all speculation for the rest of the answer: fresh tree, no drafts, no worker."""
        outputs = [*self._release_all("moved"), DropDraft()]
        self._account.policy_ended(self.controller)
        self._account.decodes_plainly(f"decoded plainly since {why}")
        self.controller, self._guide, self.sources, self.offload = Plain(), None, None, False
        self.tree = CandidateTree(self.tree.prefix.tokens)
        self.plain_since_fault = True
        return outputs

    def _finish(self, finish: Finish, error: str | None = None) -> Sequence[Output]:
        self.status = Status.FINISHED
        outputs = self._release_all(finish)
        self._account.policy_ended(self.controller)
        return [*outputs, Finished(finish, error)]
