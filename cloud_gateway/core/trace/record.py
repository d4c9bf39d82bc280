"""The log of one request's state machine: what it is given and what its policy decides, as it happens.

It listens at the machine's boundary (`generation.Listener`). With the recorder off there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, Protocol

from cloud_gateway.core.policies import actions
from cloud_gateway.core.policies.settings import PolicySettings
from cloud_gateway.core.requests import events
from cloud_gateway.core.requests.generation import Generation
from cloud_gateway.core.sources.interface import Suggestion
from cloud_gateway.core.trace import format as trace
from edgespec.core.drafting.tree import Node

NUMBER_BYTES, EVENT_BYTES = 5, 40
"""Size estimates of a list's number and of the rest of an event (upper bounds)."""
NAMES: dict[str, trace.What] = {
    "assigned": "Assigned", "beside": "Assigned", "gone": "WorkerGone", "declined": "Declined", "useless": "Withdrawn",
    "needed": "Withdrawn", "pass": "PassFailed", "own-pass": "PassFailed", "speculation": "SpeculationFailed",
    "left": "Cancelled", "stopped": "Stopped", "error": "Ended",
}  # fmt: skip
"""What a `Step` is called, by the `why` or the `scope` of the event; an event that is not here is not written."""
COSTS = {field.name: field.default for field in fields(actions.Costs) if field.name != "verify_s"}
"""What the policy sees of costs besides the target's curve, with its defaults."""
LINK = dict.fromkeys(field.name for field in fields(actions.LinkView))


class Curve(Protocol):
    """The target's cost curve (core/policies/estimators.py)."""

    samples: int

    def points(self) -> dict[int, float]: ...


