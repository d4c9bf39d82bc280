"""The whole decision of policy `adaptive` against a slow twin: every set of rows, every length of a local run and both
outcomes of a wait are tried, and the action of the greatest expectation is taken."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from cloud_gateway.core.policies.adaptive import WIDTH, Adaptive
from cloud_gateway.core.policies.guard import Reference
from cloud_gateway.core.policies.policy import Costs, Draft, LinkView, Outcome, Verify, Wait
from cloud_gateway.core.policies.settings import PolicySettings
from cloud_gateway.core.policies.tuning import TUNING
from cloud_gateway.core.policies.worth import MAX_RUN, SPAN
from cloud_gateway.core.verify.candidates import CandidateTree, Merged

ROWS = 16


class Twin:
    """Seconds that each action is worth more than verifying now, by enumeration."""

    def __init__(self, policy: Adaptive, tree: CandidateTree, link: LinkView | None, costs: Costs, now: float) -> None:
        self.policy = policy
        self.link = link
        self.costs = costs
        self.now = now
        self.estimate = policy.tree_model.estimate(tree, costs.local_leaves, WIDTH, math.inf, ROWS)
        self.token_s = Reference.of(costs, policy.tree_model.here.match).token_s
        known = len(self.estimate.survival)
        self.row_s = max((costs.verify_s(1 + known + SPAN) - costs.verify_s(1 + known)) / SPAN, 0.0)

    def pays(self, survival: Sequence[float]) -> float:
        """The worth of the best set of at most so many rows."""
        worth = [self.token_s * chance - self.row_s for chance in survival]
        return max(sum(sorted(worth, reverse=True)[:count]) for count in range(min(len(worth), ROWS) + 1))

    def level(self, leaves: int) -> float:
        """The information that a step over so many leaves adds."""
        found = [mass * share for mass, _, _ in self.estimate.openings[:leaves] for share in self.estimate.shares]
        return self.pays([*self.estimate.survival, *found]) - self.pays(self.estimate.survival)

    def run(self, first: float, fade: float, step: float) -> float:
        """The best number of levels."""
        return max(sum(first * fade**level - step for level in range(count)) for count in range(MAX_RUN + 1))

    def lost(self, levels: float) -> float:
        """Share of a level that the pass after this one does not recover, when the worker has brought it."""
        tokens = [sum(self.policy.worker.stay_rate**depth for depth in range(count)) for count in (2, 3)]
        again = self.policy.worker.stay_rate ** (levels + 1) if tokens[1] > tokens[0] else 0.0
        return 1 - min(levels, 1.0) * again

    def wait(self) -> float:
        """The worth of a useful frame, less the wait."""
        if self.link is None:
            return -math.inf
        worker = self.policy.worker
        target_s = self.costs.verify_s(1)
        missing = max(worker.frontier, self.estimate.root.position) + 1 if self.estimate.nodes else None
        due = worker.expect(missing or self.estimate.root.position + 1, self.link, self.now)
        if due is None:
            return -math.inf
        level_s = worker.level_s(self.link)
        kept = worker.stay_rate
        first = self.level(WIDTH) * self.lost(target_s / level_s)
        value = first + self.run(first * kept, kept, level_s)
        return due.chance * value - (due.at_s - self.now)

    def values(self) -> dict[type, float]:
        """The values of all three actions."""
        wait = self.wait()
        step = self.costs.draft_s(1)
        most = len(self.estimate.leaves)
        first = max(self.level(leaves) for leaves in range(1, most + 1))
        fade = sum(self.estimate.shares)  # a step takes as long over any number of leaves
        worth = self.run(first, fade, step) if first > step else -math.inf
        return {Verify: 0.0, Wait: wait, Draft: worth - max(wait, 0.0)}

    def best(self) -> tuple[type, float]:
        """The action, and by how much it is better than the next."""
        values = self.values()
        if abs(values[Draft]) < 1e-4 or (values[Draft] < 0 and abs(values[Wait]) < 1e-4):
            return Verify, 0.0
        return (Draft if values[Draft] > 0 else Wait if values[Wait] > 0 else Verify), 1.0


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.floats(0.05, 0.95)), max_size=8),
    st.floats(0.0, 0.002), st.floats(0.001, 0.03), st.floats(0.0, 0.1), st.floats(0.002, 0.02), st.floats(0.0, 1.2),
    st.booleans(), st.booleans(), st.booleans(),
)  # fmt: skip
def test_the_decision_is_that_of_the_slow_twin(
    made: list[tuple[int, int, float]], row_s: float, draft_s: float, rtt_s: float, step_s: float, later: float,
    worker: bool, streams: bool, unsent: bool,
) -> None:  # fmt: skip
    policy = Adaptive(PolicySettings(prefer="latency"))
    tree = CandidateTree([1, 2])
    link = LinkView(rtt_s, 1.2 * rtt_s, step_s, ready=True) if worker else None
    costs = Costs(lambda rows: 0.03 + row_s * rows, draft_s)
    policy.decide(tree, link, replace(costs, local_step_s=None), 0.0)
    now = 0.0
    if streams:
        policy.received(Merged(fresh=1, reached=2), now)
    if unsent:
        now += 0.6 * Reference.of(costs, TUNING.match).token_s
        tree.advance([7])
        policy.verified(Outcome(0, 1, True, 0.5, tree.root.position), now)
        assume(policy.completion.token_s(Reference.of(costs, TUNING.match).token_s) > 0)
    nodes = [tree.root]
    for parent, token, chance in made:
        above = nodes[parent % len(nodes)]
        nodes.append(tree.add_local(above, token, -math.log(chance), 1.0) or above)
    now += later * step_s
    twin = Twin(policy, tree, link, costs, now)
    twin.token_s = policy.completion.token_s(Reference.of(costs, policy.tree_model.here.match).token_s)
    action, margin = twin.best()
    if margin:
        assert isinstance(policy.decide(tree, link, costs, now), action), twin.values()
