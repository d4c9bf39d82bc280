"""`python -m tools.sim field`: `adaptive` beside controllers of the literature and oracles, under steady and drifting
delay. None of these arms ships.

    UCB-SpecStop       arXiv 2606.20591, of which the abstract was read: the draft length is the arm of a bandit, by
                       confidence bounds on seconds per token; the form of the bound is ours
    best fixed length  the offline oracle of the same: the best length for the place, found afterwards
    PipeSD's trigger   arXiv 2605.13319, by a review of it: verify once the confidence of the sequence or of a token
                       is low; without its planning of uploads, and its thresholds from a few in place of a search
    SpecDec++          arXiv 2405.19715, section 4: verify once P(some token is rejected) exceeds a threshold; the
                       draft's own probabilities in place of its trained head
    SSD's fan-out      arXiv 2603.03251, by a summary of it: capped geometric fan-out over the verification's outcomes
                       as the worker's rule, without its sampling and its fallback
    oracle             a worker that evaluates the target's own text and nothing else (oracle.py), with `adaptive`

A rule with thresholds is run with each of some, and the fastest in a place counts, found afterwards: in its favour. All
get the candidates that a worker streams, and draft nothing at the gateway; the papers' drafts do not go on meanwhile.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from cloud_gateway.core.policies.actions import Action, Costs, LinkView, Outcome, Verify, Wait
from cloud_gateway.core.policies.memory import Learnt
from cloud_gateway.core.policies.policy import Policy
from cloud_gateway.core.verify.candidates import CandidateTree, Merged
from edgespec.core.drafting.algorithm2 import Drafting, Proposal
from edgespec.core.drafting.best_first import BestFirst, BestFirstRule
from edgespec.core.drafting.tree import Node
from edgespec.lab.link_model import LinkModel
from edgespec.lab.sim.process import TokenProcess
from edgespec.lab.sim.world import PROMPT_LEN, Curve, Result, Steps, run
from tools.sim.config import load
from tools.sim.experiment import Arm, Progress, WorkerSpec
from tools.sim.process import Iid
from tools.sim.sweep import WORKER, Place, steps_at

MAX_LENGTH = 8
"""Longest draft of the papers' arms."""


@dataclass(slots=True)
class Stopping(Policy):
    """Waits for the worker's likeliest chain until a rule says that it is long enough, then verifies it."""

    name = "field"
    length: int = MAX_LENGTH
    """Tokens at which it is verified in any case."""
    unsure: float = 0.0
    """Probability of the chain below which it is verified: 1 - h of SpecDec++, and PipeSD's sequence threshold."""
    doubtful: float = 0.0
    """The same of its last token: PipeSD's token threshold."""
    _latest: float = field(default=0.0, init=False)

    def decide(self, tree: CandidateTree, link: LinkView | None, costs: Costs, now: float) -> Action:
        """Verifies also what there is once nothing came for a round trip and two steps."""
        chain, node = list[Node](), tree.root
        while node.children and len(chain) < self.length:
            node = min(node.children.values(), key=lambda child: child.cost)
            chain.append(node)
        total = math.exp(tree.root.cost - node.cost)
        last = math.exp(node.parent.cost - node.cost) if chain and node.parent is not None else 1.0
        late = self._latest if link is None else self._latest + link.rtt_high_s + 2 * link.step_s
        if len(chain) >= self.length or total < self.unsure or last < self.doubtful or now >= late:
            return Verify(chain)
        return Wait(late)

    def received(self, merged: Merged, now: float) -> None:
        """Notes when the worker was last useful."""
        self._latest = now if merged.useful else self._latest

    def verified(self, outcome: Outcome, now: float) -> None:
        """Notes when the round ended."""
        self._latest = now


@dataclass(slots=True)
class UcbSpecStop(Stopping):
    """Plays each draft length as the arm of a bandit; the index is seconds per token less a confidence bound."""

    plays: list[list[float]] = field(default_factory=lambda: [[0.0, 0.0, 0.0] for _ in range(MAX_LENGTH)])
    """By length: rounds, seconds, tokens."""
    _began: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self._choose()

    def _choose(self) -> None:
        total = sum(rounds for rounds, _, _ in self.plays)

        def index(play: Sequence[float]) -> float:
            rounds, seconds, tokens = play
            return seconds / tokens * (1 - math.sqrt(0.5 * math.log(total) / rounds)) if rounds else -math.inf

        self.length = 1 + min(range(MAX_LENGTH), key=lambda arm: index(self.plays[arm]))

    def verified(self, outcome: Outcome, now: float) -> None:
        """Counts the round for its length."""
        play = self.plays[self.length - 1]
        play[:] = play[0] + 1, play[1] + now - self._began, play[2] + outcome.emitted
        self._began = self._latest = now
        self._choose()

    def state(self) -> Learnt:
        """Goes on with the next completion."""
        return {str(length): play for length, play in enumerate(self.plays)}

    def resume(self, learnt: Learnt) -> None:
        self.plays = [list(play) for play in learnt.values()]
        self._choose()


