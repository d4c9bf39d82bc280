"""AMUSD's Algorithm 1 (McDanel 2024), with two devices that never take turns:

    verify process: whenever p_d > p_v, verify D[p_v : p_d]; on a mismatch set R and wait for the draft's roll-back

The draft process is the worker with b = 1, which drafts on while the target verifies and rolls back when a commit
leaves its path. The controller only has to verify whatever has arrived. Beyond the letter: a worker that stays silent
for long is not waited for.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cloud_gateway.core.policies.policy import Action, Costs, LinkView, Outcome, Policy, Verify, Wait
from cloud_gateway.core.policies.settings import DEFAULTS, PolicySettings
from cloud_gateway.core.verify.candidates import CandidateTree, Merged

SILENT_STEPS = 4
"""Draft steps without a candidate, beyond a round trip, after which the target goes on alone."""


@dataclass(slots=True)
class Amusd(Policy):
    """Verifies all that was drafted as soon as there is anything; never drafts itself."""

    name = "amusd"
    settings: PolicySettings = DEFAULTS
    _waits_since: float | None = field(default=None, init=False)

    def decide(self, tree: CandidateTree, link: LinkView | None, costs: Costs, now: float) -> Action:
        if tree.depth() > 0:
            return Verify(tree.best(self.settings.verify_nodes))
        if link is None:
            return Verify(())

        if self._waits_since is None:
            self._waits_since = now
        silent = self._waits_since + link.rtt_high_s + SILENT_STEPS * link.step_s
        if now < silent:
            return Wait(silent)
        return Verify(())

    def received(self, merged: Merged, now: float) -> None:
        if merged.useful:
            self._waits_since = None

    def verified(self, outcome: Outcome, now: float) -> None:
        self._waits_since = None
