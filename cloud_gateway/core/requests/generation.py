"""One request from its arrival to its end: a pure state machine that the engine and the simulator drive.

    effects = generation.handle(event, now)         something happened (events.py); what follows from it, in order
    action = generation.decide(link, costs, now)    in status DECODE: verify, draft, catch up, or wait until a time

The statuses and what leads from one to another are the table in `events.py`. What has a thread, a clock or a socket is
the driver's: slots, models, workers' links, the client's stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from cloud_gateway.core.policies.baselines import Plain
from cloud_gateway.core.policies.policy import Action, Costs, LinkView, Outcome, Policy
from cloud_gateway.core.policies.settings import DEFAULTS
from cloud_gateway.core.requests.accounting import Account, Spent
from cloud_gateway.core.requests.assignment import RELEASED, Assignments
from cloud_gateway.core.requests.events import (
    TABLE,
    Admitted,
    Assignment,
    Chosen,
    Drafted,
    Drop,
    Effect,
    Ended,
    Event,
    Failed,
    Finished,
    FrameArrived,
    FrameTaken,
    Listener,
    Preempted,
    Read,
    Rows,
    Status,
    Turn,
    Verified,
    WorkerChanged,
    WorkerWanted,
)
from cloud_gateway.core.requests.request import Finish, GenerationRequest, TokensEvent, Usage
from cloud_gateway.core.requests.rounds import Rounds
from cloud_gateway.core.sources.asking import Sources
from cloud_gateway.core.verify.accept import FlatTree, Walk, at_open_end, flatten, walk, walk_logprobs
from cloud_gateway.core.verify.candidates import CandidateTree
from cloud_gateway.core.verify.guide import Guide, ready_at
from cloud_gateway.core.verify.interface import ConstraintError
from cloud_gateway.core.verify.verification import Verification
from edgespec.core.drafting.tree import Node
from edgespec.core.errors import RemoteProtocolError
from edgespec.core.protocol.messages import Sampling

MAX_RETRIES = 2
"""Retries of one request in fresh slots; after the last one its passes stay its own."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What target and configuration set for a request."""

    context: int
    """Most tokens that a slot can hold."""
    eos: frozenset[int] = frozenset()
    verify_nodes: int = DEFAULTS.verify_nodes
    """Candidates of the pass that ends a round whose budget is used up."""


@dataclass(slots=True)
class Retries:
    """What failed passes and faults have left of a request's freedom."""

    count: int = 0
    alone: bool = False
    """Its passes are its own until one succeeds: an earlier one, over several requests perhaps, has failed."""
    plain: bool = False
    """It is decoded plainly for the rest."""


