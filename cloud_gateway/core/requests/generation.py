"""One request from its arrival to its end: a pure state machine that the engine and the simulator drive.

    effects = generation.handle(event, now)         something happened (events.py); what follows from it, in order
    action = generation.decide(link, costs, now)    in status DECODE: verify, draft, catch up, or wait until a time

The statuses and what leads from one to another are the table in `events.py`. What has a thread, a clock or a socket is
the driver's: slots, models, workers' links, the client's stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from cloud_gateway.core.policies.alone import Plain
from cloud_gateway.core.policies.policy import Action, Costs, LinkView, Outcome, Policy
from cloud_gateway.core.policies.settings import DEFAULTS
from cloud_gateway.core.requests.accounting import Account, Submission
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
    Note,
    Preempted,
    Read,
    Status,
    TargetRows,
    Turn,
    Verified,
    WorkerChanged,
    WorkerWanted,
)
from cloud_gateway.core.requests.request import (
    Finish,
    GenerationRequest,
    TokensEvent,
    Usage,
)
from cloud_gateway.core.requests.rounds import RequestTime, Rounds
from cloud_gateway.core.sources.asking import Sources
from cloud_gateway.core.verify.accept import NOT_COMPUTED, FlatTree, Walk, at_open_end, flatten, walk
from cloud_gateway.core.verify.candidates import CandidateTree
from cloud_gateway.core.verify.guide import Guide, ready_at
from cloud_gateway.core.verify.interface import ConstraintError
from cloud_gateway.core.verify.verification import Verification
from edgespec.core.drafting.tree import Node
from edgespec.core.errors import ClientError, RemoteProtocolError
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
    """How failed passes and faults limit the request from then on."""

    count: int = 0
    alone: bool = False
    """Its passes are its own until one succeeds: an earlier one, over several requests perhaps, has failed."""
    plain: bool = False
    """It is decoded plainly for the rest."""


class Generation:
    """One request. `now` is seconds on the driver's clock throughout."""

    def __init__(
        self,
        number: int,
        request: GenerationRequest,
        policy: Policy,
        verification: Verification,
        bounds: Bounds,
        submission: Submission | None = None,
        *,
        offload: bool = False,
        worker_sampling: Sampling | None = None,
        sources: Sources | None = None,
        listen: Callable[[Generation], Listener | None] | None = None,
    ) -> None:
        """`offload`: whether workers may draft for it, who are sent `worker_sampling`. `listen` is called at the end,
        and makes what records the request besides its account, if anything does."""
        self.id = number
        self.request = request
        self.policy = policy
        self.verification = verification
        self.bounds = bounds
        self.sources = sources
        self.status = Status.QUEUED
        self.reading: Sequence[int] = request.tokens
        """What the slot is given to read: the prompt, and after a retry also what was emitted before."""
        self.prefilled = 0
        """Tokens of `reading` whose keys and values the target holds; the last one is row 0 of the first verify."""
        self.tree = CandidateTree(request.tokens)
        self.assignments = Assignments(number, not request.constraint, offload, worker_sampling or Sampling())
        self.cancelled = False
        self.retries = Retries()
        self.first_token_at: float | None = None
        """In the request's own time, seconds; None before its first token."""
        self.forced: Sequence[Node] = ()
        """Candidates that the constraint proposed after the tokens of the latest pass."""
        self._time = RequestTime()
        self._rounds = Rounds(bounds.verify_nodes, self._time)
        self._guide: Guide | None = None
        """For a completion with a constraint that helps to draft."""
        if request.constraint and verification.by_match and policy.name != "plain":
            self._guide = Guide(request.constraint)

        self.account = Account(self, submission or Submission())
        self._listeners: list[Listener] = [self.account]
        listener = None
        if listen is not None:
            listener = listen(self)
        if listener is not None:
            self._listeners.append(listener)

    @property
    def wants_worker(self) -> bool:
        """Whether a worker may draft for it and none does."""
        return self.may_offload and self.assignment is None

    @property
    def may_offload(self) -> bool:
        """Whether workers may draft for it now."""
        has_slot = self.status in (Status.PREFILL, Status.DECODE)
        return self.assignments.allowed and has_slot

    @property
    def assignment(self) -> Assignment | None:
        """Its first worker's; None while nobody drafts."""
        return self.assignments.first

    @property
    def usage(self) -> Usage:
        """What it cost and who helped, so far."""
        return self.account.usage

    @property
    def emitted(self) -> int:
        """Tokens of the completion so far."""
        return len(self.tree.prefix) - len(self.request.tokens)

    @property
    def context_left(self) -> int:
        """Tokens that the slot can still take."""
        return self.bounds.context - len(self.tree.prefix)

    @property
    def remaining(self) -> int:
        """Tokens of the completion that may still be emitted."""
        return min(self.request.max_tokens - self.emitted, self.context_left)

    def own_time(self, now: float) -> float:
        """The request's own time at a moment of the driver's clock: it stands still while the request is preempted."""
        return self._time.at(now)

    def handle(self, event: Event, now: float) -> Sequence[Effect]:
        """Takes in what happened. Raises ValueError for what cannot happen in this status."""
        own_time = self.own_time(now)
        was_over = self.status is Status.FINISHED
        self._enter(type(event))
        if was_over:
            return ()

        effects = self._take_in(event, own_time)
        for listener in self._listeners:
            listener.handled(event, effects, now)

        return effects

    def note(self, note: Note, now: float) -> None:
        """Passes on to the listeners what changes nothing in the request."""
        for listener in self._listeners:
            listener.noted(note, now)

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
                return self._admitted(reused)
            case Read(tokens):
                self.prefilled += tokens
                self._decode_if_read()
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
        self._rounds.deliver_outcome(self.policy)
        for _ in self.ask_sources():
            pass  # the driver has asked them, unless it does not time them

        costs_to_end = replace(costs, remaining=self.remaining)
        action = self._rounds.decide(self.policy, self.tree, link, costs_to_end, now)

        for listener in self._listeners:
            listener.decided(link, costs, now, action)

        return action

    def ask_sources(self) -> Iterator[str]:
        """Asks one source without a draft model at each step if tokens were committed; the names of those asked."""
        if self.sources is None:
            return
        for source, suggestions, proposed, why in self.sources.ask(self.tree):
            for listener in self._listeners:
                listener.suggested(source, suggestions, proposed, why)
            yield source

    def select(self, nodes: Sequence[Node]) -> Sequence[Node]:
        """What of these to verify: near the end of the context only as many as there is room for, and what the
        constraint allows."""
        if len(nodes) > self.context_left:
            nodes = self.tree.best(self.context_left)
        if self._guide is None:
            return nodes

        chosen = self._guide.select(self.tree, nodes, self.context_left)
        for listener in self._listeners:
            listener.guided(nodes, chosen)

        return chosen

    def flatten(self, nodes: Sequence[Node]) -> FlatTree:
        return flatten(self.tree.root, nodes)

    def _admitted(self, reused: int) -> Sequence[Effect]:
        self.prefilled = reused
        self._decode_if_read()
        if self.assignments.allowed:
            return (WorkerWanted(),)
        return ()

    def _decode_if_read(self) -> None:
        """Decodes from here if all its tokens but the last are read; that one is row 0 of the first pass."""
        if self.prefilled >= len(self.reading) - 1:
            self._enter(Turn.READ_ALL)
            self._time.resume()

    # --- the worker's side ---------------------------------------------------------------------------------------

    def _worker(self, event: WorkerChanged) -> Sequence[Effect]:
        if event.assigns:
            return self._assign(event)

        assignment = self.assignments.given.get(event.worker)
        if assignment is None:
            return ()

        if event.why in ("declined", "useless"):
            self.assignments.excluded.add(event.worker)
        effects = self._release(assignment, RELEASED[event.why])
        if event.why == "gone":
            self.tree.discard(event.worker)
        if event.why in ("gone", "declined"):
            effects.append(WorkerWanted())
        return effects

    def _assign(self, event: WorkerChanged) -> Sequence[Effect]:
        """Takes the worker, unless this has become impossible since it was chosen."""
        may_share = self.may_offload and event.worker not in self.assignments.given
        if self.wants_worker or (event.why == "beside" and may_share):
            return self.assignments.add(event, self.tree.prefix)
        return ()

    def _release(self, assignment: Assignment, why: str) -> list[Effect]:
        """Takes the request away from a worker; its candidates stay, since they are verified anyway."""
        self.tree.forget(assignment.epoch)
        return [*self.assignments.remove(assignment, why)]

    def _release_all(self, why: str) -> list[Effect]:
        effects: list[Effect] = []
        for assignment in reversed(list(self.assignments.given.values())):
            effects += self._release(assignment, why)
        return effects

    def _frame(self, event: FrameArrived, now: float) -> Sequence[Effect]:
        """Merges a frame of a present assignment; one of another worker or epoch is stale."""
        assignment = self.assignments.given.get(event.worker)
        if assignment is None or assignment.epoch != event.frame.epoch:
            return (FrameTaken("stale", event.worker),)

        self._rounds.deliver_outcome(self.policy)
        try:
            merged = self.tree.merge(assignment.epoch, event.frame, assignment.worker)
        except RemoteProtocolError as error:
            self.assignments.excluded.add(event.worker)
            return (FrameTaken("rejected", event.worker, error=error),)

        assignment.merged(merged)
        self.policy.received(merged, now)
        if merged.fresh:
            return (FrameTaken("used", event.worker, merged),)

        return (FrameTaken("stale", event.worker, merged),)

    # --- one round -----------------------------------------------------------------------------------------------

    def _verified(self, event: Verified, now: float) -> Sequence[Effect]:
        """Walks the verified tree and commits what the target chose."""
        self._rounds.deliver_outcome(self.policy)
        self.retries.alone = self.retries.count >= MAX_RETRIES
        try:
            taken, outcome = self._accept(event.tree, event.rows, now)
        except ClientError as error:
            return self._finish("error", refusal=error)
        except ConstraintError as error:
            return self._finish("error", str(error))

        self.assignments.took(self._rounds.span)

        # Workers are sent the tokens before anything else, since they draft on meanwhile.
        commits = self.assignments.commit(self.tree.prefix, taken.tokens, self._rounds.latest, outcome)
        finish = self._finish_of(taken.tokens)
        chosen = Chosen(taken.rows, taken.tokens, self._for_client(event.rows, taken, finish))
        if finish is None:
            wanted = self.assignments.useless(len(self.request.tokens))
            return [*commits, chosen, *wanted]

        return [*commits, chosen, *self._finish(finish)]

    def _for_client(self, rows: TargetRows, taken: Walk, finish: Finish | None) -> TokensEvent | None:
        """The round's tokens, without one that ends the text."""
        shown = taken.tokens
        if finish == "stop":
            shown = shown[:-1]
        if not shown or self.cancelled:
            return None

        reader = self.request.row_reader
        if reader is None:
            return TokensEvent(tuple(shown))

        readings = [reader.read(rows.logits(row), token) for row, token in zip(taken.rows, shown)]
        return TokensEvent(tuple(shown), readings)

    def _accept(self, flat: FlatTree, rows: TargetRows, now: float) -> tuple[Walk, Outcome]:
        """Commits the tokens that the target chose along the tree. Raises ConstraintError, ClientError."""
        choose = self.verification.at(flat, rows)
        constraint = self.request.constraint
        stops: frozenset[int] = frozenset()
        if not self.request.ignore_eos:
            stops = self.bounds.eos
        may_choose = ready_at(flat, constraint)
        likeliest = rows.argmax
        taken = walk(
            flat,
            choose,
            stop=stops.__contains__,
            limit=self.remaining,
            ready=lambda row: likeliest[row] != NOT_COMPUTED and may_choose(row),
        )

        # What the workers brought is judged against the tree as it was.
        for assignment in self.assignments.given.values():
            assignment.verified(flat, taken, self.tree.root)
        at_leaf = at_open_end(flat, taken) and not self._forbade(flat, taken.rows[-1])

        self.tree.advance(taken.tokens)
        self.verification.committed(taken.tokens)
        if constraint is not None:
            constraint.committed(taken.tokens)
        if self.first_token_at is None:
            self.first_token_at = now
        self.forced = ()
        if self._guide is not None and taken.tokens[-1] not in self.bounds.eos:
            self.forced = self._guide.propose(self.tree)

        emitted = len(taken.tokens)
        entropy: float | None = None
        if self.policy.needs_entropy(self.tree, emitted=emitted, at_leaf=at_leaf):
            entropy = rows.entropy(taken.rows[-1])
        outcome = Outcome(max(flat.depths), emitted, at_leaf, entropy, self.tree.root.position)
        self._rounds.ended(outcome, now)
        return taken, outcome

    def _forbade(self, flat: FlatTree, row: int) -> bool:
        """Whether the constraint forbade a candidate after this row, which was then a wrong one."""
        if self._guide is None:
            return False
        if row == 0:
            return self._guide.forbade(self.tree.root)
        return self._guide.forbade(flat.nodes[row - 1])

    def _finish_of(self, tokens: Sequence[int]) -> Finish | None:
        """Why the completion ends after these tokens, or None."""
        if self.cancelled:
            return "cancelled"
        if not self.request.ignore_eos and tokens[-1] in self.bounds.eos:
            return "stop"
        if self.remaining <= 0:
            return "length"

        return None

    # --- failures and ends ---------------------------------------------------------------------------------------

    def _failed(self, event: Failed) -> Sequence[Effect]:
        match event.scope:
            case "draft":
                return ()
            case "speculation":
                return self._decode_plainly(event.what)
        if event.scope == "own-pass" and self.retries.alone:
            return self._finish(
                "error",
                f"The target model failed on this request ({event.what}); please try again.",
            )

        self.retries.count += 1
        self.retries.alone = True
        return self._decode_plainly("a pass of the target model failed", slot=True)

    def _ended(self, event: Ended) -> Sequence[Effect]:
        if event.why == "error":
            return self._finish("error", event.error)
        self.cancelled = True
        if event.why == "left" and self.status is not Status.QUEUED:
            return ()  # it ends with its round
        return self._finish("cancelled")

    def _preempt(self) -> Sequence[Effect]:
        """Gives up slot, workers and local draft until it is admitted again; policy, candidates and draws stay."""
        if self.cancelled:
            return self._finish("cancelled")
        self._time.stop()
        self._read_again()
        return [*self._release_all("preempted"), Drop(slot=False)]

    def _read_again(self) -> None:
        """From the beginning, with what was emitted as part of the prompt."""
        self._enter(Turn.SLOT_LOST)
        self.reading = list(self.tree.prefix.tokens)
        self.prefilled = 0

    def _decode_plainly(self, why: str, *, slot: bool = False) -> Sequence[Effect]:
        """Gives up all speculation for the rest of the completion: fresh tree, no drafts, no worker. `slot`: it starts
        again in a fresh slot."""
        effects = [*self._release_all("moved"), Drop(slot)]
        for listener in self._listeners:
            listener.policy_ends(f"decoded plainly since {why}")

        self.policy = Plain()
        self.sources = None
        self.assignments.allowed = False
        self.tree = CandidateTree(self.tree.prefix.tokens)
        self.retries.plain = True
        self._guide = None
        if slot:
            self._read_again()
        return effects

    def _finish(
        self,
        finish: Finish,
        error: str | None = None,
        refusal: ClientError | None = None,
    ) -> Sequence[Effect]:
        self._enter(Turn.OVER)
        effects = self._release_all(finish)
        for listener in self._listeners:
            listener.policy_ends(None)
        return [*effects, Finished(finish, error, refusal)]