class InputLog:
    """One request's events, up to a limit; the rest of the request goes unrecorded."""

    def __init__(
        self, generation: Generation, settings: PolicySettings, curve: Curve, made_at: int, limit_bytes: int,
        ended: Callable[[InputLog, str], None] = lambda log, finish: None,
    ) -> None:  # fmt: skip
        """`curve`: the one behind `Costs.verify_s`; `made_at`: Unix seconds; `ended` is called with the finish."""
        self.generation, self.settings, self.made_at = generation, settings, made_at
        self._policy_state = generation.policy.carried
        self.offload = generation.offload
        self.events: list[trace.AnyEvent] = []
        self.workers: dict[str, int] = {}
        self.complete = True
        self.decisions = 0
        self._left, self._ended = limit_bytes, ended
        self._curve, self._samples, self._points = curve, -1, dict[int, float]()
        self._costs, self._link = dict[str, Any](COSTS), dict[str, Any](LINK)
        self._linked: actions.LinkView | None = None
        self._forced: list[int] = []

    # --- the machine's boundary ----------------------------------------------------------------------------------

    def handled(self, event: events.Event, effects: Sequence[events.Effect], now: float) -> None:
        """The machine took an event in. What changes nothing is not written."""
        match event:
            case events.FrameArrived():
                self._frame(event, effects, now)
            case events.Verified():
                self._verified(event, effects, now)
            case events.Drafted(leaves, proposals):
                found = [(list(one.tokens), list(one.costs), one.entropy) for one in proposals]
                numbers = sum(3 * len(tokens) + 3 for tokens, _, _ in found)
                self._add(trace.Drafted(now, [leaf.id for leaf in leaves], found), numbers)
            case _:
                self._step(event, effects, now)
        for effect in effects:
            if isinstance(effect, events.Finished):
                self._ended(self, effect.finish)

    def decided(self, link: actions.LinkView | None, costs: actions.Costs, now: float, action: actions.Action) -> None:
        """The policy was asked; what is new in what it saw is written before."""
        self._look(link, costs)
        size = len(self.generation.tree.tree)
        self._add(trace.Decided(now, size, act_of(action)), size)
        self.decisions += 1

    def suggested(self, source: str, suggestions: Sequence[Suggestion]) -> None:
        """A source without a draft model put candidates into the tree."""
        columns = ([one.parent for one in suggestions], [one.token for one in suggestions])
        event = trace.Suggested(source, *columns, [one.chance for one in suggestions])
        self._add(event, 4 * len(suggestions))

    def guided(self, nodes: Sequence[Node], chosen: Sequence[Node]) -> None:
        """The completion's constraint made these candidates of those."""
        given, kept = set(nodes), set(chosen)
        left_out = [node.id for node in nodes if node not in kept]
        forced = [node.token for node in chosen if node not in given]
        if left_out or forced:
            self._add(trace.Guided(left_out, forced), len(left_out) + len(forced))

    def proposed(self, forced: Sequence[Node]) -> None:
        """The constraint proposed these candidates after the tokens just committed."""
        self._forced = [node.token for node in forced]

    def as_trace(self, version: str, finish: str, *, salt: bool) -> trace.Trace:
        """What was written, as a trace; `version` of edgespec."""
        request, numbers = self.generation.request, dict[int, int]()
        events = trace.salted(self.events, numbers) if salt else self.events
        eos = frozenset[int]() if request.ignore_eos else self.generation.eos
        header = trace.Header(
            version, self.made_at, self.generation.id, self.settings, len(request.tokens),
            request.max_tokens, self.generation.context, self.offload, salt,
            sorted(numbers[token] for token in eos & numbers.keys()) if salt else sorted(eos),
            list(self.workers), finish, self.complete, self._policy_state,
        )  # fmt: skip
        return trace.Trace(header, events)

    # --- events --------------------------------------------------------------------------------------------------

    def _add(self, event: trace.AnyEvent, numbers: int = 0) -> None:
        """Writes an event with so many numbers in its lists."""
        self._left -= EVENT_BYTES + NUMBER_BYTES * numbers
        self.complete = self.complete and self._left >= 0
        if self.complete:
            self.events.append(event)

    def _step(self, event: events.Event, effects: Sequence[events.Effect], now: float) -> None:
        match event:
            case events.Admitted(reused):
                self._add(trace.Step(now, "Admitted", reused))
            case events.Read(tokens):
                self._add(trace.Step(now, "Prefilled", tokens))
            case events.Preempted():
                self._add(trace.Step(now, "Preempted", 0))
            case events.WorkerChanged(worker, why) if why in NAMES and effects:  # else it is not about its worker
                self._add(trace.Step(now, NAMES[why], self.workers.setdefault(worker, len(self.workers))))
            case events.Failed(scope) if scope in NAMES:
                self._add(trace.Step(now, NAMES[scope], int(scope == "own-pass")))
            case events.Ended(why):
                self._add(trace.Step(now, NAMES[why], 0))

    def _frame(self, event: events.FrameArrived, effects: Sequence[events.Effect], now: float) -> None:
        frame, given, taken = event.frame, self.generation.assignments.of(event.worker, event.frame.epoch), effects[0]
        if given is None:
            return
        assert isinstance(taken, events.FrameTaken)
        written = trace.Frame(
            now, frame.prefix_len, not taken.unknown_prefix, frame.first, frame.parents, frame.tokens, frame.costs,
            frame.entropies, taken.kind, self.workers[event.worker],
        )  # fmt: skip
        self._add(written, 4 * len(frame.tokens))

    def _verified(self, event: events.Verified, effects: Sequence[events.Effect], now: float) -> None:
        chosen = next((effect for effect in effects if isinstance(effect, events.Chosen)), None)
        if chosen is None:  # the constraint left no token
            self._add(trace.Step(now, "Ended", 0))
            return
        entropies = [event.rows.entropy(row) for row in chosen.rows]
        forced, self._forced = self._forced, []
        written = trace.Verified(now, list(chosen.tokens), entropies, list(chosen.rows), forced)
        self._add(written, 4 * len(chosen.tokens) + len(forced))

    def _look(self, link: actions.LinkView | None, costs: actions.Costs) -> None:
        if self._curve.samples != self._samples:
            self._samples, before, self._points = self._curve.samples, self._points, self._curve.points()
            new = {rows: s for rows, s in self._points.items() if before.get(rows) != s}
            self._add(trace.PassCosts(new), 2 * len(new))
        if changed := _changes(costs, self._costs):
            self._add(trace.Costs(changed), _numbers(changed))
        if link == self._linked:
            return
        self._linked = link
        if link is None:
            self._link = dict(LINK)
            self._add(trace.Link(None))
        else:
            changed = _changes(link, self._link)
            self._add(trace.Link(changed), _numbers(changed))


def _changes(view: object, before: dict[str, Any]) -> dict[str, Any]:
    """The fields that are others than before, which is brought up to date."""
    changed = {name: value for name in before if (value := getattr(view, name)) != before[name]}
    before.update(changed)
    return changed


def _numbers(changed: dict[str, Any]) -> int:
    """Their size, in numbers of a list: a name and a value, or the points of a curve."""
    return sum(5 + 4 * len(value) if isinstance(value, tuple) else 5 for value in changed.values())


def act_of(action: actions.Action) -> trace.AnyAct:
    """A decision as a trace keeps it."""
    match action:
        case actions.Verify(nodes):
            return trace.Verify([node.id for node in nodes])
        case actions.Draft(leaves, width):
            return trace.Draft([leaf.id for leaf in leaves], width)
        case actions.CatchUp(tokens):
            return trace.CatchUp(tokens)
        case actions.Wait(until):
            return trace.Wait(until)
