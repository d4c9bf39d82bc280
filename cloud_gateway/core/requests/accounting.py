"""The one writer of a request's usage, and the one ledger of frames."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from cloud_gateway.core.policies.policy import Policy
from cloud_gateway.core.requests.assignment import Assignment
from cloud_gateway.core.requests.events import Spent
from cloud_gateway.core.requests.request import Usage
from cloud_gateway.core.sources.asking import counted
from cloud_gateway.core.verify.accept import Walk
from cloud_gateway.core.verify.candidates import LOCAL
from cloud_gateway.core.verify.flatten import FlatTree
from cloud_gateway.core.verify.guide import GRAMMAR
from edgespec.core.drafting.tree import Node


class FrameLedger:
    """Frames of workers: `received`, and what became of them: `used`, `stale` or `rejected`.

    A request's ledger also counts into the gateway's. Usage, totals and metrics read `counts`; nothing else counts.
    """

    __slots__ = ("_whole", "counts")

    def __init__(self, whole: FrameLedger | None = None) -> None:
        """`whole`: the gateway's, for a request's ledger."""
        self._whole = whole
        self.counts = {"received": 0, "used": 0, "stale": 0, "rejected": 0}

    def count(self, what: str) -> None:
        """One frame more; every frame is `received` first and then one of the others, once."""
        self.counts[what] += 1
        if self._whole is not None:
            self._whole.count(what)


@dataclass(slots=True)
class Account:
    """One request's usage. `now` and times in seconds on the driver's clock."""

    submitted: float
    usage: Usage
    frames: FrameLedger
    first_token: float | None = field(default=None, init=False)
    _read: float | None = field(default=None, init=False)
    """When target and local draft had read the prompt; reading after the first token is a part of decoding."""
    _admitted: float | None = field(default=None, init=False)
    _names: dict[str, str] = field(default_factory=dict, init=False)
    """Names of workers by their ids, of all that were assigned."""

    def __post_init__(self) -> None:
        self.usage.frames = self.frames.counts

    def submitted_with(self, prompt_tokens: int, policy: str) -> None:
        """What it was submitted with."""
        self.usage.prompt_tokens, self.usage.policy = prompt_tokens, policy

    def admitted(self, now: float, waited_s: float) -> None:
        """It was given a slot; `waited_s`: since it was preempted."""
        if self._admitted is None:
            self._admitted, self.usage.queued_s = now, now - self.submitted
        else:
            self.usage.queued_s += waited_s

    def prefilled(self, seconds: float) -> None:
        """The target has read a part of the prompt."""
        self.usage.prefill_s += seconds

    def decodes(self, now: float) -> None:
        """The prompt has been read, by the target or by the local draft too."""
        if self.first_token is None:
            self._read = now

    def charge(self, spent: Spent, now: float) -> None:
        """What was spent on the request besides passes of the target."""
        usage = self.usage
        match spent.kind:
            case "host":
                usage.host_s += spent.seconds
            case "draft":
                usage.local_draft_passes += spent.count
                usage.local_s += spent.seconds
            case "reading":
                usage.prefill_s += spent.seconds
                self.decodes(now)
            case "source":
                counted(usage.sources, spent.name)["seconds"] += spent.seconds
            case "answer":
                self.assigned(spent.worker, spent.name)
                usage.by_worker[spent.name]["frames"] += spent.count

    def no_local_draft(self, why: str) -> None:
        """The local draft does nothing for it from now on."""
        self.usage.why_not_local = why

    def assigned(self, worker: str, name: str) -> None:
        """A worker of this id and name reads the prompt."""
        self.usage.why_off = None
        self._names[worker] = name
        if name not in self.usage.workers:
            self.usage.workers = [*self.usage.workers, name]
            self.usage.by_worker[name] = {"frames": 0, "fresh": 0, "verified": 0, "accepted": 0}

    def frame(self, worker: str, fresh: int) -> None:
        """A frame of an assigned worker brought so many new candidates."""
        counts = self.usage.by_worker[self._names[worker]]
        counts["frames"] += 1
        counts["fresh"] += fresh

    def not_assigned(self, why: str) -> None:
        """No worker drafts for it."""
        self.usage.why_off = why

    def worker_ready(self, now: float) -> None:
        """Its first worker has sent its first useful frame."""
        if self.first_token is not None and self._read is not None:
            self.usage.before_worker_s = now - self._read
            self.usage.before_worker_tokens = self.usage.completion_tokens

    def round(self, flat: FlatTree, taken: Walk, now: float, given: Sequence[Assignment], root: Node) -> None:
        """Credits every verified and every accepted candidate to its source; `given`: to the workers that draft now."""
        for one in given:
            one.verified(flat, taken, root)
        usage = self.usage
        usage.rounds += 1
        usage.undrafted_rounds += bool(flat.nodes) and not any(_by_model(node) for node in flat.nodes)
        usage.completion_tokens += len(taken.tokens)
        self._credit(flat.nodes, usage.drafted, "verified")
        self._credit([flat.nodes[row - 1] for row in taken.rows[1:]], usage.accepted, "accepted")
        self.first_token = self.first_token or now
        usage.total_s = now - (self._admitted or 0.0)
        usage.decode_s = usage.total_s if self._read is None else now - self._read

    def _credit(self, nodes: Sequence[Node], counts: dict[str, int], what: str) -> None:
        for node in nodes:
            source = _source(node)
            counts[source] = counts.get(source, 0) + 1
            if source == "worker" and (name := self._names.get(node.owner)) is not None:
                self.usage.by_worker[name][what] += 1
            for name in node.evidence or ():
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
        report = policy.report(drafted=usage.local_draft_passes > 0)
        usage.fallbacks += report.fallbacks
        usage.why = report.reason or usage.why
        usage.why_not_local = usage.why_not_local or report.why_not_local

    def decodes_plainly(self, why: str) -> None:
        """Nobody drafts for the rest of the completion."""
        self.not_assigned(why)
        self.usage.why_not_local = why


def _source(node: Node) -> str:
    return node.owner if node.owner in (LOCAL, GRAMMAR) or not node.drafted else "worker"


def _by_model(node: Node) -> bool:
    return node.drafted and node.owner != GRAMMAR
