"""What happens to a request (events), what follows from it (effects), and what is recorded beside both (notes).

This is the closed vocabulary of `generation.py`, and `Listener` is the seam for all that only records a request.

The messages are msgspec structs, which are made in a sixth of the time of frozen dataclasses: a round takes about
thirty. Those with a tag hold plain data only, so that a listener can store them as they are.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp
from typing import Literal, Protocol

from msgspec import Struct

from cloud_gateway.core.policies.policy import Action, Costs, LinkView
from cloud_gateway.core.requests.pace import NO_TIME, Span
from cloud_gateway.core.requests.request import Finish, TokensEvent
from cloud_gateway.core.sources.interface import Suggestion
from cloud_gateway.core.verify.accept import FlatTree, Walk
from cloud_gateway.core.verify.candidates import Merged
from cloud_gateway.core.verify.shared_noise import Rows as ChoiceRows
from edgespec.core.drafting.algorithm2 import Proposal
from edgespec.core.drafting.tree import Node
from edgespec.core.errors import ClientError, RemoteProtocolError
from edgespec.core.protocol.messages import ToWorker, Tree


class TargetRows(ChoiceRows, Protocol):
    """The target's result for one tree, as `cloud_gateway.models.target_model.Verified` has it."""

    def entropy(self, row: int) -> float: ...


class Status(enum.StrEnum):
    """The stage that a request is in."""

    QUEUED = "queued"
    """It has no slot: it waits for its first one, or for another one after it was preempted or a pass failed."""
    PREFILL = "prefill"
    DECODE = "decode"
    FINISHED = "finished"


# --- events ------------------------------------------------------------------------------------------------------


class Admitted(Struct, frozen=True, array_like=True, tag=True):
    """It was given a slot that already holds the first `reused` of its tokens."""

    reused: int


class Read(Struct, frozen=True, array_like=True, tag=True):
    """The target has read so many more tokens, in so many seconds."""

    tokens: int
    seconds: float = 0.0


WorkerChange = Literal["assigned", "beside", "none", "gone", "declined", "useless", "needed"]


class WorkerChanged(Struct, frozen=True, array_like=True, tag=True):
    """A worker drafts for it from now on, or no longer does.

    `assigned`: it is the only one; `beside`: it shares the request with those that have it. `none`: no worker may
    draft at present. `gone`: it left, paused or was revoked. `declined`: it will not draft for this request. `useless`:
    it brought nothing, and is not asked again. `needed`: another request takes it.
    """

    worker: str
    why: WorkerChange
    name: str = ""
    """The worker's, for people; with `none` the reason."""
    scope: bytes = b""
    """Scope of the worker's prefix cache, if it is assigned."""

    @property
    def assigns(self) -> bool:
        """Whether the worker is to draft for the request."""
        return self.why in ("assigned", "beside")


class FrameArrived(Struct, frozen=True):
    """A worker sent a tree for this request; it may be an earlier worker, or one that never had it."""

    worker: str
    frame: Tree


class Drafted(Struct, frozen=True):
    """The local draft has made its proposals below these leaves."""

    leaves: Sequence[Node]
    proposals: Sequence[Proposal]


class Verified(Struct, frozen=True):
    """A pass of the target over its tree succeeded."""

    tree: FlatTree
    rows: TargetRows


class Preempted(Struct, frozen=True, array_like=True, tag=True):
    """Its part of the KV cache goes to another request: it waits for a slot again, to go on where it is."""


class Failed(Struct, frozen=True, array_like=True, tag=True):
    """Something failed, and what in a few words.

    `pass`: a pass of the target over several requests; `own-pass`: over this one alone. `speculation`: something that
    its tokens can be chosen without. `draft`: the local draft, which does nothing for it from now on.
    """

    scope: Literal["pass", "own-pass", "speculation", "draft"]
    what: str
    worker: str | None = None
    """The worker whose data was being handled."""


class Ended(Struct, frozen=True, array_like=True, tag=True):
    """`left`: the client left, and it ends with its round, or at once where it waits. `stopped`: it ends now.
    `error`: it cannot go on, for the reason of one sentence."""

    why: Literal["left", "stopped", "error"]
    error: str | None = None