class FanOut(BestFirst):
    """A chain of `depth` tokens, and at position k of it F_k other outcomes, each with a chain of its own. The fan-out
    is the capped geometric series F_0 a^(k / (1 + r)), the last one larger by (1 - a)^(-1 / (1 + r))."""

    def __init__(self, rule: BestFirstRule, depth: int = 4, accepts: float = 0.8, power: float = 1.0) -> None:
        super().__init__(1, 1, PROMPT_LEN, rule)
        shares = [accepts ** (k / (1 + power)) for k in range(depth + 1)]
        shares[-1] *= (1 - accepts) ** (-1 / (1 + power))
        self.depth, self.fan = depth, [max(round(rule.sequences * one / sum(shares)), 1) for one in shares]

    def candidates(self) -> list[Node]:
        """The end of the chain until it is long enough, then the ends below each other outcome."""
        if not self.ready:
            return []
        chain = [self.tree.root]
        while chain[-1].expanded and chain[-1].children and len(chain) <= self.depth:
            chain.append(_ranked(chain[-1])[0])
        if not chain[-1].expanded and len(chain) <= self.depth:
            return chain[-1:]
        found = list[Node]()
        for place, (node, fan) in enumerate(zip(chain, self.fan)):
            for other in _ranked(node)[place < self.depth :][:fan] if node.expanded else [node]:
                end, depth = other, 0
                while end.expanded and end.children and depth < self.depth:
                    end, depth = _ranked(end)[0], depth + 1
                found += [end] if not end.expanded else []
        return found[: self.rule.sequences]


def _ranked(node: Node) -> list[Node]:
    return sorted(node.children.values(), key=lambda child: child.cost)


class Drifting(LinkModel):
    """A path whose round trip is another one between two moments."""

    other_s, from_s, to_s = 0.110, 1.5, 4.0

    @property
    def varies(self) -> bool:
        return True

    def at(self, now: float) -> LinkModel:
        return LinkModel(self.other_s) if self.from_s <= now < self.to_s else LinkModel(self.rtt_s)


class Slowing(Curve):
    """A worker's step that takes three times as long from one step on, until another. `Worker` asks twice a step."""

    def __init__(self, points: Mapping[int, float], first: int = 400, last: int = 1000) -> None:
        super().__init__(points)
        self._asked, self._slow = 0, range(first, last)

    def __call__(self, rows: int) -> float:
        self._asked += 1
        return super().__call__(rows) * (3 if self._asked in self._slow else 1)


