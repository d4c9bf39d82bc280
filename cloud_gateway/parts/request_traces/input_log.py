"""Writes down what happens at the boundary of a request's machine (`events.Listener`), as it happens."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cloud_gateway.core.policies import policy
from cloud_gateway.core.requests import events
from cloud_gateway.core.requests.generation import Generation
from cloud_gateway.core.sources.interface import Suggestion
from cloud_gateway.engine.exchange import PolicyStart
from cloud_gateway.parts.request_traces import format as trace
from edgespec.core.drafting.tree import Node


class InputLog(events.Listener):
    """One request's entries, up to a limit; the rest of the request goes unrecorded."""

    def __init__(
        self,
        generation: Generation,
        start: PolicyStart,
        made_at: int,
        limit_bytes: int,
        ended: Callable[[InputLog, str], None] = lambda log, finish: None,
        *,
        salt: bool = True,
    ) -> None:
        """`made_at`: Unix seconds; `ended` is called with the finish. `salt`: tokens are written as numbers in the
        order of their appearance, which no key could undo."""
        self.generation = generation
        self.start = start
        self.made_at = made_at
        self._offload = generation.assignments.allowed
        self.entries: list[trace.Entry] = []
        self.complete = True
        self.decisions = 0
        self._left = limit_bytes
        self._ended = ended
        self._numbers: dict[int, int] | None = {} if salt else None
        self._workers: dict[str, None] = {}
        self._now = 0.0
        self._samples = -1
        self._points = dict[int, float]()

    # --- the machine's boundary ----------------------------------------------------------------------------------

    def handled(self, event: events.Event, effects: Sequence[events.Effect], now: float) -> None:
        """The machine took an event in. What changes nothing is not written."""
        self._now = now
        if (written := self._written(event, effects)) is not None:
            self._add(written)
        for effect in effects:
            if isinstance(effect, events.Finished):
                self._ended(self, effect.finish)

    def decided(self, link: policy.LinkView | None, costs: policy.Costs, now: float, action: policy.Action) -> None:
        """The policy was asked; what is new of the target's curve is written too."""
        self._now = now
        new: dict[int, float] = {}
        if self.start.curve.samples != self._samples:
            before = self._points
            self._samples = self.start.curve.samples
            self._points = self.start.curve.points()
            new = {rows: seconds for rows, seconds in self._points.items() if before.get(rows) != seconds}

        self._add(trace.Decided(link, costs, new, len(self.generation.tree.tree), trace.act_of(action)))
        self.decisions += 1

    def suggested(self, source: str, suggestions: Sequence[Suggestion], proposed: int, why: str | None) -> None:
        """A source without a draft model put candidates into the tree."""
        if not suggestions:
            return
        tokens = self._named([one.token for one in suggestions])
        parents = [one.parent for one in suggestions]
        chances = [one.chance for one in suggestions]
        self._add(trace.Suggested(source, parents, tokens, chances))

    def guided(self, nodes: Sequence[Node], chosen: Sequence[Node]) -> None:
        """The completion's constraint made these candidates of those."""
        given = set(nodes)
        kept = set(chosen)
        left_out = [node.id for node in nodes if node not in kept]
        forced = self._named([node.token for node in chosen if node not in given])
        if left_out or forced:
            self._add(trace.Guided(left_out, forced))

    def as_trace(self, version: str, finish: str) -> trace.Trace:
        """What was written, as a trace; `version` of edgespec."""
        request = self.generation.request
        bounds = self.generation.bounds
        numbers = self._numbers
        eos = frozenset[int]() if request.ignore_eos else bounds.eos
        header = trace.Header(
            version, self.made_at, self.generation.id, self.start.settings, len(request.tokens),
            request.max_tokens, bounds.context, self._offload, numbers is not None,
            sorted(eos if numbers is None else (numbers[token] for token in eos & numbers.keys())),
            list(self._workers), finish, self.complete, self.start.learnt,
        )  # fmt: skip
        return trace.Trace(header, self.entries)

    # --- entries -------------------------------------------------------------------------------------------------

    def _add(self, event: trace.AnyEvent) -> None:
        entry = self._now, event
        self._left -= len(trace.encode(entry))
        self.complete = self.complete and self._left >= 0 and len(self.entries) < trace.MAX_EVENTS
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
                given = self.generation.assignments.given.get(worker)
                taken = effects[0]
                if given is None or given.epoch != frame.epoch:
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
                entropies = [rows.entropy(row) for row in chosen.rows]
                tokens = self._named(chosen.tokens)
                return trace.Verified(tokens, entropies, self._named([node.token for node in self.generation.forced]))
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
            case _:
                return event