Event = Admitted | Read | WorkerChanged | FrameArrived | Drafted | Verified | Preempted | Failed | Ended


# --- effects -----------------------------------------------------------------------------------------------------


class Send(Struct, frozen=True):
    """A message for a worker."""

    worker: str
    body: ToWorker
    diverged: bool = False
    """The target left what this worker had drafted."""


class FrameTaken(Struct, frozen=True):
    """What became of a frame: `used`, `stale` or `rejected`."""

    kind: str
    worker: str
    merged: Merged | None = None
    """None if the request is not the worker's, or if the frame was invalid."""
    error: RemoteProtocolError | None = None
    """The worker broke the protocol: its link ends, and all its requests move on."""

    @property
    def useful(self) -> bool:
        """It shows a worker that is on the committed path, though perhaps nothing new."""
        return self.merged is not None and self.merged.useful

    @property
    def unknown_prefix(self) -> bool:
        """It named tokens that were never committed."""
        return self.merged is not None and not self.merged.prefix


@dataclass(slots=True)
class Assignment:
    """A worker that drafts for a request, and since which epoch."""

    worker: str
    epoch: int
    name: str
    """The worker's, for people."""
    audited: bool
    """Whether its candidates are compared with what they claim. Under a constraint they are not: it refutes candidates
    for reasons that no worker can know."""
    ready: bool = False
    """It has sent a candidate, so it has read the prompt."""
    frames: int = 0
    """Frames that brought candidates."""
    received: int = 0
    late: int = 0
    """Valid frames of this assignment, and those without a new candidate."""
    tokens: int = 0
    """Tokens that the target emitted since it was assigned."""
    checked: int = 0
    """Its candidates that a pass verified."""
    claimed: float = 0.0
    """Sum of the probabilities that it stated for candidates among which the target then chose."""
    accepted: int = 0
    """How many of those candidates the target chose."""
    rounds: int = 0
    """Rounds in which its candidates were verified or could have been."""
    brought: int = 0
    """Its candidates that the target emitted."""
    span: Span = NO_TIME
    """The rounds in which it drafted."""
    idle: int = 0
    """Rounds in a row without one."""
    share: tuple[int, int] = (0, 1)
    """Its place among the request's workers, and their number, as it was last sent."""

    def merged(self, merged: Merged) -> None:
        """Takes note of a frame of this worker. The first useful one shows that the worker has read the prompt."""
        self.received += 1
        self.late += not merged.fresh
        self.frames += bool(merged.fresh)
        if merged.useful and not self.ready:
            self.ready = True
            self.rounds = 0
            self.idle = 0

    def verified(self, flat: FlatTree, taken: Walk, root: Node) -> None:
        """Compares its candidates at each row where the target chose with the choice. `root`: of the candidate tree
        before the round."""
        chosen = dict(zip(taken.rows, taken.tokens, strict=True))
        candidates = [(row, node) for row, node in enumerate(flat.nodes, 1) if node.owner == self.worker]
        brought = sum([row in chosen for row, _ in candidates])
        self.tokens += len(taken.tokens)
        self.checked += len(candidates)

        if candidates or all(child.owner != self.worker for child in root.children.values()):
            self.rounds += 1
            self.brought += brought
            self.idle += 1
            if brought:
                self.idle = 0

        if not self.audited:
            return

        for row, node in candidates:
            token = chosen.get(flat.parents[row])
            if token is not None and node.parent is not None:
                self.claimed += min(1.0, exp(node.parent.cost - node.cost))
                self.accepted += token == node.token


class Released(Struct, frozen=True):
    """A worker no longer drafts for it; `given` has what it has brought."""

    given: Assignment
    reason: str


class WorkerWanted(Struct, frozen=True):
    """It may have a worker and has none, or one that is useless."""

    useless: str | None = None
    """That worker, which it keeps where there is no other."""


class Chosen(Struct, frozen=True):
    """The target keeps these rows of the tree just verified, the local draft is given the tokens, and the client the
    event, if any."""

    rows: Sequence[int]
    tokens: Sequence[int]
    event: TokensEvent | None


class Drop(Struct, frozen=True):
    """The local draft forgets it; with `slot` it needs a fresh slot too, in place of the one it has."""

    slot: bool


