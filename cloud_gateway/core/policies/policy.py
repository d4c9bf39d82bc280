"""What a policy sees, what it can ask for and what it keeps: the vocabulary of engine, simulator and policies.

Pure: time comes in, a decision with a deadline goes out. Seconds and nats throughout. Structs as in requests/events.py.

A draft's match rate, a worker's pace and the length of answers differ little between answers of one kind, and an answer
of twenty tokens is over before they could be learnt again. So `Memory` keeps what policies learnt from earlier ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct

from edgespec.core.drafting.tree import Node
from edgespec.core.numbers import interpolate

if TYPE_CHECKING:  # the commands read `at` from here, and must not wait for numpy
    from cloud_gateway.core.verify.candidates import CandidateTree, Merged
    from edgespec.core.drafting.algorithm2 import Proposal


class Verify(Struct, frozen=True):
    """Run the target over the root and these candidates; with none it is a plain decoding step."""

    nodes: Sequence[Node]


class Draft(Struct, frozen=True):
    """One pass of the local draft model over these leaves."""

    leaves: Sequence[Node]
    width: int = 1
    """Most children that each leaf gets."""


class CatchUp(Struct, frozen=True):
    """One limited batch of the local draft's KV catch-up (WANSpec section 4.5)."""

    tokens: int = 0
    """Most tokens to read; 0: one full batch (`catch_up_batch`)."""


class Wait(Struct, frozen=True):
    """Nothing is worth doing before `until`, unless a frame arrives."""

    until: float


Action = Verify | Draft | CatchUp | Wait

Points = tuple[tuple[int, float], ...]
"""A curve of step times: (leaves, seconds), in rising order of leaves."""
MAX_REMAINING = 1 << 30
"""Stands for an answer whose length nobody limits; an integer, so that any format can hold it."""


def at(points: Points, leaves: int) -> float:
    """Seconds of a step over so many leaves; most often one of those measured."""
    for measured, seconds in points:
        if measured == leaves:
            return seconds
    return interpolate(dict(points), leaves)


class Costs(Struct, frozen=True):
    """What the gateway's passes are expected to take, as measured."""

    verify_s: Callable[[int], float]
    """Seconds of a target pass over this many rows in total (candidates + 1, and `other_rows`)."""
    local_step_s: float | None = None
    """A local draft step with nothing to catch up; None: there is no local draft."""
    local_backlog_s: float = 0.0
    """Time to evaluate the committed tokens that the local draft has not seen."""
    batch_backlog_s: float = 0.0
    """Time of the largest single catch-up batch."""
    local_leaves: int = 16
    """Most leaves of a local step."""
    local_points: Points = ()
    """The local step's measured curve; empty: as `local_step_s` at any number of leaves."""
    local_token_s: float = 0.0
    """Seconds to read one token of the backlog in a batch."""
    other_rows: int = 0
    """Rows that other requests are expected to put into the same target pass."""
    sharers: int = 0
    """Other requests that decode in the same passes, and wait for whatever this one adds to them."""
    waiting: int = 0
    """Other requests whose prompts are being read: they wait as well while the local draft reads for this one."""
    together: int = 0
    """Other requests that draft in the same step if this one does, and put as many candidates into the pass."""
    rows_s: tuple[float, ...] = ()
    """What a first, second, … candidate of each of them adds to the pass, divided by their number; empty: alone."""
    paused_s: float = 0.0
    """Seconds since the gateway's start in which prompts were read between passes: no policy's doing."""
    probe: tuple[int, float] | None = None
    """A number of rows to try, and the least seconds that a pass over them can take (`StepCurve.probe`)."""
    remaining: int = MAX_REMAINING
    """Tokens that may still be emitted for this request."""

    def draft_s(self, leaves: int) -> float:
        """Seconds of a local step over this many leaves, without catch-up; infinite without a local draft."""
        if self.local_step_s is None:
            return float("inf")
        if self.local_points:
            return at(self.local_points, leaves)
        return self.local_step_s

    @property
    def reading_s(self) -> float:
        """Time to read the backlog, in that of those that share passes: all others wait for it."""
        return self.local_backlog_s * (1 + self.sharers + self.waiting) / (1 + self.sharers)

    @property
    def local_s(self) -> float:
        """The next local draft step, catch-up included; infinite without a local draft."""
        if self.local_step_s is None:
            return float("inf")
        return self.local_step_s + self.local_backlog_s


class LinkView(Struct, frozen=True):
    """The gateway's estimates of the worker that drafts for a request."""

    rtt_s: float
    rtt_high_s: float
    """A round trip that few exceed."""
    step_s: float
    """Td at the worker."""
    ready: bool
    """Whether the worker has drafted anything for this request yet; before, it is still reading the prompt."""


class Outcome(Struct, frozen=True):
    """One verify pass, as the controller needs to know it."""

    depth: int
    """Candidate tokens on the longest path that was verified."""
    emitted: int
    at_leaf: bool
    """The walk ended where no candidate children were known: whether the next draft token matches is unknown."""
    entropy: float | None
    """Of the target's distribution for the last token emitted; None if the policy did not need it."""
    position: int = -1
    """Index in prompt + answer of that token."""


class LearntLimit(Struct, frozen=True):
    """The entropy of the target beyond which waiting for the worker did not pay, as policy `adaptive` learnt it."""

    nats: float | None
    """At the latest open leaf (a token that nobody had proposed); None: waiting paid at every entropy."""
    leaves: int
    """Open leaves at which a worker might have been on the target's path."""
    above: int
    """Those of them whose entropy was above the limit."""


