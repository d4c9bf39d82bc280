"""Policy `adaptive`: the action of the greatest expected value (docs/adaptive.md derives it).

At every free moment it compares, in seconds at the price of a token (worth.py):

    verify     the candidates that pay for their rows, none included; this is zero, the others are relative to it
    wait       for the worker's next useful level: how likely, how soon, how much (arrival.py)
    draft      a run of local levels; what the local draft must read first pays over the tokens that remain

`prefer` limits local passes while the worker drafts (completion.py): not before its first frame, nor once the guard has
left it (guard.py). The seven tuned numbers are in tuning.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import NamedTuple

from cloud_gateway.core.policies.arrival import Timeline
from cloud_gateway.core.policies.completion import CompletionState
from cloud_gateway.core.policies.guard import Guard, Mode, Reason, Reference
from cloud_gateway.core.policies.policy import (
    Action,
    CatchUp,
    Costs,
    Draft,
    Learnt,
    LearntLimit,
    LinkView,
    Outcome,
    Policy,
    Verify,
    Wait,
)
from cloud_gateway.core.policies.settings import DEFAULTS, PolicySettings
from cloud_gateway.core.policies.tree_model import TreeEstimate, TreeModel
from cloud_gateway.core.policies.tuning import TUNING, Tuning
from cloud_gateway.core.policies.worth import Level, Prices, Run, best_run, worker_s
from cloud_gateway.core.verify.candidates import CandidateTree, Merged
from edgespec.core.drafting.algorithm2 import Proposal
from edgespec.core.drafting.tree import Node

WIDTH = 4
"""Children that a local pass names of each leaf, and leaves of which a worker's frame is expected to bring children."""

STATE = frozenset({"local hits", "worker hits", "draft", "worker", "entropy", "guard", "answers"})
"""Names of what is carried to the next completion."""


class WaitOption(NamedTuple):
    """The value of waiting for the worker's next level, and until when it is waited for."""

    value_s: float
    until_s: float


