"""A request's usage, a fold over what happens to it, and the engine's totals. Nothing else writes a `Usage` or counts
frames."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from msgspec import Struct

from cloud_gateway.core.policies.policy import Policy
from cloud_gateway.core.requests.events import (
    Admitted,
    Effect,
    Event,
    Failed,
    FrameArrived,
    FrameTaken,
    Preempted,
    Read,
    WorkerChanged,
)
from cloud_gateway.core.requests.request import Usage, added
from cloud_gateway.core.verify.accept import FlatTree, Walk
from cloud_gateway.core.verify.guide import AT_GATEWAY, GRAMMAR
from edgespec.core.drafting.tree import Node
from edgespec.core.protocol.messages import Tree

WORKERS_COUNTS = ("frames", "evaluated", "fresh", "verified", "accepted")


class Spent(Struct, frozen=True):
    """Seconds spent on a request besides passes of the target. It is booked, and changes nothing else."""

    kind: Literal["host", "draft", "reading", "source", "answer"]
    """`host`: outside the models. `draft`: `count` passes of the local draft. `reading`: its reading of the prompt,
    before the first token. `source`: the source `name` was given tokens or asked for candidates. `answer`: a worker
    writes an answer while the request waits; `frame`: what became of a frame of it."""
    seconds: float = 0.0
    count: int = 0
    name: str = ""
    """Name of the source, or of the worker as people know it."""
    worker: str = ""
    frame: str = ""


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


class Account:
    """Folds events, effects and rounds into one request's usage. Times are seconds on the driver's clock, and `own`
    those of the request, which stands still while it is preempted."""

    def __init__(self, submitted: float = 0.0, usage: Usage | None = None, frames: FrameLedger | None = None) -> None:
        """`usage`: what is known at the beginning; `frames`: of this request."""
        self.submitted, self.usage, self._frames = submitted, usage or Usage(), frames or FrameLedger()
        self.usage.frames = self._frames.counts
        self.first_token: float | None = None
        self._read: float | None = None
        """When target and local draft had read the prompt; reading after the first token is a part of decoding."""
        self._admitted: float | None = None
        self._preempted: float | None = None
        self._names: dict[str, str] = {}
        """Names of workers by their ids, of all that were assigned."""
        self._ready = False
        """A worker has sent a useful frame."""

    def take(self, event: Event, effects: Sequence[Effect], now: float, own: float) -> None:
        """Takes in an event and what followed from it."""
        usage, times = self.usage, self.usage.times
        match event:
            case FrameArrived(_, frame):
                for taken in effects:
                    assert isinstance(taken, FrameTaken)
                    self._frame(taken, frame, own)
            case Admitted(reused) if self._admitted is None:
                self._admitted, times.queued_s, usage.cached_tokens = own, now - self.submitted, reused
            case Admitted():
                times.queued_s += now - (now if self._preempted is None else self._preempted)
                self._preempted = None
            case Preempted():
                self._preempted = now
            case Read(_, seconds):
                times.prefill_s += seconds
            case WorkerChanged(_, "none", name):
                usage.why_off = name
            case Failed("draft", what):
                usage.why_not_local = what
            case Failed("speculation", _, str()):  # a frame led to a fault before it was counted
                self._frames.count("rejected")

    def spent(self, spent: Spent, own: float) -> None:
        """Seconds besides passes of the target, and frames of answers that workers write while it waits."""
        usage, times = self.usage, self.usage.times
        match spent.kind:
            case "host":
                times.host_s += spent.seconds
            case "draft":
                usage.local_draft_passes += spent.count
                times.local_s += spent.seconds
            case "reading":
                times.prefill_s += spent.seconds
                self.decodes(own)
            case "source":
                self._source(spent.name)["seconds"] += spent.seconds
            case "answer":
                self.assigned(spent.worker, spent.name)
                if spent.frame:
                    self._frames.count(spent.frame)
                    usage.by_worker[spent.name]["frames"] += spent.frame != "rejected"

    def _frame(self, taken: FrameTaken, frame: Tree, own: float) -> None:
        self._frames.count(taken.kind)
        if taken.merged is None:
            return
        counts = self.usage.by_worker[self._names[taken.worker]]
        counts["frames"] += 1
        counts["evaluated"] += len(set(frame.parents))
        counts["fresh"] += taken.merged.fresh
        if not self._ready and taken.useful:
            self._ready = True
            if self.first_token is not None and self._read is not None:
                self.usage.times.before_worker_s = own - self._read
                self.usage.before_worker_tokens = self.usage.completion_tokens

    def decodes(self, own: float) -> None:
        """The prompt has been read, by the target or by the local draft too."""
        if self.first_token is None:
            self._read = own

    def assigned(self, worker: str, name: str) -> None:
        """A worker of this id and name reads the prompt."""
        self.usage.why_off = None
        self._names[worker] = name
        self.usage.by_worker.setdefault(name, dict.fromkeys(WORKERS_COUNTS, 0))

    def asked(self, source: str, proposed: int, why: str | None) -> None:
        """A source without a draft model put so many candidates into the tree; `why` it has none."""
        counts = self._source(source)
        counts["proposed"] += proposed
        counts["why"] = why

    def _source(self, name: str) -> dict[str, Any]:
        if name not in self.usage.sources:
            self.usage.sources[name] = {"proposed": 0, "verified": 0, "accepted": 0, "seconds": 0.0, "why": None}
        return self.usage.sources[name]

    def walked(self, flat: FlatTree, taken: Walk, own: float) -> None:
        """Credits every verified and every accepted candidate to its source."""
        usage = self.usage
        usage.rounds += 1
        usage.undrafted_rounds += bool(flat.nodes) and not any(_by_model(node) for node in flat.nodes)
        usage.completion_tokens += len(taken.tokens)
        self._credit(flat.nodes, usage.drafted, "verified")
        self._credit([flat.nodes[row - 1] for row in taken.rows[1:]], usage.accepted, "accepted")
        self.first_token = self.first_token or own
        usage.times.total_s = own - (self._admitted or 0.0)
        usage.times.decode_s = usage.times.total_s if self._read is None else own - self._read

    def _credit(self, nodes: Sequence[Node], counts: dict[str, int], what: str) -> None:
        owners = Counter([(node.owner, node.evidence is None or node.drafted) for node in nodes])
        for (owner, drafted), count in owners.items():
            source = "worker" if drafted and owner not in AT_GATEWAY else owner
            counts[source] = counts.get(source, 0) + count
            if source == "worker" and (name := self._names.get(owner)) is not None:
                self.usage.by_worker[name][what] += count
        for name in [name for node in nodes if node.evidence for name in node.evidence]:
            self.usage.sources[name][what] += 1

    def decided(self, policy: Policy) -> None:
        """The policy has made a decision."""
        if policy.change is not None:
            mode, why = policy.change
            reasons = self.usage.guard.setdefault(mode, {})
            reasons[why] = reasons.get(why, 0) + 1

    def policy_ended(self, policy: Policy) -> None:
        """This policy decides no more for it."""
        usage = self.usage
        usage.fallbacks += policy.fallbacks
        usage.phi = policy.learnt_phi or usage.phi
        usage.why = policy.why or usage.why
        usage.why_not_local = usage.why_not_local or policy.why_not_local(drafted=usage.local_draft_passes > 0)

    def decodes_plainly(self, why: str) -> None:
        """Nobody drafts for the rest of the completion."""
        self.usage.why_off = self.usage.why_not_local = why


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

    def add(self, usage: Usage) -> None:
        """Takes in a completion that has ended."""
        self.ended = added(self.ended, usage)
