"""What happens to a request (inputs) and what follows from it (outputs): the closed vocabulary of `generation.py`.

They are msgspec structs, which are made in a sixth of the time of frozen dataclasses: a round takes about thirty.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from cloud_gateway.core.policies.actions import Action, Costs, LinkView
from cloud_gateway.core.requests.request import Finish, TokensEvent
from cloud_gateway.core.sources.interface import Suggestion
from cloud_gateway.core.verify.flatten import FlatTree
from edgespec.core.drafting.algorithm2 import Proposal
from edgespec.core.drafting.tree import Node
from edgespec.core.errors import RemoteProtocolError
from edgespec.core.protocol.messages import ToWorker, Tree


class Rows(Protocol):
    """The target's result for one tree, as `cloud_gateway.models.target_model.Verified` has it."""

    @property
    def argmax(self) -> Sequence[int]: ...
    def entropy(self, row: int) -> float: ...
    def logits(self, row: int) -> NDArray[np.float32]: ...


class Status(enum.Enum):
    """Where a request stands."""

    QUEUED = "queued"
    """It has no slot: it waits for its first one, or for another one after it was preempted or a pass failed."""
    PREFILL = "prefill"
    DECODE = "decode"
    FINISHED = "finished"


# --- inputs ------------------------------------------------------------------------------------------------------


class Admitted(Struct, frozen=True):
    """It was given a slot that already holds the first `reused` of its tokens."""

    reused: int


class Prefilled(Struct, frozen=True):
    """The target has read so many more tokens, in so many seconds."""

    tokens: int
    seconds: float = 0.0


class Assigned(Struct, frozen=True):
    """A worker was chosen to draft for it; `scope` is that of the worker's prefix cache."""

    worker: str
    name: str = ""
    scope: bytes = b""
    beside: bool = False
    """It shares the request with the workers that have it; otherwise it is the only one."""


class NoWorker(Struct, frozen=True):
    """None may draft for it at present, and why."""

    why: str


class FrameArrived(Struct, frozen=True):
    """A worker sent a tree for this request; it may be an earlier worker, or one that never had it."""

    worker: str
    frame: Tree


class WorkerGone(Struct, frozen=True):
    """A worker went, paused or was revoked."""

    worker: str
    why: str = ""


class Declined(Struct, frozen=True):
    """A worker will not draft for this request."""

    worker: str
    request: int
    why: str = ""


class Withdrawn(Struct, frozen=True):
    """One of several workers is needed by another request, or another one takes its place."""

    worker: str
    useless: bool = False
    """It brought nothing, and is not asked again for this request."""


class Drafted(Struct, frozen=True):
    """The local draft has made its proposals below these leaves."""

    leaves: Sequence[Node]
    proposals: Sequence[Proposal]


class LocalWork(Struct, frozen=True):
    """The local draft has worked for it, catch-up included."""

    passes: int
    seconds: float
    reading: bool = False
    """It read the prompt, before the first token."""


class Asked(Struct, frozen=True):
    """A source without a draft model was given tokens, or asked for candidates, which took so many seconds."""

    source: str
    seconds: float


class NoLocalDraft(Struct, frozen=True):
    """The local draft does nothing for it from now on, and why."""

    why: str


class HostTime(Struct, frozen=True):
    """The gateway spent so many seconds on it outside the models."""

    seconds: float


class Wrote(Struct, frozen=True):
    """A worker writes an answer while the request waits: it is given the prompt, or has sent so many frames."""

    worker: str
    name: str
    frames: int = 0


class Verified(Struct, frozen=True):
    """A pass of the target over its tree succeeded."""

    tree: FlatTree
    rows: Rows


class PassFailed(Struct, frozen=True):
    """A pass of the target in which it took part failed; `alone`: it was the only one in it."""

    alone: bool
    what: str


class Preempted(Struct, frozen=True):
    """Its part of the KV cache goes to another request: it waits for a slot again, to go on where it is."""


class SpeculationFailed(Struct, frozen=True):
    """Something in speculating for it failed; its tokens can be chosen without."""

    why: str
    worker: str | None = None
    """The worker whose data was being handled."""


class Ended(Struct, frozen=True):
    """It cannot go on, for the reason of one sentence."""

    error: str


class Cancelled(Struct, frozen=True):
    """The client left: it ends with its round, or at once where it waits."""


class Stopped(Struct, frozen=True):
    """It ends now: the gateway stops, or the client left and no round is under way."""


Input = (
    Admitted | Prefilled | Assigned | NoWorker | FrameArrived | WorkerGone | Declined | Withdrawn | Drafted | LocalWork
    | Asked | NoLocalDraft | HostTime | Wrote | Verified | Preempted | PassFailed | SpeculationFailed | Ended
    | Cancelled | Stopped
)  # fmt: skip
SPENT = (Asked, HostTime, LocalWork, NoLocalDraft, Wrote)
"""Inputs that are booked and change nothing else, so that no trace holds them."""


# --- outputs -----------------------------------------------------------------------------------------------------


class Send(Struct, frozen=True):
    """A message for a worker."""

    worker: str
    body: ToWorker


class Diverged(Struct, frozen=True):
    """The target left what this worker had drafted."""

    worker: str


class FrameTaken(Struct, frozen=True):
    """What became of a frame: `used`, `stale` or `rejected`. `unknown_prefix`: it named tokens never committed."""

    kind: str
    worker: str
    unknown_prefix: bool = False
    useful: bool = False
    """It shows a worker that is on the committed path, though perhaps nothing new."""


