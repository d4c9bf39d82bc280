"""Policy `adaptive`: the action of the greatest expected value (docs/policies.md derives it).

At every free moment it compares, in seconds at the price of a token (worth.py):

    verify     the candidates that pay for their rows, none included; this is zero, the others are relative to it
    wait       for the worker's next useful level: how likely, how soon, how much (arrival.py)
    draft      a run of local levels, less the price of a pass; what the local draft must read first pays over the
               tokens that remain
    catch up   in a wait that is longer than a batch

What a local pass costs besides its time follows from `prefer`: nothing for `latency`; for `balanced` passes are limited
and a run ends where the saving per pass would fall; `offload` makes none. These limits hold while the worker drafts:
not before its first frame, nor once the guard has left it (guard.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from cloud_gateway.core.policies.actions import Action, CatchUp, Costs, Draft, LinkView, Outcome, Verify, Wait
from cloud_gateway.core.policies.arrival import Expected, Timeline
from cloud_gateway.core.policies.budget import Budget, Reference
from cloud_gateway.core.policies.estimators import Pace
from cloud_gateway.core.policies.guard import Guard, Mode, Reason
from cloud_gateway.core.policies.memory import Learnt
from cloud_gateway.core.policies.policy import Policy, PolicyReport
from cloud_gateway.core.policies.refusal import Kind, Refusal
from cloud_gateway.core.policies.settings import DEFAULTS, PolicySettings
from cloud_gateway.core.policies.tree_value import Outlook, Surveyor
from cloud_gateway.core.policies.worth import Level, Prices, credit, per_pass_s, reading_pays, run_s, wait_value
from cloud_gateway.core.verify.candidates import CandidateTree, Merged
from edgespec.core.drafting.calibration import Calibrator
from edgespec.core.drafting.tree import Node

SHARES = {"balanced": 0.45, "offload": 0.0}
"""Local passes, relative to co-located k = 2, that are made even when the answer is not behind."""
LENGTH = 128.0
"""Tokens of an answer before any has ended."""
LENGTH_WEIGHT = 0.2
"""Of the newest answer in the mean length."""
KEPT = 0.9
"""Prior of the probability that the target stays in the worker's tree for one more token."""
PRIOR_TOKENS = 16
"""Tokens that this prior counts for, and that of the rate of local runs."""
NARROW = 0.5
"""Of the worth of a token where the guard's mode is `narrow`: fewer rows pay for themselves."""
SLOWER: Mapping[Mode, str] = {
    "narrow": "as slow as without: fewer candidates",
    "plain": "slower than plain decoding",
    "local": "slower than drafting here",
}
WORKER_LEAVES = 4
"""Leaves whose children the worker's next frame is expected to bring."""