@dataclass(slots=True)
class Adaptive(Policy):
    """See the module's text."""

    name = "adaptive"
    uses_phi = True
    uses_sources = True
    settings: PolicySettings = DEFAULTS
    tuning: Tuning = TUNING
    fallbacks: int = field(default=0, init=False)
    why: str | None = field(default=None, init=False)
    change: tuple[Mode, Reason] | None = field(default=None, init=False)
    learnt_phi: LearntLimit | None = field(default=None, init=False)
    completion: CompletionState = field(init=False)
    tree_model: TreeModel = field(init=False)
    worker: Timeline = field(init=False)
    guard: Guard = field(init=False)
    _refused: str | None = field(default=None, init=False)
    """Why no local run began in the latest round that had a use for one."""
    _link: LinkView | None = field(default=None, init=False)
    """The worker that drafted for the round under way."""
    _reference: Reference | None = field(default=None, init=False)
    """By the costs of the round under way."""
    _noted: int = field(default=-1, init=False)
    """Position of the latest open leaf that `learnt_phi` counts."""

    def __post_init__(self) -> None:
        self.completion = CompletionState(self.settings.prefer, self.tuning)
        self.tree_model = TreeModel(self.tuning)
        self.worker = Timeline(self.tuning)
        self.guard = Guard(self.settings.prefer, self.tuning)

    def resume(self, learnt: Learnt) -> None:
        """Starts with what earlier completions of the same kind taught (`state`); before the first decision.

        Raises ValueError for a state that another version made.
        """
        if missing := sorted(STATE - learnt.keys()):
            raise ValueError(f"what policy `adaptive` carried over lacks {', '.join(missing)}")

        self.tree_model.local.resume(learnt["local hits"])
        self.tree_model.worker.resume(learnt["worker hits"])
        self.tree_model.calibrator.resume(learnt["draft"])
        self.worker.resume(learnt["worker"])
        self.worker.odds.resume(learnt["entropy"])
        self.completion.resume(learnt["answers"])
        self.guard.resume(learnt["guard"])

    def state(self) -> Learnt:
        """What the next completion of this kind starts with, as plain data: bounded, and exact when it is read back."""
        reference_s = None
        if self._reference is not None:
            reference_s = self._reference.token_s
        return {
            "local hits": self.tree_model.local.state(),
            "worker hits": self.tree_model.worker.state(),
            "draft": self.tree_model.calibrator.state(),
            "worker": self.worker.state(),
            "entropy": self.worker.odds.state(),
            "guard": list(self.guard.state()),
            "answers": self.completion.state(reference_s),
        }

    def reads_prompt(self, costs: Costs, *, worker: bool) -> bool:
        """No, while a worker drafts; else whether reading pays over the tokens that remain.

        All that share the passes are taken to read as well.
        """
        if worker:
            return False
        reference = Reference.of(costs, self.tree_model.here.match)
        saved_s = reference.plain_s - reference.colocated_s
        return saved_s * self.completion.remaining(costs) > costs.local_backlog_s * (1 + costs.sharers)

    def why_not_local(self, *, drafted: bool) -> str | None:
        """The reason of the latest round that had a use for a local pass."""
        return self._refused

    def decide(self, tree: CandidateTree, link: LinkView | None, costs: Costs, now: float) -> Action:
        """Compares what waiting and drafting are worth, in seconds relative to verifying now."""
        self._begin(tree, link, costs, now)
        reference = Reference.of(costs, self.tree_model.here.match)
        self._reference = reference

        # A worker that the guard has left counts no more, so that the local draft reads as if there were none.
        worker = self._worker_kept(link, costs)
        unread = costs.local_backlog_s > costs.batch_backlog_s
        if link is not None and worker is None and unread and self.reads_prompt(costs, worker=False):
            return self._read(costs)

        estimate = self._estimate(tree, costs)
        prices = Prices(costs, self.completion.token_s(reference.token_s))
        level = Level(prices, estimate.survival, self.settings.verify_nodes)
        verify = Verify(estimate.nodes[: prices.best_count(estimate.survival)])

        waiting = None
        if worker is not None:
            waiting = self._waiting(estimate, prices, level, worker, now)
        waiting_s = 0.0
        if waiting is not None:
            waiting_s = max(waiting.value_s, 0.0)

        # Sources without a model make tokens cheap. At their price no run would pay, and where they know nothing each
        # token would take a pass.
        if worker is None and self.tree_model.sources_help:
            prices = Prices(costs, reference.token_s)
            level = Level(prices, estimate.survival, self.settings.verify_nodes)

        # A run under way goes on as long as its next pass pays; one that begins may have to read first.
        run = self._run(estimate, costs, prices, level)
        if run is not None and self.completion.passes:
            return self._draft(run, costs)
        if self.completion.passes:
            return verify
        if run is not None and self._begins(run, costs, worker, waiting_s):
            if unread:
                return self._read(costs)
            return self._draft(run, costs)

        if waiting is not None and waiting.value_s > 0:
            return Wait(waiting.until_s)

        return verify

    def _begin(self, tree: CandidateTree, link: LinkView | None, costs: Costs, now: float) -> None:
        """Takes in what a decision is asked about."""
        if self.completion.asked(now, costs.paused_s):
            self.worker.start(tree.root.position, now)
        self._link = link
        self.change = None

    def _worker_kept(self, link: LinkView | None, costs: Costs) -> LinkView | None:
        """The worker, unless the guard leaves it, which is decided where a round begins."""
        if link is None:
            return None

        if not self.completion.passes:
            remaining = self.completion.remaining(costs)
            shares = self.tree_model.here.shares
            reason = self.guard.choose(costs, shares, self.settings.verify_nodes, remaining)
            if reason is not None:
                self.change = (self.guard.mode, reason)
                if self.guard.mode == "alone":
                    self.why = self._reason(link)

        return link if self.guard.mode == "normal" else None

    def _estimate(self, tree: CandidateTree, costs: Costs) -> TreeEstimate:
        """The tree down to where the completion will end."""
        leaves = WIDTH if costs.local_step_s is None else costs.local_leaves
        deepest = tree.root.position + costs.remaining - 1
        return self.tree_model.estimate(tree, leaves, WIDTH, deepest, self.settings.verify_nodes)

    def _waiting(
        self, estimate: TreeEstimate, prices: Prices, level: Level, worker: LinkView, now: float
    ) -> WaitOption | None:
        """What waiting for the worker's next level is worth; None if nothing is expected of it."""
        position = estimate.root.position
        if estimate.nodes:
            position = max(self.worker.frontier, position)
        due = self.worker.expect(position + 1, worker, now)
        if due is None or not estimate.leaves:
            return None

        stay_rate = self.worker.stay_rate
        first_s = level.value_s(estimate.expected(WIDTH, self.tree_model.worker.shares))
        levels_s = worker_s(first_s, stay_rate, self.worker.level_s(worker), prices.pass_s(0))

        # The other requests' pass begins meanwhile, and the next one comes after it.
        wait_s = due.at_s - now
        if prices.shared:
            wait_s = max(wait_s, prices.token_s)

        self._note_limit(wait_s, levels_s)
        return WaitOption(due.chance * levels_s - wait_s, due.at_s)

    def _note_limit(self, wait_s: float, levels_s: float) -> None:
        """Notes the learnt φ at a new open leaf: the entropy at which the worker is on the path with the chance from
        which on waiting pays."""
        leaf = self.worker.open
        if leaf is None or leaf.position == self._noted:
            return

        self._noted = leaf.position
        break_even = 1.0
        if levels_s > wait_s:
            break_even = wait_s / levels_s
        limit = self.worker.odds.limit(break_even)

        before = self.learnt_phi or LearntLimit(None, 0, 0)
        nats = limit if isfinite(limit) else None
        self.learnt_phi = LearntLimit(nats, before.leaves + 1, before.above + (leaf.entropy > limit))

    def _run(self, estimate: TreeEstimate, costs: Costs, prices: Prices, level: Level) -> Run | None:
        """The best run of the local draft; None if no first pass pays for itself."""
        if costs.local_step_s is None or not estimate.leaves:
            return None

        run = best_run(estimate, costs, prices, level)
        if run.value_s > 0:
            return run

        step = f"a draft step takes {_ms(run.step_s)}, and what it finds would save {_ms(run.first_s)}"
        self._refuse(costs, step)
        return None

    def _begins(self, run: Run, costs: Costs, worker: LinkView | None, waiting_s: float) -> bool:
        """Whether a run begins, or what has to be read for it."""
        saved_s = run.value_s - waiting_s
        self.completion.wants_run |= saved_s > 0
        whole_s = saved_s * (1 + self.completion.runs(costs, run.tokens))
        if saved_s <= 0:
            candidates = f"the worker's next candidates save {_ms(waiting_s)}, drafting here {_ms(run.value_s)}"
            self._refuse(costs, candidates)
            return False
        if worker is not None and worker.ready and not self.completion.may_draft:
            self._refuse(costs, "`policy.prefer` leaves it no more passes while a worker drafts")
            return False
        if whole_s <= costs.reading_s:
            reading = (
                f"it has to read for {_ms(costs.reading_s)} first, and saves {_ms(whole_s)} over the tokens to come"
            )
            self._refuse(costs, reading)
            return False

        return True

    def _draft(self, run: Run, costs: Costs) -> Draft:
        """Makes the next pass of a run, and counts it."""
        if not self.completion.passes:
            self.fallbacks += self._link is not None
            self.why = self._reason(self._link)
            self._refused = None
        self.completion.drafts(1 / (1 + costs.together))
        return Draft(tuple(run.leaves), WIDTH)

    def _read(self, costs: Costs) -> CatchUp:
        """Reads a batch of what the local draft has not read."""
        self._refuse(costs, "it was still reading the committed tokens")
        return CatchUp()

    def withdrawn(self) -> None:
        if not self.completion.passes:
            return
        self.completion.withdraws()
        self.fallbacks -= not self.completion.passes and self._link is not None

    def _refuse(self, costs: Costs, why: str) -> None:
        """Keeps why no run begins here."""
        if self.completion.passes:
            return
        self._refused = why
        if costs.sharers:
            self._refused = f"{why} (other requests in the same passes: {costs.sharers})"

    def _reason(self, link: LinkView | None) -> str:
        """Why the gateway drafts."""
        if link is None:
            return "no worker drafts for it"

        away = _ms(link.rtt_s, digits=0)
        if self.guard.mode != "normal":
            return f"with the worker, {away} away, it was slower than without it"
        if not link.ready:
            return "the worker was still reading the prompt"

        return f"at {away} it was faster to draft here while the worker was on another path"

    def priced(self, leaves: Sequence[Node], proposals: Sequence[Proposal]) -> Sequence[Proposal]:
        return self.tree_model.priced(leaves, proposals)

    def received(self, merged: Merged, now: float) -> None:
        """Updates the estimate of where the worker's draft stands."""
        self.tree_model.workers_help = True
        hits = self.worker.hits
        divergences = self.worker.divergences
        self.worker.frame(merged, now)
        for _ in range(round(self.worker.hits - hits)):
            self.tree_model.worker.observe(hit=True)
        if self.worker.divergences > divergences:
            self.tree_model.worker.observe(hit=False)

    def verified(self, outcome: Outcome, now: float) -> None:
        """A round ended."""
        walked = self.tree_model.learn(WIDTH)
        if self._reference is not None:
            took_s = self.completion.ended(outcome.emitted, outcome.emitted * self._reference.passes, now)
            if self._link is not None and self._link.ready:
                self.guard.round(outcome.emitted, took_s / self._reference.plain_s)

        phi = self.settings.phi
        unsure = phi != "learnt" and outcome.entropy is not None and outcome.entropy > phi
        on_path = (outcome.at_leaf or not walked.missed) and not unsure
        self.worker.committed(outcome.position, walked.hits, now, on_path=on_path)
        if phi == "learnt" and outcome.entropy is not None and self._link is not None and not self.worker.diverged:
            self.worker.left_open(outcome.position, outcome.entropy, self._link, now)

    def needs_entropy(self, tree: CandidateTree, *, emitted: int, at_leaf: bool) -> bool:
        """Only if a worker that streams may be on the path, and no frame has shown yet whether it is."""
        if self._link is None or not self._link.ready or self.worker.diverged or self.guard.mode != "normal":
            return False

        # A root that somebody had proposed says where the worker is better than any entropy.
        return self.settings.phi != "learnt" or (at_leaf and not tree.root.owner)


def _ms(seconds: float, digits: int = 1) -> str:
    """As it is shown."""
    return f"{1000 * seconds:.{digits}f} ms"
