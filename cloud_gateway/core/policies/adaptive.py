"""Policy `adaptive`: the action of the greatest expected value (docs/adaptive.md derives it).

At every free moment it compares, in seconds at the price of a token (worth.py):

    verify     the candidates that pay for their rows, none included; this is zero, the others are relative to it
    wait       for the worker's next useful level: how likely, how soon, how much (arrival.py)
    draft      a run of local levels; what the local draft must read first pays over the tokens that remain
    catch up   in a wait that is longer than a batch

`prefer` limits local passes while the worker drafts (completion.py): not before its first frame, nor once the guard has
left it (guard.py). The eight tuned numbers are in tuning.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import NamedTuple

from cloud_gateway.core.policies.arrival import Expected, OpenLeaf, Timeline
from cloud_gateway.core.policies.completion import Budget, CompletionState, Refusal, RefusalKind
from cloud_gateway.core.policies.guard import Guard, Mode, Reason, Reference
from cloud_gateway.core.policies.local_runs import Run, Situation, best_first_pass, best_run
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
from cloud_gateway.core.policies.tree_model import TreeEstimate, TreeModel, Walked
from cloud_gateway.core.policies.tuning import TUNING, Tuning
from cloud_gateway.core.policies.worth import (
    Level,
    Prices,
    break_even,
    per_pass_s,
    reading_pays,
    run_s,
    unrecovered_share,
    wait_value_s,
)
from cloud_gateway.core.verify.candidates import CandidateTree, Merged
from edgespec.core.drafting.algorithm2 import Proposal
from edgespec.core.drafting.tree import Node

WIDTH = 4
"""Children that a local pass names of each leaf, and leaves of which a worker's frame is expected to bring children."""

STATE = frozenset({"local hits", "worker hits", "draft", "worker", "entropy", "guard", "answers"})
"""Names of what is carried to the next completion."""


class WaitOption(NamedTuple):
    """The value of waiting for the worker's next level; `due`: None if none is expected."""

    value_s: float
    due: Expected | None


