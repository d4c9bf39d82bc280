"""A request's usage, folded from events, effects and notes, and the engine's totals.

`Account` is the listener that every request has. Only it writes the request's `Usage`, and only `FrameLedger` counts
frames. Nothing that a request decides depends on either.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from cloud_gateway.core.policies.policy import Action, Costs, LinkView, Policy
from cloud_gateway.core.requests.events import (
    Admitted,
    Chosen,
    Effect,
    Event,
    Failed,
    FrameArrived,
    FrameTaken,
    Listener,
    Note,
    Preempted,
    PromptSent,
    PromptWithdrawn,
    Read,
    Spent,
    Status,
    Verified,
    WaitingFrame,
    WorkerChanged,
)
from cloud_gateway.core.requests.request import GenerationRequest, Usage, added
from cloud_gateway.core.sources.interface import Suggestion
from cloud_gateway.core.verify.accept import FlatTree
from cloud_gateway.core.verify.guide import AT_GATEWAY, GRAMMAR
from edgespec.core.drafting.tree import Node
from edgespec.core.protocol.messages import Tree

WORKERS_COUNTS = ("frames", "evaluated", "fresh", "verified", "accepted")


class FrameLedger:
    """Frames of workers: `received`, and what became of them: `used`, `stale` or `rejected`.

    A request's ledger also counts into the gateway's. Usage, totals and metrics read `counts`; nothing else counts.
    """

    __slots__ = ("_whole", "counts")

    def __init__(self, whole: FrameLedger | None = None) -> None:
        """`whole`: the gateway's, for a request's ledger."""
        self._whole = whole
        self.counts = {"received": 0, "used": 0, "stale": 0, "rejected": 0}

    def count(self, kind: str) -> None:
        """One frame more that was received, and what became of it."""
        self.counts["received"] += 1
        self.counts[kind] += 1
        if self._whole is not None:
            self._whole.count(kind)


@dataclass(frozen=True, slots=True)
class Submission:
    """What the account of a request begins with."""

    submitted: float = 0.0
    """A moment of the driver's clock, in seconds."""
    verification: str = "shared-noise"
    why_off: str | None = None
    """Why no worker may draft; None if workers may."""
    frames: FrameLedger = field(default_factory=FrameLedger)
    """Of all requests."""


class Accounted(Protocol):
    """The request, as far as its account reads it."""

    @property
    def request(self) -> GenerationRequest: ...

    @property
    def policy(self) -> Policy: ...

    @property
    def status(self) -> Status: ...

    def own_time(self, now: float) -> float:
        """The request's own time at a moment of the driver's clock, in seconds."""


