"""Policy `adaptive`: the action of the greatest expected value (docs/policies.md derives it).

At every free moment it compares, in seconds at the price of a token (worth.py):

    verify     the candidates that pay for their rows, none included; this is zero, the others are relative to it
    wait       for the worker's next useful level: how likely, how soon, how much (arrival.py)
    draft      a run of local levels; what the local draft must read first pays over the tokens that remain
    catch up   in a wait that is longer than a batch

`prefer` limits local passes while the worker drafts (completion.py): not before its first frame, nor once the guard has
left it (guard.py). Every number that was tuned is in tuning.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import NamedTuple

from cloud_gateway.core.policies.arrival import Expected, OpenLeaf, Timeline
from cloud_gateway.core.policies.completion import Budget, Completion, Kind, Refusal
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
from cloud_gateway.core.policies.survey import Outlook, Surveyor, Walked
from cloud_gateway.core.policies.tuning import TUNING, Tuning
from cloud_gateway.core.policies.worth import (
    Level,
    Prices,
    break_even,
    credit,
    per_pass_s,
    reading_pays,
    run_s,
    run_tokens,
    wait_value,
)
from cloud_gateway.core.verify.candidates import CandidateTree, Merged
from edgespec.core.drafting.algorithm2 import Proposal
from edgespec.core.drafting.tree import Node

WIDTH = 4
"""Children that a local pass names of each leaf."""


STATE = frozenset({"local hits", "worker hits", "draft", "worker", "entropy", "guard", "answers"})
"""Names of what is carried to the next completion."""


class Run(NamedTuple):
    """A local run: its first pass and its worth."""

    leaves: Sequence[Node]
    first_s: float
    """What the first pass finds is worth."""
    step_s: float
    """What it takes."""
    fade: float
    """Share of a level's probability from which the next one goes on."""
    worth_s: float
    above_s: float
    """Time to read candidates above the leaves."""
    tokens: float = 0.0
    """What it brings; in a run that sources without a model begin, not counted."""
    again: bool = False
    """Whether it drafts what sources without a model have named."""


