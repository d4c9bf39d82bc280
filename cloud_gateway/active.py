"""One request while the engine works on it, and what becomes of a verified tree. Lives on the engine's thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cloud_gateway.core.accept import Walk, walk
from cloud_gateway.core.actions import Action, Controller, Costs, LinkView, Outcome
from cloud_gateway.core.controller import Plain, reason
from cloud_gateway.core.flatten import FlatTree, flatten
from cloud_gateway.core.guide import GRAMMAR, Guide
from cloud_gateway.core.logprobs import token_logprob
from cloud_gateway.core.merge import LOCAL, CandidateTree, Merged
from cloud_gateway.core.request import Finish, GenerationRequest, TokenLogprob, Usage
from cloud_gateway.core.rounds import RoundBudget
from cloud_gateway.core.tape import Tape, TapedController, TapedTree
from cloud_gateway.core.verification import Verification
from cloud_gateway.scope import scope_for
from edgespec.core.drafting import Proposal
from edgespec.core.messages import MAX_TOKENS_PER_FRAME, Close, Commit, Open, Sampling, Tree
from edgespec.core.tree import Node

if TYPE_CHECKING:
    from cloud_gateway.core.estimators import StepCurve
    from cloud_gateway.stream import Stream
    from cloud_gateway.target import Target, Verified

OPEN_TOKENS = 4096
"""Token ids sent in the `Open` itself; the rest of a long prompt follows in `Commit`s."""


@dataclass(slots=True)
class Assignment:
    """The worker that drafts for a request, and since which epoch."""

    worker: str
    epoch: int
    name: str
    """The worker's, for people."""
    ready: bool = False
    """It has sent a candidate, so it has read the prompt."""
    frames: int = 0
    """Frames that brought candidates."""