class Account(Listener):
    """Folds events, effects and rounds into one request's usage.

    Times of the usage are the request's own (`Generation.own_time`), which stands still while it is preempted. Times
    in the queue are the driver's.
    """

    def __init__(self, generation: Accounted, submission: Submission) -> None:
        self._generation = generation
        self._frames = FrameLedger(submission.frames)
        self.submitted = submission.submitted
        self.usage = Usage(
            prompt_tokens=len(generation.request.tokens),
            policy=generation.policy.name,
            verification=submission.verification,
            why_off=submission.why_off,
            frames=self._frames.counts,
        )
        self._first_token: float | None = None
        self._read: float | None = None
        """When target and local draft had read the prompt; reading after the first token is a part of decoding."""
        self._admitted: float | None = None
        self._preempted: float | None = None
        self._names: dict[str, str] = {}
        """Names of workers by their ids, of all that were assigned."""
        self._ready = False
        """A worker has sent a useful frame."""

    # --- Listener ------------------------------------------------------------------------------------------------

    def handled(self, event: Event, effects: Sequence[Effect], now: float) -> None:
        match event:
            case FrameArrived() | Verified():
                self._took(event, effects, self._generation.own_time(now))
            case Admitted(reused):
                self._waited(reused, now)
                self._prompt_read(now)
            case Read(_, seconds):
                self.usage.times.prefill_s += seconds
                self._prompt_read(now)
            case Preempted():
                self._preempted = now
            case WorkerChanged():
                self._worker_changed(event, taken=bool(effects))
            case Failed("draft", what):
                self.usage.why_not_local = what
            case Failed("speculation", _, str()):  # a frame led to a fault before it was counted
                self._frames.count("rejected")

    def noted(self, note: Note, now: float) -> None:
        match note:
            case Spent():
                self._spent(note, now)
            case PromptSent(worker, name):
                self._assigned(worker, name)
            case WaitingFrame(_, name, kind):
                self._frames.count(kind)
                self.usage.by_worker[name]["frames"] += kind != "rejected"
            case PromptWithdrawn():
                pass  # it stays among the workers that were given the prompt

    def decided(self, link: LinkView | None, costs: Costs, now: float, action: Action) -> None:
        count_guard(self.usage, self._generation.policy)

    def suggested(
        self,
        source: str,
        suggestions: Sequence[Suggestion],
        proposed: int,
        why: str | None,
    ) -> None:
        counts = self._source(source)
        counts["proposed"] += proposed
        counts["why"] = why

    def policy_ends(self, why: str | None) -> None:
        add_policy(self.usage, self._generation.policy)
        if why is not None:
            self.usage.why_off = why
            self.usage.why_not_local = why

    # --- times ---------------------------------------------------------------------------------------------------

    def _waited(self, reused: int, now: float) -> None:
        """It has a slot. Only the first one is given for the prompt."""
        times = self.usage.times
        if self._admitted is None:
            self._admitted = self._generation.own_time(now)
            times.queued_s = now - self.submitted
            self.usage.cached_tokens = reused
            return

        if self._preempted is not None:
            times.queued_s += now - self._preempted
        self._preempted = None

    def _prompt_read(self, now: float) -> None:
        """Notes the time at which the target had read the prompt."""
        if self._generation.status is Status.DECODE:
            self._decodes(self._generation.own_time(now))

    def _decodes(self, own_time: float) -> None:
        if self._first_token is None:
            self._read = own_time

    def _spent(self, spent: Spent, now: float) -> None:
        times = self.usage.times
        match spent.kind:
            case "host":
                times.host_s += spent.seconds
            case "draft":
                self.usage.local_draft_passes += spent.count
                times.local_s += spent.seconds
            case "reading":
                times.prefill_s += spent.seconds
                self._decodes(self._generation.own_time(now))
            case "source":
                self._source(spent.name)["seconds"] += spent.seconds

    # --- workers, sources and candidates -------------------------------------------------------------------------

    def _took(self, event: FrameArrived | Verified, effects: Sequence[Effect], own_time: float) -> None:
        for effect in effects:
            if isinstance(event, Verified) and isinstance(effect, Chosen):
                self._chosen(event.tree, effect, own_time)
            elif isinstance(event, FrameArrived) and isinstance(effect, FrameTaken):
                self._frame(effect, event.frame, own_time)

    def _worker_changed(self, event: WorkerChanged, *, taken: bool) -> None:
        """`taken`: whether the request took the worker, or lost it."""
        if event.why == "none":
            self.usage.why_off = event.name
        elif event.assigns and taken:
            self._assigned(event.worker, event.name or event.worker)

    def _assigned(self, worker: str, name: str) -> None:
        """A worker of this id and name reads the prompt."""
        self.usage.why_off = None
        self._names[worker] = name
        self.usage.by_worker.setdefault(name, dict.fromkeys(WORKERS_COUNTS, 0))

    def _frame(self, taken: FrameTaken, frame: Tree, own_time: float) -> None:
        self._frames.count(taken.kind)
        if taken.merged is None:
            return

        counts = self.usage.by_worker[self._names[taken.worker]]
        counts["frames"] += 1
        counts["evaluated"] += len(set(frame.parents))
        counts["fresh"] += taken.merged.fresh

        if not self._ready and taken.useful:
            self._ready = True
            if self._first_token is not None and self._read is not None:
                self.usage.times.before_worker_s = own_time - self._read
                self.usage.before_worker_tokens = self.usage.completion_tokens

    def _source(self, name: str) -> dict[str, Any]:
        if name not in self.usage.sources:
            self.usage.sources[name] = {
                "proposed": 0,
                "verified": 0,
                "accepted": 0,
                "seconds": 0.0,
                "why": None,
            }
        return self.usage.sources[name]

    def _chosen(self, flat: FlatTree, chosen: Chosen, own_time: float) -> None:
        """Credits every verified and every accepted candidate to its source."""
        usage = self.usage
        usage.rounds += 1
        usage.undrafted_rounds += bool(flat.nodes) and not any(_by_model(node) for node in flat.nodes)
        usage.completion_tokens += len(chosen.tokens)
        self._credit(flat.nodes, usage.drafted, "verified")
        self._credit([flat.nodes[row - 1] for row in chosen.rows[1:]], usage.accepted, "accepted")

        if self._first_token is None:
            self._first_token = own_time
        usage.times.total_s = own_time - (self._admitted or 0.0)
        usage.times.decode_s = usage.times.total_s
        if self._read is not None:
            usage.times.decode_s = own_time - self._read

    def _credit(self, nodes: Sequence[Node], counts: dict[str, int], what: str) -> None:
        owners = Counter([(node.owner, node.evidence is None or node.drafted) for node in nodes])
        for (owner, drafted), count in owners.items():
            source = owner
            if drafted and owner not in AT_GATEWAY:
                source = "worker"
            counts[source] = counts.get(source, 0) + count
            if source == "worker" and owner in self._names:
                self.usage.by_worker[self._names[owner]][what] += count

        # A candidate that several sources proposed is credited to each of them.
        for node in nodes:
            for name in node.evidence or ():
                self.usage.sources[name][what] += 1