@dataclass(slots=True)
class Adaptive(Policy):
    """See the module's text."""

    name = "adaptive"
    settings: PolicySettings = DEFAULTS
    width: int = 4
    calibrator: Calibrator = field(default_factory=Calibrator)
    fallbacks: int = field(default=0, init=False)
    why: str | None = field(default=None, init=False)
    """Why it last drafted here, in words for the client; None while it never did."""
    change: tuple[Mode, Reason] | None = field(default=None, init=False)
    """The guard's new mode and its reason, where the latest decision changed it."""
    carried: Learnt | None = field(default=None, init=False)
    """What it was resumed from, for the trace."""
    _refused: Refusal | None = field(default=None, init=False)
    _surveyor: Surveyor = field(init=False)
    _timeline: Timeline = field(default_factory=Timeline, init=False)
    _budget: Budget | None = field(default=None, init=False)
    _guard: Guard = field(default_factory=Guard, init=False)
    _link: LinkView | None = field(default=None, init=False)
    _reference: Reference | None = field(default=None, init=False)
    _run: int = field(default=0, init=False)
    """Local levels since the last verify."""
    _pass_s: float = field(default=0.0, init=False)
    """Price of each further pass of this run."""
    _tokens: int = field(default=0, init=False)
    _wanted: float = field(default=0.0, init=False)
    """Rounds so far in which a local run would have been worth more than anything else."""
    _wants: bool = field(default=False, init=False)
    _read_last: bool = field(default=False, init=False)
    _credit: float = field(default=1.0, init=False)
    _length: float = field(default=LENGTH, init=False)
    """Tokens of an answer, as learnt."""
    _pace_s: float = field(default=0.0, init=False)
    """Seconds per token of the answers before; 0 where there were none."""
    _rate: float = field(default=0.25, init=False)
    """Share of tokens at which a local run was worth most, before this answer."""
    _began: float = field(default=0.0, init=False)
    """When the round began, later by the time since then in which prompts of others were read."""
    _paused_s: float = field(default=0.0, init=False)
    """`Costs.paused_s` so far."""
    _pace: Pace = field(default_factory=Pace, init=False)
    _drafting: Pace = field(default_factory=Pace, init=False)
    """As the one above, of rounds with a local run."""
    _suggested: bool = field(default=False, init=False)
    """Whether sources without a model have proposed anything."""

    def __post_init__(self) -> None:
        self._surveyor = Surveyor(self.calibrator)
        share = SHARES.get(self.settings.prefer)
        self._budget = None if share is None else Budget(share)

    def resume(self, learnt: Learnt) -> None:
        """Starts with what earlier answers of the same kind taught (`state`); before the first decision."""
        self.carried = learnt
        self.calibrator.resume(learnt["calibration"])
        self._surveyor.resume(learnt["draft"])
        self._timeline.resume(learnt["worker"])
        self._length, self._pace_s, self._rate = learnt["answers"]
        if "guard" in learnt:
            self._guard.resume(learnt["guard"])

    def state(self) -> Learnt:
        """What the next answer of this kind starts with, as plain data: bounded, and exact when it is read back."""
        length = self._length + (self._tokens - self._length) * LENGTH_WEIGHT if self._tokens else self._length
        return {
            "calibration": self.calibrator.state(),
            "draft": self._surveyor.state(),
            "worker": self._timeline.state(),
            "guard": list(self._guard.state()),
            "answers": [
                length,
                self._pace_s if self._reference is None else self._token_s(self._reference),
                self._wanted_rate,
            ],
        }

    def reads_prompt(self, costs: Costs, *, worker: bool) -> bool:
        """No, while a worker drafts; else whether reading pays over the tokens that remain."""
        if worker:
            return False
        reference = Reference.of(costs, self._surveyor.match)
        saved_s = reference.plain_s - reference.together_s
        return reading_pays(saved_s, self._remaining(costs) - 1, costs.local_backlog_s)

    def report(self, *, drafted: bool) -> PolicyReport:
        """The reasons of the latest round that had a use for a local pass."""
        return PolicyReport(self.fallbacks, self.why, None if self._refused is None else str(self._refused))

    def decide(self, tree: CandidateTree, link: LinkView | None, costs: Costs, now: float) -> Action:
        """The action of the greatest value."""
        if not self._timeline.started:
            self._timeline.start(tree.root.position, now)
            self._began, self._paused_s = now, costs.paused_s
        self._began, self._paused_s = self._began + costs.paused_s - self._paused_s, costs.paused_s
        deepest = tree.root.position + costs.remaining - 1
        outlook = self._surveyor.look(tree, costs.local_leaves, self.width, deepest)
        self._reference = Reference.of(costs, self._surveyor.match)
        prices = own = Prices.of(costs, self._token_s(self._reference))
        self._link, self.change = link, None
        if link is not None:
            self._guarded(link, costs, self._reference)
            if not self._guard.with_worker:
                return self._alone(outlook, costs, prices)
        level = Level(prices, outlook.survival, self.settings.verify_nodes)
        due, worker = self._remote(outlook, level, prices, now)
        root = tree.root if self._helped(tree, link) else None
        if root is not None:
            pace_s = self._drafting_s(self._reference) / (1 + costs.sharers)
            prices = replace(prices, token_s=max(prices.token_s, pace_s))
            level = Level(prices, outlook.survival, self.settings.verify_nodes)
        draft = self._local(outlook, level, costs, prices, worker, root)
        if draft is not None:
            return draft
        if worker > 0 and due is not None and not self._run:
            return self._wait(due, costs, now)
        return self._verify(outlook, own)

    def _verify(self, outlook: Outlook, prices: Prices) -> Verify:
        """The candidates that pay for their rows."""
        if self._link is not None and self._guard.mode == "narrow":
            prices = replace(prices, token_s=NARROW * prices.token_s)
        return Verify(outlook.nodes[: prices.best_count(outlook.survival[: self.settings.verify_nodes])])

    def _guarded(self, link: LinkView, costs: Costs, reference: Reference) -> None:
        """Has the guard choose the mode of a round that begins."""
        if not self._run:
            self._guard.choose(costs, reference, self._remaining(costs), ready=link.ready)
            if self._guard.changed:
                self.change = self._guard.mode, self._guard.reason
                if self._guard.mode != "normal":
                    self.why = self._reason()

    def _alone(self, outlook: Outlook, costs: Costs, prices: Prices) -> Action:
        """As without a worker, whose candidates are verified where they are available."""
        if self._guard.mode == "local":
            if costs.local_backlog_s > costs.batch_backlog_s:
                self._refuse("reading", costs)
                return CatchUp()
            if self._run < 2 and outlook.leaves:
                return self._draft(outlook.leaves[:1])
        elif costs.local_step_s is not None and self._reference is not None:
            self._refuse("plain", costs, self._reference.together_s, self._reference.plain_s)
        return self._verify(outlook, prices)

    def _token_s(self, reference: Reference) -> float:
        """Seconds per token that this answer attains; never more than the gateway attains alone."""
        return min(self._pace.value or self._pace_s or reference.token_s, reference.token_s)

    def _helped(self, tree: CandidateTree, link: LinkView | None) -> bool:
        """Whether sources without a model have proposed anything for this answer, and no worker drafts."""
        self._suggested = self._suggested or tree.root.revision > 0
        return self._suggested and (link is None or not link.ready)

    def _drafting_s(self, reference: Reference) -> float:
        """Seconds per token of this answer's rounds with a local run. Where other sources know what follows, tokens
        come faster: at their price no run would pay, and where they know nothing each token would take a pass."""
        return min(self._drafting.value or reference.token_s, reference.token_s)

    def _remote(self, outlook: Outlook, level: Level, prices: Prices, now: float) -> tuple[Expected | None, float]:
        """When the worker's next level is due, and what waiting for it is worth."""
        link, self._credit = self._link, 1.0
        if link is None or not outlook.leaves:
            return None, 0.0
        kept, position = self._kept, outlook.root
        missing = position + 1 if not outlook.nodes else max(self._timeline.frontier, position) + 1
        due = self._timeline.expect(missing, link, kept, now)
        level_s, target_s = self._timeline.level_s(link), prices.pass_s(0)
        first = level.value_s(outlook.found(WORKER_LEAVES)) * credit(kept, target_s / level_s)
        value = first + run_s(first * kept, kept, level_s)  # the first level's time is that until it is due
        due_s = due.chance * due.soon_s + (1 - due.chance) * min(due.late_s, target_s)
        self._credit = credit(kept, max(target_s - due_s, 0.0) / level_s)
        soon_s = max(due.soon_s, prices.token_s) if prices.shared else due.soon_s  # the others' pass begins meanwhile
        return due, wait_value(due.chance, soon_s, due.late_s, value)

    def _local(
        self, outlook: Outlook, level: Level, costs: Costs, prices: Prices, instead_s: float, root: Node | None
    ) -> Action | None:
        """The next pass of a local run, or what has to be read for it; None where neither pays.

        `root`: the tree's, where other sources help and no worker drafts.
        """
        if costs.local_step_s is None or not outlook.leaves:
            return None
        count, first = self._best_step(outlook, level, costs)
        leaves, step = outlook.leaves[:count], costs.draft_s(count)
        again = None if root is None else self._again(root, outlook, level, costs, prices)
        if first <= step and again is None:
            self._refuse("step", costs, step, first)
            return None
        if self._run and again is None:
            return self._draft(leaves) if first > step + self._pass_s else None
        fade = self._fade(costs, prices)
        run = run_s(first, fade, step)
        above_s = (leaves[0].position - outlook.root) * costs.local_token_s
        if again is not None and (first <= step or again[1] - again[2] >= run - above_s):
            leaves, run, above_s = again
        if self._run:
            return self._draft(leaves)
        saved = run - max(instead_s, 0.0) - above_s
        self._wants = self._wants or saved > 0
        budget = self._budget if self._link is not None and self._link.ready else None
        if saved <= 0:
            if run > above_s:
                self._refuse("worker", costs, instead_s, run - above_s)
            else:
                self._refuse("candidates", costs, above_s, run)
            return None
        if not (budget is None or budget.open):
            self._refuse("budget", costs)
            return None
        uses = self._wanted_rate * self._remaining(costs)
        if not reading_pays(saved, uses, costs.local_backlog_s):
            self._refuse("backlog", costs, costs.local_backlog_s, saved * (1 + uses))
            return None
        if costs.local_backlog_s > costs.batch_backlog_s:  # a long catch-up alternates with target steps
            self._read_last = not self._read_last
            self._refuse("reading", costs)
            return CatchUp() if self._read_last else None
        self._pass_s = per_pass_s(first, fade, step, max(instead_s, 0.0)) if budget is not None else 0.0
        return self._draft(leaves)

    def _again(
        self, root: Node, outlook: Outlook, level: Level, costs: Costs, prices: Prices
    ) -> tuple[Sequence[Node], float, float] | None:
        """A run from where the likeliest path is of sources without a model only: its leaf, its worth, and the time to
        read what is above; None where no such path is there or no run pays. A worker would draft there anyway."""
        node, (mass, *below) = outlook.undrafted(root)
        if not below:
            return None
        full = level.value_s([mass * share for share in outlook.shares])
        had = [full * chance / mass for chance in below]
        run = run_s(full, self._fade(costs, prices), costs.draft_s(1), had)
        return ([node], run, (node.position - outlook.root) * costs.local_token_s) if run > 0 else None

    def _refuse(self, kind: Kind, costs: Costs, cost_s: float = 0.0, gain_s: float = 0.0) -> None:
        """Keeps why no run begins here."""
        if not self._run:
            self._refused = Refusal(kind, cost_s, gain_s, costs.sharers)

    def _fade(self, costs: Costs, prices: Prices) -> float:
        """Share of a level's probability from which the next one goes on: a leaf beside the best one is evaluated where
        what it finds pays for it."""
        shares = self._surveyor.shares
        pays = [
            share
            for rank, share in enumerate(shares)
            if rank == 0 or share * prices.token_s > costs.draft_s(rank + 1) - costs.draft_s(rank)
        ]
        return sum(pays)

    def _best_step(self, outlook: Outlook, level: Level, costs: Costs) -> tuple[int, float]:
        """How many leaves to evaluate, and the value of what they find; any number where none pays for itself."""
        most, found = len(outlook.leaves), outlook.found(len(outlook.leaves))
        widths = {min(leaves, most) for leaves, _ in costs.local_points or ((most, 0.0),)}
        steps = sorted([(costs.draft_s(leaves), leaves) for leaves in widths])
        best, chosen = (0.0, 0), (steps[0][1], 0.0)
        if self._credit * level.value_s(found) <= steps[0][0]:  # fewer leaves find less
            return chosen
        each = len(outlook.shares)
        for seconds, leaves in steps:
            first = self._credit * level.value_s(found[: leaves * each])
            if (first - seconds, leaves) > best:
                best, chosen = (first - seconds, leaves), (leaves, first)
        return chosen

    @property
    def _kept(self) -> float:
        """Probability that the target stays in the worker's tree for one more token."""
        hits, divergences = self._timeline.hits, self._timeline.divergences
        return (hits + KEPT * PRIOR_TOKENS) / (hits + divergences + PRIOR_TOKENS)

    @property
    def _wanted_rate(self) -> float:
        """Share of tokens at which a local run was worth most."""
        return (self._wanted + self._rate * PRIOR_TOKENS) / (self._tokens + PRIOR_TOKENS)

    def _remaining(self, costs: Costs) -> float:
        return min(costs.remaining, self._length)

    def _draft(self, leaves: Sequence[Node]) -> Action:
        if not self._run:
            self.fallbacks += self._link is not None
            self.why, self._refused = self._reason(), None
        self._run += 1
        if self._budget is not None:
            self._budget.spend()
        return Draft(tuple(leaves), self.width)

    def _wait(self, due: Expected, costs: Costs, now: float) -> Action:
        """Until the level is due; meanwhile the local draft reads, where it is going to be used."""
        if costs.local_backlog_s > 0 and (self._wants or self._wanted):
            tokens = int(due.soon_s / max(costs.local_token_s, 1e-9))
            if tokens:
                return CatchUp(tokens)
        return Wait(now + due.soon_s + due.grace_s)

    def _reason(self) -> str:
        """Why the gateway drafts."""
        if self._link is None:
            return "no worker drafts for it"
        away = f"{self._link.rtt_s * 1000:.0f} ms"
        if self._guard.mode in SLOWER:
            return f"with the worker, {away} away, it was {SLOWER[self._guard.mode]}"
        if not self._link.ready:
            return "the worker was still reading the prompt"
        return f"at {away} it was faster to draft here while the worker was on another path"

    def received(self, merged: Merged, now: float) -> None:
        """Updates the estimate of where the worker's draft stands."""
        hits, divergences = self._timeline.hits, self._timeline.divergences
        self._timeline.frame(merged, now)
        for _ in range(round(self._timeline.hits - hits)):
            self._surveyor.judged(hit=True)
        if self._timeline.divergences > divergences:
            self._surveyor.judged(hit=False)

    def verified(self, outcome: Outcome, now: float) -> None:
        """A round ended."""
        if self._run:
            self._drafting.sample(now - self._began, outcome.emitted)
        self._run = 0
        self._wanted += self._wants
        self._wants = False
        self._tokens += outcome.emitted
        if self._link is not None and self._reference is not None:
            steps = (now - self._began) / self._reference.plain_s
            self._guard.round(outcome.emitted, steps, ready=self._link.ready)
        self._pace.sample(now - self._began, outcome.emitted)
        self._began = now
        if self._reference is not None and self._budget is not None:
            self._budget.earn(outcome.emitted, self._reference)
        unsure = self.settings.phi != "learnt" and outcome.entropy > self.settings.phi
        self._timeline.committed(outcome.position, outcome.emitted, now, on_path=outcome.at_leaf and not unsure)
