"""Plays a trace again: the same calls on a fresh tree and a fresh policy, in the same order.

What comes out is either the same decisions, bit for bit, or the first one that a changed policy takes otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from msgspec.structs import astuple

from cloud_gateway.core.policies.actions import Controller, Costs, LinkView, Outcome
from cloud_gateway.core.policies.registry import POLICIES
from cloud_gateway.core.trace import format as trace
from cloud_gateway.core.trace.format import Trace
from cloud_gateway.core.trace.record import act_of
from cloud_gateway.core.verify.candidates import CandidateTree, Merged
from edgespec.core.drafting.tree import Node
from edgespec.core.errors import RemoteProtocolError, TraceError
from edgespec.core.numbers import interpolate
from edgespec.core.protocol.messages import Tree

NO_PREFIX = bytes(32)
"""A hash that no prefix has."""


@dataclass(frozen=True, slots=True)
class Moment:
    """One event, after it was played again."""

    event: trace.AnyEvent
    merged: Merged | None = None
    """Of a frame; None where it broke the protocol."""
    decided: trace.AnyAct | None = None
    """What the policy says now where it was asked."""

    @property
    def same(self) -> bool:
        """Whether the policy decides what it decided then; true of all other events."""
        return not isinstance(self.event, trace.Decided) or self.decided == self.event.act


class Player:
    """The request as it was: `tree`, `link` and `costs` are those of the moment played last."""

    def __init__(self, recorded: Trace, controller: Controller | None = None) -> None:
        """`controller`: another policy than the recorded one. Raises TraceError for a policy that does not exist."""
        header = recorded.header
        if header.policy not in POLICIES:
            raise TraceError(f"its policy `{header.policy}` does not exist in this version of edgespec.")
        self.recorded = recorded
        self.controller = controller or POLICIES[header.policy](header.settings)
        self.tree = CandidateTree([0] * header.prompt_len)
        self.link: LinkView | None = None
        self.points: dict[int, float] = {}
        self.costs = Costs(self._verify_s)
        self._merged: Merged | None = None
        self._committed = trace.Committed([], [])

    def play(self) -> Iterator[Moment]:
        """Every event in turn. Raises TraceError where the tree is not the recorded one any more."""
        for number, event in enumerate(self.recorded.events):
            try:
                yield self._step(event)
            except (KeyError, IndexError, ValueError) as error:
                raise _broken(number, repr(error)) from None

    def node(self, number: int) -> Node:
        """A node by its id. Raises KeyError."""
        return self.tree.root if number == self.tree.root.id else self.tree.tree.nodes[number]

    def _step(self, event: trace.AnyEvent) -> Moment:
        match event:
            case trace.Decided():
                return self._decide(event)
            case trace.Frame():
                return Moment(event, merged=self._merge(event))
            case trace.Received(now):
                self.controller.received(self._last_merged(), now)
            case trace.RoundEnded():
                self._pass_on(event)
            case trace.Local() | trace.Committed() | trace.Forgotten() | trace.Discarded():
                self._change(event)
            case _:
                self._look(event)
        return Moment(event)

    def _change(self, event: trace.Inside) -> None:
        """What the tree went through besides frames."""
        match event:
            case trace.Local(leaf, token, cost, entropy):
                self.tree.add_local(self.node(leaf), token, cost, entropy)
            case trace.Committed(tokens):
                self._committed = event
                self.tree.advance(tokens)
            case trace.Forgotten(epoch):
                self.tree.forget(epoch)
            case trace.Discarded(worker):
                self.tree.discard(str(worker))

    def _look(self, event: trace.Seen) -> None:
        """What the controller could see besides the tree."""
        match event:
            case trace.PassCosts(points):
                self.points.update(points)
            case trace.DraftCosts():
                self.costs = Costs(self._verify_s, *astuple(event))
            case trace.Link():
                self.link = LinkView(*astuple(event))
            case trace.Unlinked():
                self.link = None

    def _decide(self, event: trace.Decided) -> Moment:
        if len(self.tree.tree) != event.size:
            raise ValueError(f"the tree has {len(self.tree.tree)} candidates where it had {event.size}")
        action = self.controller.decide(self.tree, self.link, self.costs, event.now)
        return Moment(event, decided=act_of(action))

    def _merge(self, event: trace.Frame) -> Merged | None:
        digest = self.tree.prefix.digest_at(event.prefix_len) if event.on_path else NO_PREFIX
        frame = Tree(
            0, event.epoch, event.prefix_len, digest,
            event.first, event.parents, event.tokens, event.costs, event.entropies,
        )  # fmt: skip
        try:
            self._merged = self.tree.merge(event.epoch, frame, str(event.worker))
        except RemoteProtocolError:  # it was refused then, too
            self._merged = None
        return self._merged

    def _last_merged(self) -> Merged:
        """Passes an event to the controller, once. Raises ValueError."""
        merged, self._merged = self._merged, None
        if merged is None:
            raise ValueError("the controller received a frame that is not there")
        return merged

    def _pass_on(self, event: trace.RoundEnded) -> None:
        tokens, entropies = self._committed.tokens, self._committed.entropies
        position = self.tree.root.position
        outcome = Outcome(event.depth, len(tokens), event.at_leaf, entropies[-1], position)
        self.controller.verified(outcome, event.now)

    def _verify_s(self, rows: int) -> float:
        return interpolate(self.points, rows)


@dataclass(frozen=True, slots=True)
class Difference:
    """A decision that is not the recorded one."""

    number: int
    """Which decision of the request, from 1."""
    now: float
    then_act: trace.AnyAct
    now_act: trace.AnyAct | None


@dataclass(frozen=True, slots=True)
class Check:
    """What became of all decisions of a trace."""

    decisions: int
    differences: list[Difference]


def check(recorded: Trace, controller: Controller | None = None) -> Check:
    """Asks the policy everything again and compares every answer, bit for bit. Raises TraceError."""
    differences, count = [], 0
    for moment in Player(recorded, controller).play():
        if isinstance(moment.event, trace.Decided):
            count += 1
            if not moment.same:
                event = moment.event
                differences.append(Difference(count, event.now, event.act, moment.decided))
    return Check(count, differences)


def _broken(number: int, why: str) -> TraceError:
    return TraceError(f"its event {number} cannot be played again ({why}); trees are merged otherwise by this version.")
