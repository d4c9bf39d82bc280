"""Writes down what happens at the boundary of a request's machine (`events.Listener`), as it happens.

The log is kept as entries of a trace, in memory, so that nothing waits for a disk: `recorder` packs and signs it when
the request is over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from cloud_gateway.core.policies import policy
from cloud_gateway.core.requests import events
from cloud_gateway.core.requests.generation import Generation
from cloud_gateway.core.sources.interface import Suggestion
from cloud_gateway.engine.exchange import PolicyStart
from cloud_gateway.parts.request_traces.format import (
    MAX_EVENTS,
    AnyEvent,
    Decided,
    Drafted,
    Entry,
    Frame,
    Guided,
    Header,
    Suggested,
    Trace,
    Verified,
    act_of,
    encode,
)
from edgespec.core.drafting.tree import Node


class TokenNames(Protocol):
    """The numbers that stand for tokens in a trace."""

    salted: bool

    def named(self, tokens: Sequence[int]) -> list[int]:
        """The numbers of these tokens, one for each."""

    def known(self, tokens: Iterable[int]) -> list[int]:
        """The numbers of those tokens that the trace may hold, in order."""


class OwnNames:
    """Tokens as they are, so that the completion can be read."""

    salted = False

    def named(self, tokens: Sequence[int]) -> list[int]:
        return list(tokens)

    def known(self, tokens: Iterable[int]) -> list[int]:
        return sorted(tokens)


class SaltedNames:
    """Numbers in the order in which tokens first appear, which no key could undo."""

    salted = True

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}

    def named(self, tokens: Sequence[int]) -> list[int]:
        numbers = self._numbers
        return [numbers.setdefault(token, len(numbers) + 1) for token in tokens]

    def known(self, tokens: Iterable[int]) -> list[int]:
        return sorted(self._numbers[token] for token in tokens if token in self._numbers)


class CurveLog:
    """The target's curve, of which a trace holds each point once."""

    def __init__(self, start: PolicyStart) -> None:
        self._curve = start.curve
        self._samples = -1
        self._points: dict[int, float] = {}

    def new_points(self) -> dict[int, float]:
        """Those that changed since the last call: rows -> seconds. The first call returns the whole curve."""
        if self._curve.samples == self._samples:
            return {}

        before = self._points
        self._samples = self._curve.samples
        self._points = self._curve.points()
        return {rows: seconds for rows, seconds in self._points.items() if before.get(rows) != seconds}


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
        """`made_at`: Unix seconds; `ended` is called with the finish; `salt`: whether tokens are salted."""
        self.generation = generation
        self.start = start
        self.made_at = made_at
        self.entries: list[Entry] = []
        self.complete = True
        self.decisions = 0
        self._offload = generation.assignments.allowed
        self._left = limit_bytes
        self._ended = ended
        self._names: TokenNames = OwnNames()
        if salt:
            self._names = SaltedNames()
        self._workers: dict[str, None] = {}
        self._curve = CurveLog(start)
        self._now = 0.0
        """Of the latest event or decision: what sources and constraint do follows it at once."""

    # --- the machine's boundary ----------------------------------------------------------------------------------

    def handled(self, event: events.Event, effects: Sequence[events.Effect], now: float) -> None:
        """The machine took an event in. What changes nothing is not written."""
        self._now = now
        written = self._written(event, effects)
        if written is not None:
            self._add(written)

        for effect in effects:
            if isinstance(effect, events.Finished):
                self._ended(self, effect.finish)

    def decided(self, link: policy.LinkView | None, costs: policy.Costs, now: float, action: policy.Action) -> None:
        """The policy was asked; what is new of the target's curve is written too."""
        self._now = now
        size = len(self.generation.tree.tree)
        self._add(Decided(link, costs, self._curve.new_points(), size, act_of(action)))
        self.decisions += 1

    def suggested(self, source: str, suggestions: Sequence[Suggestion], proposed: int, why: str | None) -> None:
        """A source without a draft model put candidates into the tree."""
        if not suggestions:
            return

        parents = [suggestion.parent for suggestion in suggestions]
        tokens = self._names.named([suggestion.token for suggestion in suggestions])
        chances = [suggestion.chance for suggestion in suggestions]
        self._add(Suggested(source, parents, tokens, chances))

    def guided(self, nodes: Sequence[Node], chosen: Sequence[Node]) -> None:
        """The completion's constraint made these candidates of those."""
        given = set(nodes)
        kept = set(chosen)
        left_out = [node.id for node in nodes if node not in kept]
        forced = self._named_nodes([node for node in chosen if node not in given])
        if left_out or forced:
            self._add(Guided(left_out, forced))

    # --- entries -------------------------------------------------------------------------------------------------

    def as_trace(self, version: str, finish: str) -> Trace:
        """What was written, as a trace; `version` of edgespec."""
        request = self.generation.request
        bounds = self.generation.bounds
        eos: list[int] = []
        if not request.ignore_eos:
            eos = self._names.known(bounds.eos)

        header = Header(
            edgespec=version,
            made_at=self.made_at,
            request=self.generation.id,
            settings=self.start.settings,
            prompt_len=len(request.tokens),
            max_tokens=request.max_tokens,
            context=bounds.context,
            offload=self._offload,
            salted=self._names.salted,
            eos=eos,
            workers=list(self._workers),
            finish=finish,
            complete=self.complete,
            policy_state=self.start.learnt,
        )
        return Trace(header, self.entries)

    def _add(self, event: AnyEvent) -> None:
        entry = self._now, event
        self._left -= len(encode(entry))
        self.complete = self.complete and self._left >= 0 and len(self.entries) < MAX_EVENTS
        if self.complete:
            self.entries.append(entry)

    def _written(self, event: events.Event, effects: Sequence[events.Effect]) -> AnyEvent | None:
        """The event as a trace has it: without texts, nodes and hashes. None if it changes nothing."""
        match event:
            case events.FrameArrived():
                return self._frame(event, effects[0])
            case events.Verified():
                return self._verified(event, effects)
            case events.Drafted():
                return self._drafted(event)
            case events.WorkerChanged(worker, why):
                if not effects:  # it is not about the request's worker
                    return None
                if event.assigns:
                    self._workers[worker] = None
                return events.WorkerChanged(worker, why)
            case events.Failed(scope):
                return events.Failed(scope, "")
            case events.Ended(why):
                return events.Ended(why)
            case _:
                return event

    def _frame(self, event: events.FrameArrived, taken: events.Effect) -> Frame | None:
        """None for a frame of another worker or epoch, of which the machine takes nothing."""
        frame = event.frame
        given = self.generation.assignments.given.get(event.worker)
        if given is None or given.epoch != frame.epoch:
            return None

        return Frame(
            worker=event.worker,
            prefix_len=frame.prefix_len,
            on_path=isinstance(taken, events.FrameTaken) and not taken.unknown_prefix,
            first=frame.first,
            parents=frame.parents,
            tokens=self._names.named(frame.tokens),
            costs=frame.costs,
            entropies=frame.entropies,
        )

    def _verified(self, event: events.Verified, effects: Sequence[events.Effect]) -> Verified | events.Ended:
        """The target's choices, or an end if the constraint left none."""
        for effect in effects:
            if isinstance(effect, events.Chosen):
                entropies = [event.rows.entropy(row) for row in effect.rows]
                tokens = self._names.named(effect.tokens)
                return Verified(tokens, entropies, self._named_nodes(self.generation.forced))

        return events.Ended("error")

    def _drafted(self, event: events.Drafted) -> Drafted:
        leaves = [leaf.id for leaf in event.leaves]
        proposals = [
            (self._names.named(proposal.tokens), list(proposal.costs), proposal.entropy) for proposal in event.proposals
        ]
        return Drafted(leaves, proposals)

    def _named_nodes(self, nodes: Sequence[Node]) -> list[int]:
        return self._names.named([node.token for node in nodes])