@dataclass(slots=True)
class Adaptive(Policy):
    """See the module's text."""

    name = "adaptive"
    settings: PolicySettings = DEFAULTS
    tuning: Tuning = TUNING
    fallbacks: int = field(default=0, init=False)
    why: str | None = field(default=None, init=False)
    change: tuple[Mode, Reason] | None = field(default=None, init=False)
    carried: Learnt | None = field(default=None, init=False)
    learnt_phi: LearntLimit | None = field(default=None, init=False)
    completion: Completion = field(init=False)
    surveyor: Surveyor = field(init=False)
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
        self.completion, self.surveyor = Completion(self.tuning), Surveyor(self.tuning)
        self.worker, self.guard = Timeline(self.tuning), Guard(self.settings.prefer, self.tuning)
        self.budget = Budget(self.settings.prefer, self.tuning)

    def resume(self, learnt: Learnt) -> None:
        """Starts with what earlier completions of the same kind taught (`state`); before the first decision.

        Raises ValueError for a state that another version made.
        """
        if missing := sorted(STATE - learnt.keys()):
            raise ValueError(f"what policy `adaptive` carried over lacks {', '.join(missing)}")
        self.carried = learnt
        self.surveyor.local.resume(learnt["local hits"])
        self.surveyor.worker.resume(learnt["worker hits"])
        self.surveyor.calibrator.resume(learnt["draft"])
        self.worker.resume(learnt["worker"])
        self.worker.odds.resume(learnt["entropy"])
        self.completion.resume(learnt["answers"])
        self.guard.resume(learnt["guard"])

    def state(self) -> Learnt:
        """What the next completion of this kind starts with, as plain data: bounded, and exact when it is read back."""
        return {
            "local hits": self.surveyor.local.state(),
            "worker hits": self.surveyor.worker.state(),
            "draft": self.surveyor.calibrator.state(),
            "worker": self.worker.state(),
            "entropy": self.worker.odds.state(),
            "guard": list(self.guard.state()),
            "answers": self.completion.state(self._reference),
        }

    def reads_prompt(self, costs: Costs, *, worker: bool) -> bool:
        """No, while a worker drafts; else whether reading pays over the tokens that remain, if all in company read."""
        reference = Reference.of(costs, self.surveyor.here.match)
        saved_s = reference.plain_s - reference.together_s
        backlog_s = costs.local_backlog_s * (1 + costs.sharers)
        return not worker and reading_pays(saved_s, self.completion.remaining(costs) - 1, backlog_s)

    def why_not_local(self, *, drafted: bool) -> str | None:
        """The reasons of the latest round that had a use for a local pass."""
        return None if self._refused is None else str(self._refused)

    def decide(self, tree: CandidateTree, link: LinkView | None, costs: Costs, now: float) -> Action:
        """The action of the greatest value."""
        completion, limit, root = self.completion, self.settings.verify_nodes, tree.root
        if self._tree is None:
            self.worker.start(root.position, now)
            completion.begins(now, costs.paused_s)
        completion.paused(costs.paused_s)
        self._tree, self._link, self.change = tree, link, None
        leaves = self.tuning.worker_leaves if costs.local_step_s is None else costs.local_leaves
        outlook = self.surveyor.look(tree, leaves, WIDTH, root.position + costs.remaining - 1, limit)
        if (reference := self._reference) is None or costs.together == costs.sharers:
            reference = self._reference = Reference.of(costs, self.surveyor.here.match)
        prices = Prices(costs, completion.token_s(reference))
        verify = Verify(outlook.nodes[: prices.best_count(outlook.survival[:limit])])
        if link is not None and not self._with_worker(link, costs):
            link = None
            if costs.local_backlog_s > costs.batch_backlog_s and self.reads_prompt(costs, worker=False):
                self._refuse("reading", costs)
                return CatchUp()
        level = Level(prices, outlook.survival, limit)
        due, wait_s = self._waiting(link, outlook, level, prices, now)
        limited = link is not None and link.ready
        completion.suggested |= root.revision > 0 and not limited
        helped = completion.suggested and not limited
        if helped:  # at the price of all tokens no run would pay
            prices = Prices(costs, max(completion.token_s(reference), completion.drafting_s(reference)))
            level = Level(prices, outlook.survival, limit)
        run = self._run(root if helped else None, outlook, level, costs, prices)
        bare = link is not None and not verify.nodes
        if run is not None and (draft := self._drafting(run, wait_s, costs, limited=limited, bare=bare)):
            return draft
        return self._wait(due, costs, now) if wait_s > 0 and due and not completion.run else verify

    def _with_worker(self, link: LinkView, costs: Costs) -> bool:
        """Whether the worker counts in this round, which the guard decides where it begins."""
        if not self.completion.run and costs.together == costs.sharers:
            remaining, limit = self.completion.remaining(costs), self.settings.verify_nodes
            self.guard.choose(costs, self.surveyor.here.shares, limit, remaining, ready=link.ready)
            self.change = self.guard.change
            if self.change and self.guard.mode != "normal":
                self.why = self._reason(link)
        return self.guard.mode == "normal"

    def _waiting(
        self, link: LinkView | None, outlook: Outlook, level: Level, prices: Prices, now: float
    ) -> tuple[Expected | None, float]:
        """When the worker's next level is due, and what waiting for it is worth."""
        if link is None or not outlook.leaves:
            return None, 0.0
        position, kept, level_s = outlook.root.position, self.worker.kept, self.worker.level_s(link)
        missing = position + 1 if not outlook.nodes else max(self.worker.frontier, position) + 1
        due, levels = self.worker.expect(missing, link, now), prices.pass_s(0) / level_s
        brought = outlook.found(self.tuning.worker_leaves, self.surveyor.worker.shares)
        first = level.value_s(brought) * credit(kept, levels)
        value = first + run_s(first * kept, kept, level_s)  # the first level's time is that until it is due
        soon_s = max(due.soon_s, prices.token_s) if prices.shared else due.soon_s  # the others' pass begins meanwhile
        if self.worker.open is not None and self.worker.open != self._leaf:
            self._leaf = self.worker.open
            self._limit(self._leaf.entropy, break_even(soon_s, due.late_s, value))
        return due, wait_value(due.chance, soon_s, due.late_s, value)

    def _limit(self, entropy: float, chance: float) -> None:
        """Notes the learnt φ at a new open leaf: the entropy at which the worker is on the path with the chance from
        which on waiting pays."""
        limit = self.worker.odds.limit(chance)
        before = self.learnt_phi or LearntLimit(None, 0, 0)
        nats = limit if isfinite(limit) else None
        self.learnt_phi = LearntLimit(nats, before.leaves + 1, before.above + (entropy > limit))

    def _run(self, root: Node | None, outlook: Outlook, level: Level, costs: Costs, prices: Prices) -> Run | None:
        """The local run of the greatest worth; None if no first pass pays for itself. `root`: the tree's, where other
        sources help and no worker drafts."""
        if costs.local_step_s is None or not outlook.leaves:
            return None
        count, first = self._best_step(outlook, level, costs)
        step = costs.draft_s(count)
        fade = sum(  # a leaf beside the best one is evaluated if what it finds pays for it
            share
            for rank, share in enumerate(outlook.shares)
            if not rank or share * prices.token_s > costs.draft_s(rank + 1) - costs.draft_s(rank)
        )
        above_s = (outlook.leaves[0].position - outlook.root.position) * costs.local_token_s
        best = None
        if first > step:
            tokens = run_tokens(first, fade, step, prices.token_s)
            best = Run(outlook.leaves[:count], first, step, fade, run_s(first, fade, step), above_s, tokens)
        if root is not None:  # from where the likeliest path is of sources without a model only
            node, (mass, *below) = outlook.undrafted()
            full = level.value_s([mass * share for share in outlook.shares])
            worth = run_s(full, fade, costs.draft_s(1), [full * chance / mass for chance in below]) if below else 0.0
            above_s = (node.position - outlook.root.position) * costs.local_token_s
            if worth > 0 and (best is None or worth - above_s >= best.worth_s - best.above_s):
                return Run([node], first, step, fade, worth, above_s, again=True)
        if best is None:
            self._refuse("step", costs, step, first)
        return best

    def _best_step(self, outlook: Outlook, level: Level, costs: Costs) -> tuple[int, float]:
        """How many leaves to evaluate, and the value of what they find; any number where none pays for itself."""
        most, each, found = len(outlook.leaves), len(outlook.shares), outlook.found(len(outlook.leaves))
        widths = {min(leaves, most) for leaves, _ in costs.local_points or ((most, 0.0),)}
        steps = sorted([(costs.draft_s(leaves), leaves) for leaves in widths])
        best, chosen = (0.0, 0), (steps[0][1], 0.0)
        if level.value_s(found) <= steps[0][0]:  # fewer leaves find less
            return chosen
        for seconds, leaves in steps:
            first = level.value_s(found[: leaves * each])
            if (first - seconds, leaves) > best:
                best, chosen = (first - seconds, leaves), (leaves, first)
        return chosen

    def _drafting(self, run: Run, wait_s: float, costs: Costs, *, limited: bool, bare: bool) -> Action | None:
        """The run's next pass, or what has to be read for it; None if it is worth less than what else may be done.
        `limited`: whether `prefer` counts; `bare`: whether the pass instead has no candidate of a worker's."""
        completion, instead_s = self.completion, max(wait_s, 0.0)
        if completion.run:
            return self._draft(run.leaves, costs) if run.again or run.first_s > run.step_s + completion.pass_s else None
        saved = run.worth_s - instead_s - run.above_s
        completion.wants |= saved > 0
        uses = completion.uses(costs, run.tokens)
        if saved <= 0 and run.worth_s > run.above_s:
            self._refuse("worker", costs, instead_s, run.worth_s - run.above_s)
        elif saved <= 0:
            self._refuse("candidates", costs, run.above_s, run.worth_s)
        elif limited and not self.budget.open:
            self._refuse("budget", costs)
        elif not reading_pays(saved, uses, costs.reading_s):
            self._refuse("backlog", costs, costs.reading_s, saved * (1 + uses))
        elif costs.local_backlog_s > costs.batch_backlog_s:
            # A long catch-up alternates with target steps, unless they would have none of the worker's candidates.
            completion.read_last = not completion.read_last or bare
            self._refuse("reading", costs)
            return CatchUp() if completion.read_last else None
        else:
            counted = limited and self.budget.limited
            completion.pass_s = per_pass_s(run.first_s, run.fade, run.step_s, instead_s) if counted else 0.0
            return self._draft(run.leaves, costs)
        return None

    def _draft(self, leaves: Sequence[Node], costs: Costs) -> Action:
        if not self.completion.run:
            self.fallbacks += self._link is not None
            self.why, self._refused = self._reason(self._link), None
        self.completion.run += 1
        self.budget.spend(1 / (1 + costs.together))
        return Draft(tuple(leaves), WIDTH)

    def withdrawn(self) -> None:
        if not self.completion.run:
            return
        self.completion.run -= 1
        self.budget.give_back()
        self.fallbacks -= not self.completion.run and self._link is not None

    def _wait(self, due: Expected, costs: Costs, now: float) -> Action:
        """Until the level is due; meanwhile the local draft reads, where it is going to be used."""
        if costs.local_backlog_s > 0 and (self.completion.wants or self.completion.wanted):
            tokens = int(due.soon_s / max(costs.local_token_s, 1e-9))
            if tokens:
                return CatchUp(tokens)
        return Wait(now + due.soon_s + due.grace_s)

    def _refuse(self, kind: Kind, costs: Costs, cost_s: float = 0.0, gain_s: float = 0.0) -> None:
        """Keeps why no run begins here."""
        if not self.completion.run:
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
        return self.surveyor.priced(leaves, proposals)

    def received(self, merged: Merged, now: float) -> None:
        """Updates the estimate of where the worker's draft stands."""
        self.surveyor.workers_help = True
        hits, divergences = self.worker.hits, self.worker.divergences
        self.worker.frame(merged, now)
        for _ in range(round(self.worker.hits - hits)):
            self.surveyor.worker.judged(hit=True)
        if self.worker.divergences > divergences:
            self.surveyor.worker.judged(hit=False)

    def verified(self, outcome: Outcome, now: float) -> None:
        """A round ended."""
        took_s = self.completion.ended(outcome.emitted, now)
        walked = Walked(0, missed=False)
        if self._tree is not None and self._reference is not None:
            walked = self.surveyor.learn(self._tree, WIDTH)
            self.budget.earn(outcome.emitted * self._reference.passes)
            if self._link is not None:
                self.guard.round(outcome.emitted, took_s / self._reference.plain_s, ready=self._link.ready)
        phi = self.settings.phi
        unsure = phi != "learnt" and outcome.entropy is not None and outcome.entropy > phi
        on_path = (outcome.at_leaf or not walked.missed) and not unsure
        self.worker.committed(outcome.position, walked.hits, now, on_path=on_path)
        if phi == "learnt" and outcome.entropy is not None and self._link is not None and not self.worker.lost:
            self.worker.left_open(outcome.position, outcome.entropy, self._link, now)

    def needs_entropy(self, tree: CandidateTree, *, emitted: int, at_leaf: bool) -> bool:
        """Only if a worker that streams may be on the path, and no frame has shown yet whether it is."""
        if self._link is None or not self._link.ready or self.worker.lost or self.guard.mode != "normal":
            return False
        # A root that somebody had proposed says where the worker is better than any entropy.
        return self.settings.phi != "learnt" or (at_leaf and not tree.root.owner)