NO_WAIT = WaitOption(0.0, None)


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
    budget: Budget = field(init=False)
    _refused: Refusal | None = field(default=None, init=False)
    _link: LinkView | None = field(default=None, init=False)
    _reference: Reference | None = field(default=None, init=False)
    _tree: CandidateTree | None = field(default=None, init=False)
    _leaf: OpenLeaf | None = field(default=None, init=False)
    """The open leaf for which `learnt_phi` was noted last."""

    def __post_init__(self) -> None:
        self.completion = CompletionState(self.tuning)
        self.tree_model = TreeModel(self.tuning)
        self.worker = Timeline(self.tuning)
        self.guard = Guard(self.settings.prefer, self.tuning)
        self.budget = Budget(self.settings.prefer, self.tuning)

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
        return {
            "local hits": self.tree_model.local.state(),
            "worker hits": self.tree_model.worker.state(),
            "draft": self.tree_model.calibrator.state(),
            "worker": self.worker.state(),
            "entropy": self.worker.odds.state(),
            "guard": list(self.guard.state()),
            "answers": self.completion.state(self._reference),
        }

    def reads_prompt(self, costs: Costs, *, worker: bool) -> bool:
        """No, while a worker drafts; else whether reading pays over the tokens that remain.

        All that share the passes are taken to read as well.
        """
        if worker:
            return False
        reference = Reference.of(costs, self.tree_model.here.match)
        saved_s = reference.plain_s - reference.colocated_s
        backlog_s = costs.local_backlog_s * (1 + costs.sharers)
        return reading_pays(saved_s, self.completion.remaining(costs) - 1, backlog_s)

    def why_not_local(self, *, drafted: bool) -> str | None:
        """The reasons of the latest round that had a use for a local pass."""
        if self._refused is None:
            return None
        return str(self._refused)

    def decide(self, tree: CandidateTree, link: LinkView | None, costs: Costs, now: float) -> Action:
        """Compares what waiting and drafting are worth, in seconds relative to verifying now."""
        self._begin(tree, link, costs, now)
        reference = self._reference_for(costs)
        estimate = self._estimate(tree, costs)
        prices = Prices(costs, self.completion.token_s(reference))
        level = Level(prices, estimate.survival, self.settings.verify_nodes)
        situation = Situation(estimate, costs, prices, level, now)

        count = prices.best_count(estimate.survival[: self.settings.verify_nodes])
        verify = Verify(estimate.nodes[:count])

        # A worker that the guard has left counts no more, so that the local draft reads as if there were none.
        worker = link
        if link is not None and not self._with_worker(link, costs):
            worker = None
            if costs.local_backlog_s > costs.batch_backlog_s and self.reads_prompt(costs, worker=False):
                self._refuse("reading", costs)
                return CatchUp()

        waiting = self._waiting(situation, worker)
        draft = self._drafting(situation, reference, worker, waiting, verifies_nothing=not verify.nodes)
        if draft is not None:
            return draft
        if waiting.value_s > 0 and waiting.due is not None and not self.completion.passes:
            return self._wait(waiting.due, costs, now)

        return verify

    def _begin(self, tree: CandidateTree, link: LinkView | None, costs: Costs, now: float) -> None:
        """Takes in what a decision is asked about."""
        if self._tree is None:
            self.worker.start(tree.root.position, now)
            self.completion.begins(now, costs.paused_s)
        self.completion.paused(costs.paused_s)
        self._tree = tree
        self._link = link
        self.change = None

    def _estimate(self, tree: CandidateTree, costs: Costs) -> TreeEstimate:
        """The tree down to where the completion will end."""
        leaves = WIDTH if costs.local_step_s is None else costs.local_leaves
        deepest = tree.root.position + costs.remaining - 1
        return self.tree_model.estimate(tree, leaves, WIDTH, deepest, self.settings.verify_nodes)

    def _reference_for(self, costs: Costs) -> Reference:
        """What the gateway attains alone, by the costs with which a round is asked first.

        Asked again at a higher price, since fewer requests draft, it keeps the first one.
        """
        if self._reference is None or costs.together == costs.sharers:
            self._reference = Reference.of(costs, self.tree_model.here.match)
        return self._reference

    def _with_worker(self, link: LinkView, costs: Costs) -> bool:
        """Whether the worker counts in this round, which the guard decides where it begins."""
        if not self.completion.passes and costs.together == costs.sharers:
            shares = self.tree_model.here.shares
            remaining = self.completion.remaining(costs)
            self.guard.choose(costs, shares, self.settings.verify_nodes, remaining, ready=link.ready)
            self.change = self.guard.change
            if self.change and self.guard.mode != "normal":
                self.why = self._reason(link)
        return self.guard.mode == "normal"

    def _waiting(self, situation: Situation, link: LinkView | None) -> WaitOption:
        """When the worker's next level is due, and what waiting for it is worth."""
        if link is None or not situation.estimate.leaves:
            return NO_WAIT

        position = situation.estimate.root.position
        if situation.estimate.nodes:
            position = max(self.worker.frontier, position)
        due = self.worker.expect(position + 1, link, situation.now)

        # A level that misses this pass is verified by the next one, so that only part of its value is lost.
        stay_rate = self.worker.stay_rate
        level_s = self.worker.level_s(link)
        levels_in_pass = situation.prices.pass_s(0) / level_s
        brought = situation.estimate.expected(WIDTH, self.tree_model.worker.shares)
        first_s = situation.level.value_s(brought) * unrecovered_share(stay_rate, levels_in_pass)

        # The first level takes the time until it is due, each further one the worker's time for a level.
        levels_s = first_s + run_s(first_s * stay_rate, stay_rate, level_s)

        # The other requests' pass begins meanwhile.
        if situation.prices.shared:
            soon_s = max(due.soon_s, situation.prices.token_s)
        else:
            soon_s = due.soon_s

        if self.worker.open is not None and self.worker.open != self._leaf:
            self._leaf = self.worker.open
            self._note_limit(self._leaf.entropy, break_even(soon_s, due.late_s, levels_s))
        return WaitOption(wait_value_s(due.chance, soon_s, due.late_s, levels_s), due)

    def _note_limit(self, entropy: float, chance: float) -> None:
        """Notes the learnt φ at a new open leaf: the entropy at which the worker is on the path with the chance from
        which on waiting pays."""
        limit = self.worker.odds.limit(chance)
        before = self.learnt_phi or LearntLimit(None, 0, 0)
        nats = limit if isfinite(limit) else None
        self.learnt_phi = LearntLimit(nats, before.leaves + 1, before.above + (entropy > limit))

    def _drafting(
        self,
        situation: Situation,
        reference: Reference,
        worker: LinkView | None,
        waiting: WaitOption,
        *,
        verifies_nothing: bool,
    ) -> Action | None:
        """The next pass of a local run, or what has to be read for it; None if another action is worth more."""
        limited = worker is not None and worker.ready
        root = situation.estimate.root
        self.completion.suggested |= root.revision > 0 and not limited

        # Sources without a model make tokens cheap. At their price no run would pay, so that runs have a price of
        # their own.
        extendable = None
        if self.completion.suggested and not limited:
            extendable = root
            token_s = max(self.completion.token_s(reference), self.completion.drafting_s(reference))
            prices = Prices(situation.costs, token_s)
            level = Level(prices, situation.estimate.survival, self.settings.verify_nodes)
            situation = Situation(situation.estimate, situation.costs, prices, level, situation.now)

        if situation.costs.local_step_s is None or not situation.estimate.leaves:
            return None

        first = best_first_pass(situation)
        run = best_run(situation, first, extendable)
        if run is None:
            self._refuse("step", situation.costs, first.step_s, first.value_s)
            return None
        if self.completion.passes:
            return self._next_pass(run, situation.costs)

        bare = worker is not None and verifies_nothing
        return self._first_pass(run, situation.costs, max(waiting.value_s, 0.0), limited=limited, bare=bare)

    def _next_pass(self, run: Run, costs: Costs) -> Action | None:
        """A further pass of the run under way, if it pays for its time and price."""
        if run.extends_suggestions or run.first_s > run.step_s + self.completion.pass_s:
            return self._draft(run.leaves, costs)
        return None

    def _first_pass(self, run: Run, costs: Costs, alternative_s: float, *, limited: bool, bare: bool) -> Action | None:
        """The first pass of a run, or what has to be read for it.

        `limited`: whether `prefer` counts; `bare`: whether a target pass instead has no candidate of a worker's.
        """
        completion = self.completion
        saved_s = run.value_s - alternative_s - run.read_ahead_s
        completion.wants_run |= saved_s > 0
        uses = completion.uses(costs, run.tokens)

        if saved_s <= 0 and run.value_s > run.read_ahead_s:
            self._refuse("worker", costs, alternative_s, run.value_s - run.read_ahead_s)
            return None
        if saved_s <= 0:
            self._refuse("candidates", costs, run.read_ahead_s, run.value_s)
            return None
        if limited and not self.budget.open:
            self._refuse("budget", costs)
            return None
        if not reading_pays(saved_s, uses, costs.reading_s):
            self._refuse("backlog", costs, costs.reading_s, saved_s * (1 + uses))
            return None

        if costs.local_backlog_s > costs.batch_backlog_s:
            # A long catch-up alternates with target steps, unless they would have none of the worker's candidates.
            completion.read_last = not completion.read_last or bare
            self._refuse("reading", costs)
            if completion.read_last:
                return CatchUp()
            return None

        # Under a budget a run ends before what it saves per pass falls.
        completion.pass_s = 0.0
        if limited and self.budget.limited:
            completion.pass_s = per_pass_s(run.first_s, run.decay, run.step_s, alternative_s)
        return self._draft(run.leaves, costs)

    def _draft(self, leaves: Sequence[Node], costs: Costs) -> Action:
        """Makes the pass, and counts it."""
        if not self.completion.passes:
            self.fallbacks += self._link is not None
            self.why = self._reason(self._link)
            self._refused = None
        self.completion.passes += 1
        self.budget.spend(1 / (1 + costs.together))
        return Draft(tuple(leaves), WIDTH)

    def withdrawn(self) -> None:
        if not self.completion.passes:
            return
        self.completion.passes -= 1
        self.budget.give_back()
        self.fallbacks -= not self.completion.passes and self._link is not None

    def _wait(self, due: Expected, costs: Costs, now: float) -> Action:
        """Until the level is due; meanwhile the local draft reads, where it is going to be used."""
        if costs.local_backlog_s > 0 and (self.completion.wants_run or self.completion.rounds_wanted):
            tokens = int(due.soon_s / max(costs.local_token_s, 1e-9))
            if tokens:
                return CatchUp(tokens)
        return Wait(now + due.soon_s + due.grace_s)

    def _refuse(self, kind: RefusalKind, costs: Costs, cost_s: float = 0.0, gain_s: float = 0.0) -> None:
        """Keeps why no run begins here."""
        if not self.completion.passes:
            self._refused = Refusal(kind, cost_s, gain_s, costs.sharers)

    def _reason(self, link: LinkView | None) -> str:
        """Why the gateway drafts."""
        if link is None:
            return "no worker drafts for it"

        away = f"{link.rtt_s * 1000:.0f} ms"
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
        took_s = self.completion.ended(outcome.emitted, now)
        walked = Walked(0, missed=False)
        if self._tree is not None and self._reference is not None:
            walked = self.tree_model.learn(self._tree, WIDTH)
            self.budget.earn(outcome.emitted * self._reference.passes)
            if self._link is not None:
                self.guard.round(outcome.emitted, took_s / self._reference.plain_s, ready=self._link.ready)
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
