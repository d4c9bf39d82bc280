"""What a request's tree and controller go through, written down as it happens: the making of a trace.

With the recorder off neither class here exists for a request, so that it costs nothing.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from cloud_gateway.core.policies.actions import (
    Action,
    CatchUp,
    Controller,
    Costs,
    Draft,
    LinkView,
    Outcome,
    Points,
    Verify,
)
from cloud_gateway.core.policies.estimators import StepCurve
from cloud_gateway.core.policies.registry import reason
from cloud_gateway.core.policies.settings import PolicySettings
from cloud_gateway.core.trace import format as trace
from cloud_gateway.core.verify.candidates import LOCAL, CandidateTree, Merged
from edgespec.core.drafting.tree import Node
from edgespec.core.protocol.messages import Tree

NUMBER_BYTES, EVENT_BYTES = 5, 40
"""Size estimates of a list's number and of the rest of an event (upper bounds)."""


class Tape:
    """One request's events, up to a limit; then the tape has ended and the rest of the request goes unrecorded."""

    def __init__(
        self, request: int, made_at: int, policy: str, settings: PolicySettings, prompt_len: int, limit_bytes: int
    ) -> None:
        """`made_at`: Unix seconds."""
        self.request, self.made_at = request, made_at
        self.policy, self.settings, self.prompt_len = policy, settings, prompt_len
        self.events: list[trace.AnyEvent] = []
        self.workers: dict[str, int] = {}
        self.full = False
        self._left = limit_bytes

    def add(self, event: trace.AnyEvent, numbers: int = 0) -> None:
        """Writes an event with so many numbers in its lists."""
        self._left -= EVENT_BYTES + NUMBER_BYTES * numbers
        if self._left < 0:
            self.full = True
        if not self.full:
            self.events.append(event)

    def stop(self) -> None:
        """The rest of the request goes unrecorded."""
        self.full = True

    def worker(self, owner: str) -> int:
        """The number of a worker in this trace."""
        return self.workers.setdefault(owner, len(self.workers))


class TapedTree(CandidateTree):
    """A candidate tree that writes down what changes it."""

    def __init__(self, prompt: Sequence[int], tape: Tape) -> None:
        super().__init__(prompt)
        self._tape = tape

    def merge(self, source: Hashable, frame: Tree, owner: str) -> Merged:
        """As the tree; written first, since a frame that breaks the protocol may leave nodes behind."""
        on_path = self.prefix.matches(frame.prefix_len, frame.prefix_hash)
        event = trace.Frame(
            self._tape.worker(owner), frame.epoch, frame.prefix_len, on_path,
            frame.first, frame.parents, frame.tokens, frame.costs, frame.entropies,
        )  # fmt: skip
        self._tape.add(event, 4 * len(frame.tokens))
        return super().merge(source, frame, owner)

    def add_local(self, parent: Node, token: int, cost: float, entropy: float, owner: str = LOCAL) -> Node | None:
        """As the tree; a trace does not tell the gateway's own sources apart."""
        self._tape.add(trace.Local(parent.id, token, cost, entropy))
        return super().add_local(parent, token, cost, entropy, owner)

    def advance(self, tokens: Sequence[int], entropies: Sequence[float] = ()) -> list[Node]:
        """As the tree."""
        self._tape.add(trace.Committed(list(tokens), list(entropies)), 3 * len(tokens))
        return super().advance(tokens)

    def forget(self, source: Hashable) -> None:
        """As the tree."""
        assert isinstance(source, int)
        self._tape.add(trace.Forgotten(source))
        super().forget(source)

    def discard(self, owner: str) -> None:
        """As the tree."""
        self._tape.add(trace.Discarded(self._tape.worker(owner)))
        super().discard(owner)


class TapedController:
    """A policy that records its inputs and its decisions."""

    def __init__(self, inner: Controller, curve: StepCurve, tape: Tape) -> None:
        """`curve`: the one behind `Costs.verify_s`."""
        self.inner, self._curve, self._tape = inner, curve, tape
        self._points: dict[int, float] = {}
        self._samples = -1
        self._link: LinkView | None = None
        self._costs: trace.DraftCosts | None = None

    @property
    def name(self) -> str:
        """The policy's."""
        return self.inner.name

    @property
    def fallbacks(self) -> int:
        """The policy's."""
        return self.inner.fallbacks

    @property
    def drafts_from_start(self) -> bool:
        """The policy's."""
        return self.inner.drafts_from_start

    @property
    def why(self) -> str | None:
        """The policy's."""
        return reason(self.inner)

    def decide(self, tree: CandidateTree, link: LinkView | None, costs: Costs, now: float) -> Action:
        """Asks the policy; writes what is new about the costs and the link, and the decision."""
        self._note(link, costs)
        size = len(tree.tree)
        action = self.inner.decide(tree, link, costs, now)
        self._tape.add(trace.Decided(now, size, act_of(action)), size)
        return action

    def received(self, merged: Merged, now: float) -> None:
        """A frame was merged."""
        self._tape.add(trace.Received(now))
        self.inner.received(merged, now)

    def verified(self, outcome: Outcome, now: float) -> None:
        """A pass ended."""
        self._tape.add(trace.RoundEnded(now, outcome.depth, outcome.at_leaf))
        self.inner.verified(outcome, now)

    def _note(self, link: LinkView | None, costs: Costs) -> None:
        if self._curve.samples != self._samples:
            self._samples, before, self._points = self._curve.samples, self._points, self._curve.points()
            new = {rows: s for rows, s in self._points.items() if before.get(rows) != s}
            self._tape.add(trace.PassCosts(new), 2 * len(new))
        draft = trace.DraftCosts(
            costs.local_step_s, costs.local_backlog_s, costs.batch_backlog_s, costs.local_leaves,
            costs.local_points, costs.local_token_s, costs.other_rows, costs.remaining,
        )  # fmt: skip
        if draft != self._costs:
            self._costs = draft
            self._tape.add(draft)
        if link != self._link:
            self._link = link
            self._tape.add(trace.Link(*view_of(link)) if link else trace.Unlinked())


def act_of(action: Action) -> trace.AnyAct:
    """A decision as a trace keeps it."""
    if isinstance(action, Verify):
        return trace.Verified([node.id for node in action.nodes])
    if isinstance(action, Draft):
        return trace.Drafted([leaf.id for leaf in action.leaves], action.width)
    return trace.CaughtUp(action.tokens) if isinstance(action, CatchUp) else trace.Waited(action.until)


def view_of(link: LinkView) -> tuple[float, float, float, bool, Points]:
    """A link view's fields, in their order."""
    return link.rtt_s, link.rtt_high_s, link.step_s, link.ready, link.points