def count_guard(usage: Usage, policy: Policy) -> None:
    """Counts the guard's mode if the latest decision changed it."""
    if policy.change is not None:
        mode, why = policy.change
        reasons = usage.guard.setdefault(mode, {})
        reasons[why] = reasons.get(why, 0) + 1


def add_policy(usage: Usage, policy: Policy) -> None:
    """Adds the figures of a policy that decides no more."""
    usage.fallbacks += policy.fallbacks
    usage.phi = policy.learnt_phi or usage.phi
    usage.why = policy.why or usage.why
    usage.why_not_local = usage.why_not_local or policy.why_not_local(drafted=usage.local_draft_passes > 0)


def _by_model(node: Node) -> bool:
    return node.drafted and node.owner != GRAMMAR


@dataclass(slots=True)
class Stats:
    """Totals since the start, for metrics and benchmarks. Seconds; written by the engine's thread only."""

    rounds: int = 0
    tokens: int = 0
    requests: int = 0
    target_s: float = 0.0
    draft_s: float = 0.0
    waited_s: float = 0.0
    host_s: float = 0.0
    """Time of busy turns of the loop outside the models."""
    local_passes: int = 0
    ended: Usage = field(default_factory=Usage)
    """The sum over all completions that have ended."""
    frames: FrameLedger = field(default_factory=FrameLedger)
    """Of all requests, and of those that are over."""
    faults: int = 0
    """Exceptions that stayed within one request."""
    failed_passes: int = 0
    """Passes of the target that failed."""
    retries: int = 0
    """Requests put into a fresh slot after such a pass."""

    preemptions: int = 0
    """Times that a request's KV cache went to another one."""

    def drafted(self, passes: int, seconds: float) -> None:
        """Counts so many passes of the gateway's own draft model."""
        self.draft_s += seconds
        self.local_passes += passes

    def add(self, usage: Usage) -> None:
        """Takes in a completion that has ended."""
        self.ended = added(self.ended, usage)
