"""The verify passes of a turn of the engine. Lives on the engine's thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cloud_gateway.core.policies.actions import Verify
from cloud_gateway.core.policies.estimators import StepCurve
from cloud_gateway.core.requests.events import Verified
from cloud_gateway.engine.active import Active
from cloud_gateway.engine.caught import Caught
from cloud_gateway.engine.steering import Steering
from cloud_gateway.models.target_model import Work
from edgespec.core.drafting.tree import Node


@dataclass(slots=True)
class Verifier:
    """Runs passes of the target, and hands on what they bring; a fault stays with its request (recovery.py)."""

    steering: Steering
    verify_s: StepCurve

    def run(self, ready: Sequence[tuple[Active, Verify]]) -> None:
        """One pass over every ready request's tree; those that a failed pass has made suspect have one each."""
        works = [(active, work) for active, action in ready if (work := self._work(active, action)) is not None]
        together = [pair for pair in works if not pair[0].generation.alone]
        for group in [together, *([pair] for pair in works if pair[0].generation.alone)]:
            if group:
                self._pass(group)

    def _work(self, active: Active, action: Verify) -> Work | None:
        """Its share of the pass; None after a fault."""
        nodes: Sequence[Node] | None = None
        with self.steering.recovery.guard(active, "applying its constraint"):
            nodes = active.generation.select(action.nodes)
        if nodes is not None:
            with self.steering.recovery.guard(active, "laying out its tree"):
                return Work(active.slot, active.generation.flatten(nodes))
        return None

    def _pass(self, group: Sequence[tuple[Active, Work]]) -> None:
        """One pass of the target and, where it succeeds, the end of each request's round."""
        steering = self.steering
        target, stats, clock = steering.target, steering.stats, steering.clock
        began = clock()
        with Caught() as caught:
            results = list(zip(group, target.verify([work for _, work in group]), strict=True))
        if caught.error is not None:
            steering.recovery.pass_failed([active for active, _ in group], caught.error)
            return
        stats.target_s += clock() - began
        steering.recovery.pass_succeeded()
        for one in target.passes:  # each by its own rows: two passes of three rows are not one of six
            self.verify_s.sample(one.rows, one.seconds)
        for (active, work), rows in results:
            steering.step(active, Verified(work.tree, rows), "choosing its tokens", fatal=True)
        stats.rounds += 1
