"""Plays a trace again: the request's own state machine, given the same inputs in the same order.

What comes out is either the same decisions, bit for bit, or the first one that a changed policy takes otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from cloud_gateway.core.policies import policy, registry
from cloud_gateway.core.policies.policy import Policy
from cloud_gateway.core.policies.registry import Policies
from cloud_gateway.core.requests import events
from cloud_gateway.core.requests.generation import Bounds, Generation
from cloud_gateway.core.requests.request import GenerationRequest
from cloud_gateway.core.sources.asking import put
from cloud_gateway.core.sources.interface import Suggestion
from cloud_gateway.core.verify.accept import NOT_COMPUTED, FlatTree
from cloud_gateway.part import PastRequest
from cloud_gateway.parts.request_traces import format as trace
from cloud_gateway.parts.request_traces.format import Header, Trace, TraceError, act_of
from edgespec.core.drafting.algorithm2 import Proposal
from edgespec.core.drafting.tree import Node
from edgespec.core.numbers import interpolate
from edgespec.core.protocol.messages import Tree

UNFIT = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What values raise that no gateway recorded: anybody can sign a trace with a key of their own."""
NO_PREFIX = bytes(32)
"""A hash that no prefix has."""


@dataclass(frozen=True, slots=True)
class Moment:
    """One entry, after it was played again."""

    now: float
    event: trace.AnyEvent
    effects: Sequence[events.Effect] = ()
    """What followed from an input."""
    fresh: int = 0
    """Candidates that it brought."""
    decided: trace.Act | None = None
    """What the policy says now where it was asked."""

    @property
    def same(self) -> bool:
        """Whether the policy decides what it decided then; true of all other events."""
        return not isinstance(self.event, trace.Decided) or self.decided == self.event.act

    @property
    def taken(self) -> events.FrameTaken | None:
        """What became of a frame, if it is one."""
        return next((effect for effect in self.effects if isinstance(effect, events.FrameTaken)), None)


class Recorded:
    """What is outside the machine, as it was: the target's choices (`Verification`, `Rows`), and the constraint's."""

    by_match = True

    def __init__(self) -> None:
        self.depths: Sequence[int] = ()
        self.tokens: Sequence[int] = ()
        self.entropies: Sequence[float] = ()
        self.left_out: set[tuple[int, ...]] = set()
        self.to_force: Sequence[int] = ()

    @property
    def argmax(self) -> Sequence[int]:
        """The token chosen after a row, if one was."""
        chosen = [*self.tokens, *([NOT_COMPUTED] * (max(self.depths) + 1))]
        return [chosen[depth] for depth in self.depths]

    def at(self, flat: FlatTree, rows: object) -> Callable[[int], int]:
        """The token chosen after a row."""
        return lambda row: self.tokens[flat.depths[row]]

    def entropy(self, row: int) -> float:
        """Of the target's distribution after a row that was accepted, in nats."""
        return self.entropies[self.depths[row]]

    def committed(self, tokens: Sequence[int]) -> None:
        """Nothing depends on it."""

    def ready(self, path: Sequence[int], wake: object = None) -> bool:
        """Whether the target chose a token after this candidate too."""
        return len(path) < len(self.tokens)

    def ahead(self, paths: object) -> None:
        """Nothing depends on it."""

    def allowed(self, path: Sequence[int]) -> int:
        """Whether the constraint had left this candidate out: 0, else all of it."""
        if tuple(path) in self.left_out:
            return 0
        return len(path)

    def forced(self, path: Sequence[int]) -> Sequence[int]:
        return self.to_force

    def __call__(self, path: Sequence[int]) -> NDArray[np.bool_] | None:
        """Its masks are in the target's choices."""
        return None

    def logits(self, row: int) -> NDArray[np.float32]:
        raise NotImplementedError("a trace has no logits")

    def rank(self, logits: object, path: Sequence[int], width: int) -> Proposal:
        """Not in a trace either."""
        raise NotImplementedError("a trace has no logits")