class Generation:
    """One request. `now` is seconds on the driver's clock throughout."""

    def __init__(
        self, number: int, request: GenerationRequest, policy: Policy, verification: Verification, bounds: Bounds,
        account: Account | None = None, *, offload: bool = False, worker_sampling: Sampling | None = None,
        sources: Sources | None = None,
    ) -> None:  # fmt: skip
        """`offload`: whether workers may draft for it, who are sent `worker_sampling`."""
        self.id, self.request, self.policy, self.verification = number, request, policy, verification
        self.bounds, self.account, self.sources = bounds, account or Account(), sources
        self.account.usage.prompt_tokens, self.account.usage.policy = len(request.tokens), policy.name
        self.status = Status.QUEUED
        self.reading: Sequence[int] = request.tokens
        """What the slot is given to read: the prompt, and after a retry also what was emitted before."""
        self.prefilled = 0
        """Tokens of `reading` whose keys and values the target holds; the last one is row 0 of the first verify."""
        self.tree = CandidateTree(request.tokens)
        self.assignments = Assignments(number, not request.constraint, offload, worker_sampling or Sampling())
        self.cancelled, self.retries = False, Retries()
        self.listener = Listener()
        self.forced: Sequence[Node] = ()
        """Candidates that the constraint proposed after the tokens of the latest pass."""
        self._rounds = Rounds(bounds.verify_nodes)
        self._guide: Guide | None = None
        """For a completion with a constraint that helps to draft."""
        if request.constraint and verification.by_match and policy.name != "plain":
            self._guide = Guide(request.constraint)

    @property
    def wants_worker(self) -> bool:
        """Whether a worker may draft for it and none does."""
        return self.may_offload and self.assignment is None

    @property
    def may_offload(self) -> bool:
        """Whether workers may draft for it now."""
        return self.assignments.allowed and self.status in (Status.PREFILL, Status.DECODE)

    @property
    def assignment(self) -> Assignment | None:
        """Its first worker's; None while nobody drafts."""
        return self.assignments.first

    @property
    def usage(self) -> Usage:
        """What it cost and who helped, so far."""
        return self.account.usage

    @property
    def room(self) -> int:
        """Tokens that the slot can still take."""
        return self.bounds.context - len(self.tree.prefix)

    @property
    def remaining(self) -> int:
        """Answer tokens that may still be emitted."""
        return min(self.request.max_tokens - self.usage.completion_tokens, self.room)

    def handle(self, event: Event, now: float) -> Sequence[Effect]:
        """Takes in what happened. Raises ValueError for what cannot happen in this status."""
        own = self._rounds.own(now)
        before = self.status
        self._enter(type(event))
        if before is Status.FINISHED:
            return ()
        effects = self._take_in(event, own)
        self.account.take(event, effects, now, own)
        self.listener.handled(event, effects, now)
        return effects

    def spent(self, spent: Spent, now: float) -> None:
        """Books seconds that were spent on the request up to `now`."""
        self.account.spent(spent, self._rounds.own(now))

    def _enter(self, what: type[Event] | Turn) -> None:
        """The status that follows, by the table."""
        following = TABLE.get((self.status, what))
        if following is None:
            name = what.value if isinstance(what, Turn) else what.__name__
            raise ValueError(f"{name} cannot happen to a request that is {self.status}")
        self.status = following

    def _take_in(self, event: Event, now: float) -> Sequence[Effect]:
        match event:
            case FrameArrived():
                return self._frame(event, now)
            case Verified():
                return self._verified(event, now)
            case Drafted(leaves, proposals):
                self._rounds.drafting = False
                self.tree.propose(leaves, self.policy.priced(leaves, proposals))
                return ()
            case WorkerChanged():
                return self._worker(event)
            case Admitted(reused):
                self.prefilled = reused
                self._read(now)
                return (WorkerWanted(),) if self.assignments.allowed else ()
            case Read(tokens):
                self.prefilled += tokens
                self._read(now)
                return ()
            case Preempted():
                return self._preempt()
            case Failed():
                return self._failed(event)
            case _:
                assert isinstance(event, Ended)
                return self._ended(event)

    def decide(self, link: LinkView | None, costs: Costs, now: float) -> Action:
        """What the policy wants next, within the bounds of a round. `link` is None while no worker drafts."""
        self._rounds.inform(self.policy)
        list(self.ask_sources())  # those that nobody has asked
        action = self._rounds.decide(self.policy, self.tree, link, replace(costs, remaining=self.remaining), now)
        self.account.decided(self.policy)
        self.listener.decided(link, costs, now, action)
        return action

    def ask_sources(self) -> Iterator[str]:
        """Asks one source without a draft model at each step, where tokens were committed; the names of those asked."""
        for source, suggestions, proposed, why in self.sources.ask(self.tree) if self.sources is not None else ():
            self.account.asked(source, proposed, why)
            if suggestions:
                self.listener.suggested(source, suggestions)
            yield source

    def select(self, nodes: Sequence[Node]) -> Sequence[Node]:
        """What of these to verify: near the end of the context only as many as there is room for, and what the
        constraint allows."""
        if len(nodes) > self.room:
            nodes = self.tree.best(self.room)
        if self._guide is None:
            return nodes
        chosen = self._guide.select(self.tree, nodes, self.room)
        self.listener.guided(nodes, chosen)
        return chosen

    def flatten(self, nodes: Sequence[Node]) -> FlatTree:
        return flatten(self.tree.root, nodes)

    def _read(self, now: float) -> None:
        """Decodes from here where all its tokens but the last are read; that one is row 0 of the first pass."""
        if self.prefilled >= len(self.reading) - 1:
            self._enter(Turn.READ_ALL)
            self._rounds.resume()
            self.account.decodes(now)

    # --- the worker's side ---------------------------------------------------------------------------------------

    def _worker(self, event: WorkerChanged) -> Sequence[Effect]:
        if event.why in ("assigned", "beside"):
            return self._assign(event)
        given = self.assignments.given.get(event.worker)
        if given is None:
            return ()
        if event.why in ("declined", "useless"):
            self.assignments.excluded.add(event.worker)
        effects = self._release(given, RELEASED[event.why])
        if event.why == "gone":
            self.tree.discard(event.worker)
        return [*effects, WorkerWanted()] if event.why in ("gone", "declined") else effects

    def _assign(self, event: WorkerChanged) -> Sequence[Effect]:
        beside = event.why == "beside" and self.may_offload and event.worker not in self.assignments.given
        if not (beside or self.wants_worker):
            return ()
        given, effects = self.assignments.add(event, self.tree.prefix)
        self.account.assigned(given.worker, given.name)
        return effects

    def _release(self, given: Assignment, why: str) -> list[Effect]:
        """Takes the request away from a worker; its candidates stay, since they are verified anyway."""
        self.tree.forget(given.epoch)
        return [*self.assignments.remove(given, why)]

    def _release_all(self, why: str) -> list[Effect]:
        return [effect for given in [*self.assignments.given.values()][::-1] for effect in self._release(given, why)]

    def _frame(self, event: FrameArrived, now: float) -> Sequence[Effect]:
        """Merges a frame of a present assignment; one of another worker or epoch is stale."""
        given = self.assignments.given.get(event.worker)
        if given is None or given.epoch != event.frame.epoch:
            return (FrameTaken("stale", event.worker),)
        self._rounds.inform(self.policy)
        try:
            merged = self.tree.merge(given.epoch, event.frame, given.worker)
        except RemoteProtocolError as error:
            self.assignments.excluded.add(event.worker)
            return (FrameTaken("rejected", event.worker, error=error),)
        given.frames += bool(merged.fresh)
        if merged.useful and not given.ready:
            given.ready, given.rounds, given.idle = True, 0, 0  # it has read the prompt
        self.policy.received(merged, now)
        return (FrameTaken("used" if merged.fresh else "stale", event.worker, merged),)

    # --- one round -----------------------------------------------------------------------------------------------

    def _verified(self, event: Verified, now: float) -> Sequence[Effect]:
        """Walks the verified tree and commits what the target chose."""
        self._rounds.inform(self.policy)
        self.retries.alone = self.retries.count >= MAX_RETRIES
        try:
            taken, outcome = self._accept(event.tree, event.rows, now)
        except ConstraintError as error:
            return self._finish("error", str(error))
        tokens, finish = taken.tokens, self._finish_of(taken.tokens)
        commits = self.assignments.commit(self.tree.prefix, tokens, self._rounds.latest, outcome)
        chosen = Chosen(taken.rows, tokens, self._for_client(event.rows, taken, finish))
        more = self.assignments.useless(len(self.request.tokens)) if finish is None else self._finish(finish)
        return [*commits, chosen, *more]

    def _for_client(self, rows: Rows, taken: Walk, finish: Finish | None) -> TokensEvent | None:
        """The round's tokens, without one that ends the text."""
        shown = taken.tokens[:-1] if finish == "stop" else taken.tokens
        if not shown or self.cancelled:
            return None
        top = self.request.top_logprobs
        return TokensEvent(tuple(shown), None if top is None else walk_logprobs(rows.logits, taken, top)[: len(shown)])

    def _accept(self, flat: FlatTree, rows: Rows, now: float) -> tuple[Walk, Outcome]:
        """Raises ConstraintError."""
        stops: frozenset[int] = frozenset() if self.request.ignore_eos else self.bounds.eos
        choose, constraint = self.verification.at(flat, rows), self.request.constraint
        taken = walk(flat, choose, stop=stops.__contains__, limit=self.remaining, ready=ready_at(flat, constraint))
        self.account.walked(flat, taken, now)
        for given in self.assignments.given.values():
            given.verified(flat, taken, self.tree.root)
        at_leaf = at_open_end(flat, taken) and not self._forbade(flat, taken.rows[-1])
        self.tree.advance(taken.tokens)
        self.verification.committed(taken.tokens)
        if constraint is not None:
            constraint.committed(taken.tokens)
        self.forced = ()
        if self._guide is not None and taken.tokens[-1] not in self.bounds.eos:
            self.forced = self._guide.propose(self.tree)

        emitted = len(taken.tokens)
        entropy = None
        if self.policy.needs_entropy(self.tree, emitted=emitted, at_leaf=at_leaf):
            entropy = rows.entropy(taken.rows[-1])
        outcome = Outcome(max(flat.depths), emitted, at_leaf, entropy, self.tree.root.position)
        self._rounds.ended(outcome, now)
        return taken, outcome

    def _forbade(self, flat: FlatTree, row: int) -> bool:
        """Whether the constraint forbade a candidate after this row, which was then a wrong one."""
        return self._guide is not None and self._guide.forbade(flat.nodes[row - 1] if row else self.tree.root)

    def _finish_of(self, tokens: list[int]) -> Finish | None:
        """Why the answer ends after these tokens, or None."""
        if self.cancelled:
            return "cancelled"
        if not self.request.ignore_eos and tokens[-1] in self.bounds.eos:
            return "stop"
        return "length" if self.remaining <= 0 else None

    # --- failures and ends ---------------------------------------------------------------------------------------

    def _failed(self, event: Failed) -> Sequence[Effect]:
        match event.scope:
            case "draft":
                return ()
            case "speculation":
                return self._decode_plainly(event.what)
        if event.scope == "own-pass" and self.retries.alone:
            return self._finish("error", f"The target model failed on this request ({event.what}); please try again.")
        self.retries.count, self.retries.alone = self.retries.count + 1, True
        return self._decode_plainly("a pass of the target model failed", slot=True)

    def _ended(self, event: Ended) -> Sequence[Effect]:
        if event.why == "error":
            return self._finish("error", event.error)
        self.cancelled = True
        return () if event.why == "left" and self.status is not Status.QUEUED else self._finish("cancelled")

    def _preempt(self) -> Sequence[Effect]:
        """Gives up slot, workers and local draft until it is admitted again; policy, candidates and draws stay."""
        if self.cancelled:
            return self._finish("cancelled")
        self._rounds.stop()
        self._read_again()
        return [*self._release_all("preempted"), Drop(slot=False)]

    def _read_again(self) -> None:
        """From the beginning, with what was emitted as part of the prompt."""
        self._enter(Turn.SLOT_LOST)
        self.reading, self.prefilled = list(self.tree.prefix.tokens), 0

    def _decode_plainly(self, why: str, *, slot: bool = False) -> Sequence[Effect]:
        """Gives up all speculation for the rest of the completion: fresh tree, no drafts, no worker. `slot`: it starts
        again in a fresh slot."""
        effects = [*self._release_all("moved"), Drop(slot)]
        self.account.policy_ended(self.policy)
        self.account.decodes_plainly(f"decoded plainly since {why}")
        self.policy, self._guide, self.sources, self.assignments.allowed = Plain(), None, None, False
        self.tree = CandidateTree(self.tree.prefix.tokens)
        self.retries.plain = True
        if slot:
            self._read_again()
        return effects

    def _finish(self, finish: Finish, error: str | None = None) -> Sequence[Effect]:
        self._enter(Turn.OVER)
        effects = self._release_all(finish)
        self.account.policy_ended(self.policy)
        return [*effects, Finished(finish, error)]