Learnt = dict[str, list[float]]
"""Named lists of numbers, as `Adaptive.state` makes them."""
Kind = tuple[str, int, tuple[str, ...]]
"""Answers of one kind teach each other."""
MAX_KEPT = 64
"""Pairs of worker and kind; the one used longest ago is dropped."""
WARM_TEMPERATURE = 0.7
"""From here on an answer counts as sampled freely; chat clients ask for 0, or for 0.7 and more."""


def temperature_class(temperature: float) -> int:
    """0 greedy, 1 cool, 2 warm: drafts match the target less the warmer it samples."""
    if temperature <= 0:
        return 0
    return 1 if temperature < WARM_TEMPERATURE else 2


def kind_of(policy: str, temperature: float, sources: Iterable[str]) -> Kind:
    """Policy, temperature class, and which sources help: beside `lookup` a draft is worth less than without it."""
    return policy, temperature_class(temperature), tuple(sorted(sources))


class Memory:
    """Keeps the latest state per (worker, kind). Readers on other threads see one whole version."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, Kind], Learnt] = {}

    def keep(self, worker: str, kind: Kind, learnt: Learnt) -> None:
        """An answer ended; `worker` is empty where none drafted for it."""
        others = [(key, state) for key, state in self._kept.items() if key != (worker, kind)]
        self._kept = {**dict(others[1 - MAX_KEPT :]), (worker, kind): learnt}

    def recall(self, workers: Iterable[str], kind: Kind) -> Learnt | None:
        """The latest state of any of these workers, else of answers without one; None where nothing is kept."""
        wanted = set(workers) or {""}
        kept = reversed(self._kept.items())
        return next((state for (worker, of), state in kept if of == kind and worker in wanted), None)


class Policy:
    """One request's policy. `decide` may be called at any time and as often as wanted."""

    __slots__ = ()
    name: ClassVar[str]
    asks_workers: ClassVar[bool] = True
    """Whether workers draft for its requests."""
    uses_k: ClassVar[bool] = False
    """Whether it drafts to the depth `PolicySettings.k`."""
    uses_phi: ClassVar[bool] = False
    """Whether it compares entropies with `PolicySettings.phi`."""
    uses_sources: ClassVar[bool] = False
    """Whether the sources of candidates that settings and requests name put theirs into its tree."""
    fallbacks: int = 0
    """Times that it began to draft at the gateway while a worker drafted too."""
    why: str | None = None
    """Why it last drafted at the gateway, in words for the client; None if it never did, or does not say."""
    change: tuple[str, str] | None = None
    """The guard's new mode and its reason, if the latest decision changed it (guard.py)."""
    learnt_phi: LearntLimit | None = None
    """The limit on the entropy that it learnt; None if it learns none, or no token called for it."""

    def decide(self, tree: CandidateTree, link: LinkView | None, costs: Costs, now: float) -> Action:
        """What to do next. `link` is None while no worker drafts for this request."""
        raise NotImplementedError

    def withdrawn(self) -> None:
        """The draft pass of the latest decision is not made: it is asked again, at another price or after a fault."""

    def priced(self, leaves: Sequence[Node], proposals: Sequence[Proposal]) -> Sequence[Proposal]:
        """What the local draft proposes below these leaves, with the costs that its candidates have in the tree."""
        return proposals

    def received(self, merged: Merged, now: float) -> None:
        """A frame was merged."""

    def verified(self, outcome: Outcome, now: float) -> None:
        """A verify pass ended and its tokens were sent."""

    def needs_entropy(self, tree: CandidateTree, *, emitted: int, at_leaf: bool) -> bool:
        """Whether `Outcome.entropy` of the walk that just ended can change a decision: it takes a pass over the
        vocabulary. `tree`: with the emitted tokens committed."""
        return False

    def reads_prompt(self, costs: Costs, *, worker: bool) -> bool:
        """Whether the local draft reads the prompt before the first token, with what is left to read in `costs`;
        `worker`: whether one drafts for the request."""
        return False

    def why_not_local(self, *, drafted: bool) -> str | None:
        """Why the local draft made no pass in the latest round that had a use for one; None if it made one. `drafted`:
        whether it made any for the request."""
        if drafted:
            return None
        return f"policy {self.name} did not ask it"

    def resume(self, learnt: Learnt) -> None:
        """Starts with what earlier completions of the same kind taught (`state`); before the first decision."""

    def state(self) -> Learnt | None:
        """What the next completion of this kind starts with, as plain data; None if it learns nothing."""
        return None


MIN_BATCH = 4
"""Tokens of a catch-up batch, however fast the target is: a batch of one costs about as much as one of four."""
WIDTHS = (1, 2, 4, 8, 16)
"""Leaves of a request in a step of which a policy is given the time."""
MIN_TOKEN_S = 1e-6
"""Seconds per token of a batch, where none has been measured."""


def catch_up_batch(verify_s: Callable[[int], float], token_s: float) -> int:
    """Tokens of one catch-up batch: as many as take about one target step, so that no gap is much longer."""
    return max(MIN_BATCH, int(verify_s(1) / max(token_s, MIN_TOKEN_S)))


def draft_costs(
    verify_s: Callable[[int], float], step_s: float, backlog: int, token_s: float, leaves: int, points: Points = ()
) -> Costs:
    """`backlog`: committed tokens that the draft has not read, besides the one that its next step evaluates anyway.
    `points`: seconds of a step by its leaves, where measured."""
    batch_s = catch_up_batch(verify_s, token_s) * token_s
    return Costs(verify_s, step_s, backlog * token_s, batch_s, leaves, points, token_s)