class Finished(Struct, frozen=True):
    """It is over: slot and local draft are free."""

    finish: Finish
    error: str | None = None
    refusal: ClientError | None = None
    """As of `DoneEvent`."""


Effect = Send | FrameTaken | Released | WorkerWanted | Chosen | Drop | Finished


# --- notes -------------------------------------------------------------------------------------------------------


class Spent(Struct, frozen=True):
    """Seconds spent on a request besides passes of the target."""

    kind: Literal["host", "draft", "reading", "source"]
    """`host`: outside the models. `draft`: `count` passes of the local draft. `reading`: its reading of the prompt,
    before the first token. `source`: the source `name` was given tokens or asked for candidates."""
    seconds: float = 0.0
    count: int = 0
    name: str = ""


class PromptSent(Struct, frozen=True):
    """A worker is sent the prompt while the request waits for a slot, as no assignment."""

    worker: str
    name: str


class WaitingFrame(Struct, frozen=True):
    """A frame of a worker that has the prompt of a request that waits: `used`, `stale` or `rejected`."""

    worker: str
    name: str
    kind: str


class PromptWithdrawn(Struct, frozen=True):
    """A worker that has the prompt of a request that waits is sent nothing more of it."""

    worker: str
    name: str
    reason: str
    frames: int
    """Its frames that brought candidates."""


Note = Spent | PromptSent | WaitingFrame | PromptWithdrawn
"""What is recorded of a request and changes nothing in it."""


# --- the seam ----------------------------------------------------------------------------------------------------


class Listener:
    """Records one request: accounting, and what a part records or shows of it, are each a listener and no more.

    The request (`Generation`) calls it on its driver's thread, right after what it reports. A listener may read the
    request that it was made for. It must not change it, block, or keep what it is given beyond the end. This base
    class ignores all calls, so that a listener defines only those that it needs.
    """

    def handled(self, event: Event, effects: Sequence[Effect], now: float) -> None:
        """An event was taken in, and these effects follow. Events after the end are left out."""

    def noted(self, note: Note, now: float) -> None:
        """Something happened that changes nothing in the request."""

    def decided(self, link: LinkView | None, costs: Costs, now: float, action: Action) -> None:
        """The policy was asked."""

    def suggested(
        self,
        source: str,
        suggestions: Sequence[Suggestion],
        proposed: int,
        why: str | None,
    ) -> None:
        """A source was asked, right before the policy is: the tree had room for `proposed` of its suggestions. `why`:
        the reason if it suggested nothing."""

    def guided(self, nodes: Sequence[Node], chosen: Sequence[Node]) -> None:
        """The constraint made `chosen` of `nodes`: without what it forbids, with what it forces."""

    def policy_ends(self, why: str | None) -> None:
        """The present policy will not be asked again; `why`: the reason if the request goes on by plain decoding."""


# --- statuses ----------------------------------------------------------------------------------------------------


class Turn(enum.Enum):
    """What an event may turn out to mean, besides what it is."""

    READ_ALL = "all its tokens are read"
    SLOT_LOST = "it has no slot any more"
    OVER = "it is over"


_ANY_TIME = (WorkerChanged, FrameArrived, Failed, Ended)

TABLE: Mapping[tuple[Status, type | Turn], Status] = {
    **{(status, kind): status for status in Status for kind in _ANY_TIME},
    **{(status, Turn.SLOT_LOST): Status.QUEUED for status in Status if status is not Status.FINISHED},
    **{(status, Turn.OVER): Status.FINISHED for status in Status if status is not Status.FINISHED},
    (Status.QUEUED, Admitted): Status.PREFILL,
    (Status.PREFILL, Read): Status.PREFILL,
    (Status.PREFILL, Turn.READ_ALL): Status.DECODE,
    (Status.PREFILL, Preempted): Status.QUEUED,
    (Status.DECODE, Drafted): Status.DECODE,
    (Status.DECODE, Verified): Status.DECODE,
    (Status.DECODE, Preempted): Status.QUEUED,
}
"""Status and event, or what the event turned out to mean -> the next status. An event without an entry is a fault of
the driver; after the end, what may still come from others changes nothing."""
