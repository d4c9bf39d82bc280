"""The verify passes of a turn of the engine, and the end of each request's round. Lives on the engine's thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cloud_gateway.active import Active
from cloud_gateway.caught import Caught
from cloud_gateway.core.accept import Walk
from cloud_gateway.core.actions import Outcome, Verify
from cloud_gateway.core.estimators import StepCurve
from cloud_gateway.core.request import ConstraintError, Event, Finish, TokenLogprob, TokensEvent
from cloud_gateway.local import LocalDrafting
from cloud_gateway.offloading import Offloading
from cloud_gateway.recovery import Recovery
from cloud_gateway.stats import Stats
from cloud_gateway.target import Target, Verified, Work
from edgespec.core.tree import Node


@dataclass(frozen=True, slots=True)
class Chosen:
    """What one round of a request brought."""

    taken: Walk
    outcome: Outcome
    finish: Finish | None
    answer: Sequence[int]
    """What of its tokens belongs to the answer: all but the one that ends it."""
    logprobs: Sequence[TokenLogprob] | None


@dataclass(slots=True)
class Verifier:
    """Runs passes of the target, and hands on what they bring; a fault stays with its request (recovery.py)."""

    target: Target
    local: LocalDrafting
    offloading: Offloading
    recovery: Recovery
    stats: Stats
    verify_s: StepCurve
    clock: Callable[[], float]
    emit: Callable[[Active, Event], None]
    finish: Callable[[Active, Finish, str | None], None]

    def run(self, ready: Sequence[tuple[Active, Verify]]) -> None:
        """One pass over every ready request's tree; those that a failed pass has made suspect have one each."""
        works = [(active, work) for active, action in ready if (work := self._work(active, action)) is not None]
        together = [pair for pair in works if not pair[0].alone]
        for group in [together, *([pair] for pair in works if pair[0].alone)]:
            if group:
                self._pass(group)

    def _work(self, active: Active, action: Verify) -> Work | None:
        """Its share of the pass; None after a fault."""
        nodes: Sequence[Node] | None = None
        with self.recovery.guard(active, "applying its constraint"):
            nodes = active.select(action.nodes)
        if nodes is not None:
            with self.recovery.guard(active, "laying out its tree"):
                return Work(active.slot, active.flatten(nodes))
        return None

    def _pass(self, group: Sequence[tuple[Active, Work]]) -> None:
        """One pass of the target and, where it succeeds, the end of each request's round."""
        actives = [active for active, _ in group]
        began = self.clock()
        with Caught() as caught:
            results = list(zip(group, self.target.verify([work for _, work in group]), strict=True))
        if caught.error is not None:
            self.recovery.pass_failed(actives, caught.error)
            return
        spent = self.clock() - began
        self.recovery.pass_succeeded(actives)
        self.stats.target_s += spent
        for one in self.target.passes:  # each by its own rows: two passes of three rows are not one of six
            self.verify_s.sample(one.rows, one.seconds)
        for (active, work), result in results:
            self._end_round(active, work, result)
        self.stats.rounds += 1

    def _end_round(self, active: Active, work: Work, result: Verified) -> None:
        """Keeps the path that the target chose, tells everybody, and emits its tokens."""
        now = self.clock()
        chosen = self._choose(active, work, result)
        if chosen is None:
            return
        self.stats.tokens += len(chosen.taken.tokens)
        active.time_round(now)
        failed = self._keep(active, chosen.taken)
        with self.recovery.guard(active, "passing on its tokens"):
            active.round_ended(chosen.outcome, now)
            self.local.commit(active, chosen.taken.tokens)
            self.offloading.commit(active, chosen.taken.tokens, at_leaf=chosen.outcome.at_leaf)
        if active.ended:
            return
        if chosen.answer and not active.cancelled:
            self.emit(active, TokensEvent(tuple(chosen.answer), chosen.logprobs))
        if chosen.finish is not None:
            self.finish(active, chosen.finish, None)
        elif failed is not None:
            self.recovery.pass_failed([active], failed)

    def _choose(self, active: Active, work: Work, result: Verified) -> Chosen | None:
        """Walks the verified tree. None where the request had to be ended: its tokens cannot be chosen."""
        with self.recovery.guard(active, "choosing its tokens", fatal=True):
            try:
                taken, outcome = active.accept(work.tree, result, self.target.eos)
            except ConstraintError as error:
                self.finish(active, "error", str(error))
                return None
            finish = active.finish_of(taken.tokens, self.target.eos)
            answer = taken.tokens[:-1] if finish == "stop" else taken.tokens
            logprobs = active.logprobs(taken, result)
            return Chosen(taken, outcome, finish, answer, logprobs and logprobs[: len(answer)])
        return None

    def _keep(self, active: Active, taken: Walk) -> Exception | None:
        """Keeps the keys and values of the path taken; returns what went wrong."""
        with Caught() as caught:
            self.target.keep(active.slot, taken.rows)
        return caught.error