class Switching:
    """A completion whose middle third another kind of text is, with another match rate."""

    def __init__(self, kind: Iid, other: Iid, seed: int, length: int) -> None:
        outer, inner = kind.make(seed, length), other.make(seed, length)
        self._parts = [inner if length // 3 <= at < 2 * length // 3 else outer for at in range(len(outer.targets))]
        self.targets: Sequence[int] = [part.targets[at] for at, part in enumerate(self._parts)]
        self.target_entropies: Sequence[float] = [part.target_entropies[at] for at, part in enumerate(self._parts)]
        self.off_path: Sequence[Proposal] = outer.off_path

    def on_path(self, position: int) -> Proposal:
        """What the draft says after the target's tokens up to this position."""
        return self._parts[position + 1].on_path(position)


@dataclass(frozen=True, slots=True)
class Condition:
    """Where the arms meet."""

    name: str
    net: LinkModel
    slows: bool = False
    switches: bool = False


CONDITIONS = (
    Condition("20 ms", LinkModel(0.020)),
    Condition("80 ms", LinkModel(0.080)),
    Condition("20, 110, 20 ms", Drifting(0.020)),
    Condition("20 ms, worker slows", LinkModel(0.020), slows=True),
    Condition("20 ms, text changes", LinkModel(0.020), switches=True),
)
Make = Callable[[], Policy]
CHAIN = WorkerSpec("bestfirst", 4, 0.0, 4)


def arms() -> Iterator[tuple[str, Make, WorkerSpec | None]]:
    """Name, policy and worker; several of one name are one arm, of which the fastest counts."""
    yield "plain", Arm("", "plain").controller, None
    yield "co-located k = 2", Arm("", "colocated").controller, None
    for phi in (-1.0, 0.5):
        yield "WANSpec", Arm("", "wanspec", WORKER, phi=phi).controller, WORKER
    for prefer in ("latency", "balanced", "offload"):
        yield f"adaptive, {prefer}", Arm("", "adaptive", WORKER, prefer=prefer).controller, WORKER
    yield "adaptive, SSD's worker", Arm("", "adaptive", WORKER).controller, WorkerSpec("fan-out", 4, 0.0, 16)
    yield "UCB-SpecStop", UcbSpecStop, CHAIN
    for sequence, token in ((0.3, 0.2), (0.5, 0.4)):
        yield "PipeSD's trigger", partial(Stopping, unsure=sequence, doubtful=token), CHAIN
    for threshold in (0.3, 0.5, 0.7):
        yield "SpecDec++", partial(Stopping, unsure=1 - threshold), CHAIN
    for length in (1, 2, 4, 8):
        yield "best fixed length", partial(Stopping, length=length), CHAIN
    yield "oracle's worker", Arm("", "adaptive", WORKER, prefer="latency").controller, WorkerSpec("oracle", 4)


def seconds(make: Make, spec: WorkerSpec | None, condition: Condition, place: Place, runs: int) -> list[Result]:
    """The completions of one arm; it carries what it learns from one to the next."""
    results, before = list[Result](), None
    for seed in range(runs):
        kind, other = Iid(match=place.match), Iid(match=0.4)
        process: TokenProcess = (
            Switching(kind, other, seed, place.tokens) if condition.switches else kind.make(seed, place.tokens)
        )
        steps: Steps = steps_at(place, load("sweep"))
        drafting = [_worker(spec, process, steps)] if spec else []
        if condition.slows:
            points = {rows: steps.worker(rows) for rows in (1, 2, 4, 8, 16)}
            steps = replace(steps, worker=Slowing(points), worker_says=steps.worker)
        policy = make()
        if before is not None:
            policy.resume(before)
        net = condition.net if spec else LinkModel(0.0)
        results.append(run(policy, drafting, process, net, steps, place.tokens, seed))
        before = policy.state()
    return results


def _worker(spec: WorkerSpec, process: TokenProcess, steps: Steps) -> Drafting:
    if spec.rule == "fan-out":
        return FanOut(BestFirstRule(branching=spec.branching, sequences=spec.sequences))
    return spec.make(PROMPT_LEN, process, steps.worker)


def field_of(out: Path, processes: int, progress: Progress, runs: int | None = None) -> dict[str, Any]:
    """A row for each condition and arm: seconds and local passes, relative to the better of plain and co-located."""
    rows, every = list[dict[str, Any]](), list(arms())
    place = Place("q4_0", 0.1, 0.8, 20.0, tokens=200)
    progress(0, len(CONDITIONS) * len(every))
    for number, condition in enumerate(CONDITIONS):
        best: dict[str, list[Result]] = {}
        for arm, (name, make, spec) in enumerate(every, 1):
            found = seconds(make, spec, condition, place, runs or 3)
            best[name] = min(best.get(name, found), found, key=_total)
            progress(number * len(every) + arm, len(CONDITIONS) * len(every))
        base = min(_total(best["plain"]), _total(best["co-located k = 2"]))
        rows += [
            {"condition": condition.name, "arm": name, "seconds": round(_total(found) / base, 3),
             "passes": round(statistics.mean(one.local_passes for one in found), 1)}
            for name, found in best.items()
        ]  # fmt: skip
    return {"figure": "field", "rows": rows, "text": text(rows)}


def _total(found: Sequence[Result]) -> float:
    return sum(one.seconds for one in found)


def text(rows: Sequence[Mapping[str, Any]]) -> str:
    """A table for Markdown: an arm a line, a condition a column."""
    names = list(dict.fromkeys(row["condition"] for row in rows))
    lines = [f"| arm | {' | '.join(names)} |", "| --- " * (len(names) + 1) + "|"]
    for arm in dict.fromkeys(row["arm"] for row in rows):
        cells = [f"{row['seconds']:.3f} ({row['passes']:.0f})" for row in rows if row["arm"] == arm]
        lines.append(f"| {arm} | {' | '.join(cells)} |")
    return "\n".join(lines)