@dataclass(slots=True, eq=False)
class Active:
    """A request from admission to its end."""

    id: int
    request: GenerationRequest
    stream: Stream
    controller: Controller
    offload: bool
    submitted: float
    context: int
    """Most tokens that a slot can hold."""
    verification: Verification
    rounds: RoundBudget
    told: Sampling
    """The sampling parameters as workers are told them: without the seed where they must not, or need not, know it."""
    usage: Usage = field(default_factory=Usage)
    slot: int = -1
    prefilled: int = 0
    """Tokens of `reading` whose keys and values the target holds; the last one is row 0 of the first verify."""
    reading: Sequence[int] = ()
    """What the slot is given to read: the prompt, and after a retry also what was emitted before."""
    retries: int = 0
    """Times that it was put into a fresh slot because a pass of the target had failed."""
    alone: bool = False
    """Its passes are its own until one succeeds: an earlier one, over several requests perhaps, has failed."""
    plain_since_fault: bool = False
    ended: bool = False
    cancelled: bool = False
    assignment: Assignment | None = None
    epoch: int = 0
    shunned: set[str] = field(default_factory=set)
    """Workers that declined or broke the protocol for this request."""
    tree: CandidateTree = field(init=False)
    admitted: float = 0.0
    first_token: float | None = None
    tape: Tape | None = None
    """Where the recorder is on: what becomes the request's trace."""
    local: bool = False
    """Whether the local draft holds this request; not when it has no room for it."""
    guide: Guide | None = None
    """For an answer with a constraint that helps to draft."""

    def __post_init__(self) -> None:
        self.tree = CandidateTree(self.request.tokens)
        self.reading = self.request.tokens
        self.usage.prompt_tokens = len(self.request.tokens)
        self.usage.policy = self.controller.name
        constraint = self.request.constraint
        if constraint is not None and self.verification.by_match and self.controller.name != "plain":
            self.guide = Guide(constraint)

    def record(self, tape: Tape, curve: StepCurve) -> None:
        """From here on the tree and the controller write down what they go through."""
        self.tape = tape
        self.tree = TapedTree(self.request.tokens, tape)
        self.controller = TapedController(self.controller, curve, tape)

    @property
    def prefilling(self) -> bool:
        """Whether prompt tokens are still to be read."""
        return self.prefilled < len(self.reading) - 1

    @property
    def remaining(self) -> int:
        """Answer tokens that may still be emitted."""
        return min(self.request.max_tokens - self.usage.completion_tokens, self.room)

    @property
    def room(self) -> int:
        """Tokens that the slot can still take."""
        return self.context - len(self.tree.prefix)

    def open(self, target: Target) -> None:
        """Claims a slot for all tokens so far. Raises what the target raises."""
        self.reading = list(self.tree.prefix.tokens)
        self.slot, self.prefilled = target.open(self.reading, self.request.cache_scope)

    def decide(self, link: LinkView | None, costs: Costs, now: float) -> Action:
        """What the policy wants next, within the bounds of a round."""
        return self.rounds.bound(self.controller.decide(self.tree, link, costs, now), self.tree, now)

    def decode_plainly(self, why: str) -> None:
        """Gives up all speculation for the rest of the answer: fresh tree, no drafts, no worker, no trace from here."""
        self.usage.fallbacks += self.controller.fallbacks
        self.usage.why = reason(self.controller) or self.usage.why
        self.usage.why_off = f"decoded plainly since {why}"
        if self.tape is not None:
            self.tape.stop()
        self.controller, self.guide, self.offload = Plain(), None, False
        self.tree = CandidateTree(self.tree.prefix.tokens)
        self.plain_since_fault = True

    # --- the worker's side ---------------------------------------------------------------------------------------

    def assign(self, worker: str, name: str = "") -> list[Open | Commit]:
        """Gives the request to a worker; returns the messages that tell it the whole prefix."""
        self.epoch += 1
        self.assignment = Assignment(worker, self.epoch, name or worker)
        prefix, scope = self.tree.prefix, scope_for(worker, self.request.cache_scope)
        opening = Open(self.id, self.epoch, len(prefix), prefix.tokens[:OPEN_TOKENS], self.told, scope)
        rest = range(OPEN_TOKENS, len(prefix), MAX_TOKENS_PER_FRAME)
        return [opening, *(self._continue(start, min(start + MAX_TOKENS_PER_FRAME, len(prefix))) for start in rest)]

    def _continue(self, start: int, end: int) -> Commit:
        prefix = self.tree.prefix
        return Commit(self.id, self.epoch, start, prefix.tokens[start:end], prefix.digest_at(end))

    def release(self, reason: str) -> Close | None:
        """Takes the request away from its worker; its candidates stay, since they are verified anyway."""
        if self.assignment is None:
            return None
        self.tree.forget(self.assignment.epoch)
        close = Close(self.id, self.assignment.epoch, reason)
        self.assignment = None
        return close

    def take(self, frame: Tree, now: float) -> Merged:
        """Merges a frame of the present assignment. Raises RemoteProtocolError for one that no honest worker sends."""
        assert self.assignment is not None
        self.usage.frames["received"] += 1
        merged = self.tree.merge(self.assignment.epoch, frame, self.assignment.worker)
        self.usage.frames["used" if merged.fresh else "stale"] += 1
        if merged.useful and not self.assignment.ready:
            self.assignment.ready = True
            self._note_ready(now)
        self.controller.received(merged, now)
        return merged

    def _note_ready(self, now: float) -> None:
        if self.epoch == 1 and self.first_token is not None:
            self.usage.before_worker_s = now - self.first_token
            self.usage.before_worker_tokens = self.usage.completion_tokens

    def add_local(self, leaf: Node, proposal: Proposal) -> None:
        """Candidates of the local draft below one leaf."""
        for token, cost in zip(proposal.tokens, proposal.costs, strict=True):
            if self.tree.add_local(leaf, token, cost, proposal.entropy) is None:
                return

    # --- one round -----------------------------------------------------------------------------------------------

    def select(self, nodes: Sequence[Node]) -> Sequence[Node]:
        """What of these to verify: near the end of the context only as many as there is room for, and what the
        constraint allows."""
        if len(nodes) > self.room:
            nodes = self.tree.best(self.room)
        return nodes if self.guide is None else self.guide.select(self.tree, nodes, self.room)

    def flatten(self, nodes: Sequence[Node]) -> FlatTree:
        """The tree to verify."""
        return flatten(self.tree.root, nodes)

    def accept(self, flat: FlatTree, result: Verified, eos: frozenset[int]) -> tuple[Walk, Outcome]:
        """Walks the verified tree and commits what the target chose. Raises ConstraintError."""
        stops: frozenset[int] = frozenset() if self.request.ignore_eos else eos
        choose = self.verification.at(flat, result)
        taken = walk(flat, choose, stop=stops.__contains__, limit=self.remaining)
        self._count(flat, taken)
        at_leaf = taken.at_leaf and not self._forbade(flat, taken.rows[-1])
        if isinstance(self.tree, TapedTree):
            self.tree.walked = [result.entropy(row) for row in taken.rows]
        self.tree.advance(taken.tokens)
        self.verification.committed(taken.tokens)
        if self.request.constraint is not None:
            self.request.constraint.committed(taken.tokens)
        if self.guide is not None and taken.tokens[-1] not in eos:
            self.guide.propose(self.tree)
        depth = max(flat.depths)
        entropy = result.entropy(taken.rows[-1])
        return taken, Outcome(depth, len(taken.tokens), at_leaf, entropy, self.tree.root.position)

    def time_round(self, now: float) -> None:
        """A round's tokens are there."""
        self.first_token = self.first_token or now
        self.usage.decode_s = now - self.first_token
        self.usage.total_s = now - self.admitted

    def round_ended(self, outcome: Outcome, now: float) -> None:
        """Tells the policy what became of its candidates."""
        self.rounds.verified()
        self.controller.verified(outcome, now)

    def _forbade(self, flat: FlatTree, row: int) -> bool:
        """Whether the constraint forbade a guess after this row, which was then a wrong guess."""
        return self.guide is not None and self.guide.forbade(flat.nodes[row - 1] if row else self.tree.root)

    def logprobs(self, taken: Walk, result: Verified) -> list[TokenLogprob] | None:
        """One for each token of the walk, where the request asked for them; fetches the rows' logits only then."""
        top = self.request.top_logprobs
        if top is None:
            return None
        return [token_logprob(result.logits(row), token, top) for row, token in zip(taken.rows, taken.tokens)]

    def finish_of(self, tokens: list[int], eos: frozenset[int]) -> Finish | None:
        """Why the answer ends after these tokens, or None."""
        if self.cancelled:
            return "cancelled"
        if not self.request.ignore_eos and tokens[-1] in eos:
            return "stop"
        return "length" if self.remaining <= 0 else None

    def _count(self, flat: FlatTree, taken: Walk) -> None:
        """Credits every verified and every accepted candidate to its source."""
        usage = self.usage
        usage.rounds += 1
        usage.completion_tokens += len(taken.tokens)
        for node in flat.nodes:
            source = self._source(node)
            usage.drafted[source] = usage.drafted.get(source, 0) + 1
        for row in taken.rows[1:]:
            source = self._source(flat.nodes[row - 1])
            usage.accepted[source] = usage.accepted.get(source, 0) + 1

    def _source(self, node: Node) -> str:
        owner = self.tree.owner.get(node)
        return owner if owner in (LOCAL, GRAMMAR) else "worker"