class Player:
    """The request as it was: `generation`, `link` and `costs` are those of the moment played last."""

    def __init__(
        self,
        recorded: Trace,
        policies: Policies,
        controller: Policy | None = None,
        listen: Callable[[Generation], events.Listener | None] | None = None,
        key: str = "",
    ) -> None:
        """`policies`: the recorded one is among them. `controller`: another one, to be asked instead. `listen`: makes a
        listener of the request, which is one of this API key. Raises TraceError if the header fits no request."""
        self.recorded = recorded
        self._outside = Recorded()
        try:
            asked = controller or policy_of(recorded.header, policies)
            self.generation = machine(recorded.header, self._outside, asked, listen, key)
        except UNFIT as error:
            raise TraceError(f"its header describes no request ({error!r}).") from None
        self.tree = self.generation.tree
        self.link: policy.LinkView | None = None
        self.points: dict[int, float] = {}
        self._curve: Callable[[int], float] = lambda rows: interpolate(self.points, rows)
        self.costs = policy.Costs(self._curve)
        self._nodes: Sequence[Node] = ()
        self._laid_out: FlatTree | None = None

    def play(self) -> Iterator[Moment]:
        """Every entry in turn. Raises TraceError where the request does not become what it was."""
        for number, (now, event) in enumerate(self.recorded.entries):
            try:
                yield self.step(now, event)
            except UNFIT as error:
                raise TraceError(
                    f"its event {number} cannot be played again ({error!r}); this version handles requests otherwise."
                ) from None

    def step(self, now: float, event: trace.AnyEvent) -> Moment:
        """Plays one entry. Raises one of `UNFIT` where it does not fit."""
        match event:
            case trace.Decided():
                return Moment(now, event, decided=self._decide(now, event))
            case trace.Guided():
                self._select(event)
                return Moment(now, event)
            case trace.Suggested(source, parents, tokens, chances):
                suggestions = list(map(Suggestion, parents, tokens, chances))
                proposed = put(self.generation.tree, source, suggestions)
                self.generation.account.suggested(source, suggestions, proposed, None)
                return Moment(now, event)
        before = len(self.tree.tree)
        effects = self.generation.handle(self._input(event), now)
        for effect in effects:
            if isinstance(effect, events.Finished) and effect.finish != self.recorded.header.finish:
                raise ValueError(f"it ends by {effect.finish} where it ended by {self.recorded.header.finish}")
        self._outside.to_force = ()
        self.tree = self.generation.tree
        return Moment(now, event, effects, len(self.tree.tree) - before)

    def node(self, number: int) -> Node:
        """A node by its id. Raises KeyError."""
        if number == self.tree.root.id:
            return self.tree.root
        return self.tree.tree.nodes[number]

    def _decide(self, now: float, event: trace.Decided) -> trace.Act:
        self.link = event.link
        self.costs = replace(event.costs, verify_s=self._curve)
        self.points.update(event.curve)
        if len(self.tree.tree) != event.size:
            raise ValueError(f"the tree has {len(self.tree.tree)} candidates where it had {event.size}")

        action = self.generation.decide(self.link, self.costs, now)
        if event.act.kind == "verify":
            self._nodes = [self.node(number) for number in event.act.nodes]
        else:
            self._nodes = ()
        return act_of(action)

    def _input(self, event: trace.AnyEvent) -> events.Event:
        """The event as the machine takes it."""
        match event:
            case trace.Frame():
                return self._frame(event)
            case trace.Verified():
                return self._verified(event)
            case trace.Drafted(leaves, proposals):
                return events.Drafted([self.node(leaf) for leaf in leaves], [Proposal(*one) for one in proposals])
            case trace.Decided() | trace.Guided() | trace.Suggested():
                raise TypeError(f"{type(event).__name__} is no input of the machine")
            case _:
                return event

    def _frame(self, event: trace.Frame) -> events.FrameArrived:
        given = self.generation.assignments.given.get(event.worker)
        if given is None:
            raise ValueError("a frame came while its worker was not assigned")

        if event.on_path:
            digest = self.tree.prefix.digest_at(event.prefix_len)
        else:
            digest = NO_PREFIX
        frame = Tree(
            self.generation.id, given.epoch, event.prefix_len, digest,
            event.first, event.parents, event.tokens, event.costs, event.entropies,
        )  # fmt: skip
        return events.FrameArrived(given.worker, frame)

    def _select(self, event: trace.Guided) -> None:
        outside = self._outside
        outside.left_out = {self.node(number).path(self.tree.root) for number in event.left_out}
        outside.to_force = event.forced
        self._laid_out = self.generation.flatten(self.generation.select(self._nodes))
        outside.left_out = set()
        outside.to_force = ()

    def _verified(self, event: trace.Verified) -> events.Verified:
        flat = self._laid_out or self.generation.flatten(self.generation.select(self._nodes))
        self._laid_out = None
        outside = self._outside
        outside.depths = flat.depths
        outside.tokens = event.tokens
        outside.entropies = event.entropies
        outside.to_force = event.forced
        return events.Verified(flat, outside)


def policy_of(header: Header, policies: Policies) -> Policy:
    """The recorded policy before its first decision. Raises TraceError if another version recorded it."""
    name = header.settings.name
    if name not in policies:
        raise TraceError(f"its policy {name!r} is none of this gateway's: it lacks a part, or is another version.")

    try:
        return registry.make(header.settings, header.policy_state, policies)
    except ValueError as error:
        raise TraceError(f"another version of edgespec recorded this trace: {error}. Record it again.") from error


def machine(
    header: Header,
    outside: Recorded,
    policy: Policy,
    listen: Callable[[Generation], events.Listener | None] | None = None,
    key: str = "",
) -> Generation:
    """The request before its first input; its prompt is as long as it was, and of no content."""
    request = GenerationRequest([0] * header.prompt_len, header.max_tokens, constraint=outside, key=key)
    return Generation(
        header.request,
        request,
        policy,
        outside,
        Bounds(header.context, frozenset(header.eos), header.settings.verify_nodes),
        offload=header.offload,
        listen=listen,
    )


@dataclass(frozen=True, slots=True)
class Difference:
    """A decision that is not the recorded one."""

    number: int
    """Which decision of the request, from 1."""
    now: float
    then_act: trace.Act
    now_act: trace.Act | None


@dataclass(frozen=True, slots=True)
class Check:
    """What became of all decisions of a trace."""

    decisions: int
    differences: list[Difference]


def check(recorded: Trace, policies: Policies, controller: Policy | None = None) -> Check:
    """Asks the policy everything again and compares every decision, bit for bit. Raises TraceError."""
    differences = []
    count = 0
    for moment in Player(recorded, policies, controller).play():
        if isinstance(moment.event, trace.Decided):
            count += 1
            if not moment.same:
                differences.append(Difference(count, moment.now, moment.event.act, moment.decided))

    return Check(count, differences)


def past(recorded: Trace, policies: Policies) -> PastRequest:
    """A trace as parts that show requests take it. `policies`: all of the gateway."""
    header = recorded.header

    def play(listen: Callable[[Generation], events.Listener]) -> None:
        for _ in Player(recorded, policies, listen=listen).play():
            pass

    return PastRequest(header.made_at, header.settings.name, header.salted, play)