class Punish(Struct, frozen=True):
    """The worker broke the protocol: its link ends, and all its requests move on."""

    worker: str
    error: RemoteProtocolError
    request: int


class Released(Struct, frozen=True):
    """A worker no longer drafts for it; `frames` of its frames brought candidates.

    Of candidates among which the target chose, `claimed` were to be accepted by the stated probabilities, and
    `accepted` were.
    """

    worker: str
    name: str
    reason: str
    frames: int
    claimed: float = 0.0
    accepted: int = 0
    rounds: int = 0
    """Passes that the worker could have saved."""
    brought: int = 0
    """Its candidates that the target emitted."""


class WorkerWanted(Struct, frozen=True):
    """It may have a worker and has none, or one that is useless."""

    useless: str | None = None
    """That worker, which it keeps where there is no other."""


class Keep(Struct, frozen=True):
    """The target keeps these rows of the tree just verified, and the local draft learns the tokens."""

    rows: Sequence[int]
    tokens: Sequence[int]


class Emit(Struct, frozen=True):
    """Tokens for the client."""

    event: TokensEvent


class Reopen(Struct, frozen=True):
    """It needs a fresh slot in place of the one it has, and no local draft."""


class DropDraft(Struct, frozen=True):
    """The local draft forgets it."""


class Finished(Struct, frozen=True):
    """It is over: slot and local draft are free."""

    finish: Finish
    error: str | None = None


Output = (
    Send | Diverged | FrameTaken | Punish | Released | WorkerWanted | Keep | Emit | Reopen | DropDraft | Finished
)  # fmt: skip


class Listener(Protocol):
    """Is given what goes over the machine's boundary, right after it did (core/trace/record.py)."""

    def handled(self, step: Input, outputs: Sequence[Output], now: float) -> None:
        """An input was taken in; those that only book time are left out, and what comes after the end."""

    def decided(self, link: LinkView | None, costs: Costs, now: float, action: Action) -> None:
        """The policy was asked."""

    def suggested(self, source: str, suggestions: Sequence[Suggestion]) -> None:
        """A source put candidates into the tree, right before the policy was asked."""

    def guided(self, nodes: Sequence[Node], chosen: Sequence[Node]) -> None:
        """The constraint made `chosen` of `nodes`: without what it forbids, with what it forces."""

    def proposed(self, forced: Sequence[Node]) -> None:
        """The constraint forced these after the tokens of the pass that is being taken in."""


_MOVING: frozenset[Status] = frozenset({Status.PREFILL, Status.DECODE})
_SPENT_RUNNING = tuple(kind for kind in SPENT if kind is not Wrote)  # answers are written while it waits
_ABOUT_WORKERS = (Assigned, NoWorker, FrameArrived, WorkerGone, Declined, Withdrawn)
_LATE: tuple[type, ...] = (
    FrameArrived, WorkerGone, Declined, Withdrawn, *SPENT, SpeculationFailed, Cancelled, Ended,
)  # fmt: skip
"""What may still come from others when a request is over: it changes nothing."""

TABLE: dict[Status, dict[type, frozenset[Status]]] = {
    Status.QUEUED: {
        Admitted: _MOVING,
        Cancelled: frozenset({Status.FINISHED}),
        PassFailed: frozenset({Status.QUEUED, Status.FINISHED}),
        SpeculationFailed: frozenset({Status.QUEUED}),
        FrameArrived: frozenset({Status.QUEUED}),
        WorkerGone: frozenset({Status.QUEUED}),
        Declined: frozenset({Status.QUEUED}),
        Withdrawn: frozenset({Status.QUEUED}),
        **dict.fromkeys(SPENT, frozenset({Status.QUEUED})),
        Ended: frozenset({Status.FINISHED}),
        Stopped: frozenset({Status.FINISHED}),
    },
    Status.PREFILL: {
        Prefilled: _MOVING,
        **dict.fromkeys(_ABOUT_WORKERS, frozenset({Status.PREFILL})),
        **dict.fromkeys(_SPENT_RUNNING, frozenset({Status.PREFILL})),
        **dict.fromkeys((SpeculationFailed, Cancelled), frozenset({Status.PREFILL})),
        **dict.fromkeys((PassFailed, Preempted), frozenset({Status.QUEUED, Status.FINISHED})),
        Ended: frozenset({Status.FINISHED}),
        Stopped: frozenset({Status.FINISHED}),
    },
    Status.DECODE: {
        **dict.fromkeys(_ABOUT_WORKERS, frozenset({Status.DECODE})),
        **dict.fromkeys(_SPENT_RUNNING, frozenset({Status.DECODE})),
        **dict.fromkeys((SpeculationFailed, Cancelled, Drafted), frozenset({Status.DECODE})),
        Verified: frozenset({Status.DECODE, Status.FINISHED}),
        **dict.fromkeys((PassFailed, Preempted), frozenset({Status.QUEUED, Status.FINISHED})),
        Ended: frozenset({Status.FINISHED}),
        Stopped: frozenset({Status.FINISHED}),
    },
    Status.FINISHED: dict.fromkeys(_LATE, frozenset({Status.FINISHED})),
}
"""Which inputs a request takes in each status, and where they may lead. Any other is a fault of the driver."""
