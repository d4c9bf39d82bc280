"""The log of one request's state machine: what it is given and what its policy decides, as it happens.

It listens at the machine's boundary (`events.Listener`). With the recorder off there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cloud_gateway.core.policies import actions
from cloud_gateway.core.policies.estimators import StepCurve
from cloud_gateway.core.policies.settings import PolicySettings
from cloud_gateway.core.requests import events
from cloud_gateway.core.requests.generation import Generation
from cloud_gateway.core.sources.interface import Suggestion
from cloud_gateway.core.trace import format as trace
from edgespec.core.drafting.tree import Node


class InputLog(events.Listener):
    """One request's entries, up to a limit; the rest of the request goes unrecorded."""

    def __init__(
        self, generation: Generation, settings: PolicySettings, curve: StepCurve, made_at: int, limit_bytes: int,
        ended: Callable[[InputLog, str], None] = lambda log, finish: None, *, salt: bool = True,
    ) -> None:  # fmt: skip
        """`curve`: the one behind `Costs.verify_s`; `made_at`: Unix seconds; `ended` is called with the finish. `salt`:
        tokens are written as numbers in the order of their appearance, which no key could undo."""
        self.generation, self.settings, self.made_at = generation, settings, made_at
        self._policy_state, self._offload = generation.policy.carried, generation.assignments.allowed
        self.entries: list[trace.Entry] = []
        self.complete = True
        self.decisions = 0
        self._left, self._ended = limit_bytes, ended
        self._numbers: dict[int, int] | None = {} if salt else None
        self._workers: dict[str, None] = {}
        self._now = 0.0
        self._curve, self._samples, self._points = curve, -1, dict[int, float]()
        self._forced: list[int] = []

    # --- the machine's boundary ----------------------------------------------------------------------------------

    def handled(self, event: events.Event, effects: Sequence[events.Effect], now: float) -> None:
        """The machine took an event in. What changes nothing is not written."""
        self._now = now
        if (written := self._written(event, effects)) is not None:
            self._add(written)
        for effect in effects:
            if isinstance(effect, events.Finished):
                self._ended(self, effect.finish)

    def decided(self, link: actions.LinkView | None, costs: actions.Costs, now: float, action: actions.Action) -> None:
        """The policy was asked; what is new of the target's curve is written too."""
        self._now = now
        new: dict[int, float] = {}
        if self._curve.samples != self._samples:
            self._samples, before, self._points = self._curve.samples, self._points, self._curve.points()
            new = {rows: s for rows, s in self._points.items() if before.get(rows) != s}
        self._add(trace.Decided(link, costs, new, len(self.generation.tree.tree), act_of(action)))
        self.decisions += 1

    def suggested(self, source: str, suggestions: Sequence[Suggestion]) -> None:
        """A source without a draft model put candidates into the tree."""
        tokens = self._named([one.token for one in suggestions])
        parents, chances = [one.parent for one in suggestions], [one.chance for one in suggestions]
        self._add(trace.Suggested(source, parents, tokens, chances))

    def guided(self, nodes: Sequence[Node], chosen: Sequence[Node]) -> None:
        """The completion's constraint made these candidates of those."""
        given, kept = set(nodes), set(chosen)
        left_out = [node.id for node in nodes if node not in kept]
        forced = self._named([node.token for node in chosen if node not in given])
        if left_out or forced:
            self._add(trace.Guided(left_out, forced))

    def proposed(self, forced: Sequence[Node]) -> None:
        """The constraint proposed these candidates after the tokens just committed."""
        self._forced = [node.token for node in forced]

    def as_trace(self, version: str, finish: str) -> trace.Trace:
        """What was written, as a trace; `version` of edgespec."""
        request, bounds, numbers = self.generation.request, self.generation.bounds, self._numbers
        eos = frozenset[int]() if request.ignore_eos else bounds.eos
        header = trace.Header(
            version, self.made_at, self.generation.id, self.settings, len(request.tokens),
            request.max_tokens, bounds.context, self._offload, numbers is not None,
            sorted(eos if numbers is None else (numbers[token] for token in eos & numbers.keys())),
            list(self._workers), finish, self.complete, self._policy_state,
        )  # fmt: skip
        return trace.Trace(header, self.entries)

    # --- entries -------------------------------------------------------------------------------------------------

    def _add(self, event: trace.AnyEvent) -> None:
        entry = self._now, event
        self._left -= len(trace.encode(entry))
        self.complete = self.complete and self._left >= 0
        if self.complete:
            self.entries.append(entry)

    def _named(self, tokens: Sequence[int]) -> list[int]:
        """The tokens as they are written."""
        numbers = self._numbers
        if numbers is None:
            return list(tokens)
        return [numbers.setdefault(token, len(numbers) + 1) for token in tokens]

    def _written(self, event: events.Event, effects: Sequence[events.Effect]) -> trace.AnyEvent | None:
        """The event as a trace has it: without texts, nodes and hashes. None where it changes nothing."""
        match event:
            case events.FrameArrived(worker, frame):
                given, taken = self.generation.assignments.of(worker, frame.epoch), effects[0]
                if given is None:
                    return None
                on_path = isinstance(taken, events.FrameTaken) and not taken.unknown_prefix
                tokens = self._named(frame.tokens)
                return trace.Frame(
                    worker, frame.prefix_len, on_path, frame.first, frame.parents, tokens, frame.costs, frame.entropies
                )
            case events.Verified(_, rows):
                chosen = next((effect for effect in effects if isinstance(effect, events.Chosen)), None)
                if chosen is None:  # the constraint left no token
                    return events.Ended("error")
                entropies, tokens = [rows.entropy(row) for row in chosen.rows], self._named(chosen.tokens)
                forced, self._forced = self._named(self._forced), []
                return trace.Verified(tokens, entropies, forced)
            case events.Drafted(leaves, proposals):
                found = [(self._named(one.tokens), list(one.costs), one.entropy) for one in proposals]
                return trace.Drafted([leaf.id for leaf in leaves], found)
            case events.WorkerChanged(worker, why):
                if not effects:  # it is not about its worker
                    return None
                if why in ("assigned", "beside"):
                    self._workers[worker] = None
                return events.WorkerChanged(worker, why)
            case events.Failed(scope):
                return events.Failed(scope, "")
            case events.Ended(why):
                return events.Ended(why)
            case events.Spent():
                return None
            case _:
                return event


def act_of(action: actions.Action) -> trace.Act:
    """A decision as a trace keeps it."""
    match action:
        case actions.Verify(nodes):
            return trace.Act("verify", [node.id for node in nodes])
        case actions.Draft(leaves, width):
            return trace.Act("draft", [leaf.id for leaf in leaves], width)
        case actions.CatchUp(tokens):
            return trace.Act("catch-up", [], tokens)
        case actions.Wait(until):
            return trace.Act("wait", [], until)
