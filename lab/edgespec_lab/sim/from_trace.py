"""A traced answer as a token process, so that other policies can be tried on it.

What the target says is known at every position of the answer. What the draft says is known after the positions whose
children a frame or a local pass named; elsewhere it is taken from another position of the same trace, drawn by seed.
So a comparison is an estimate, and `known` says how much of it stands on what was recorded.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from cloud_gateway.core.policies.policy import LinkView
from cloud_gateway.core.policies.registry import Policies
from cloud_gateway.parts.request_traces import format as trace
from cloud_gateway.parts.request_traces.format import Trace, TraceError
from cloud_gateway.parts.request_traces.play import Moment, Player
from edgespec.core.drafting.algorithm2 import DraftRule, Proposal
from edgespec.core.numbers import interpolate
from edgespec.core.protocol.messages import ROOT
from edgespec_lab.link_model import LinkModel
from edgespec_lab.sim.process import LOOKAHEAD
from edgespec_lab.sim.world import Curve, Steps

FILLER = 1 << 31
"""Tokens from here are nobody's choice; the trace's own are below."""
BEYOND = -1
"""Position of whatever lies behind the end of the answer: nothing is known there."""


class TracedProcess:
    """The process (lab/edgespec_lab/sim/process.py); position 0 is where the comparison begins."""

    def __init__(
        self, targets: Sequence[int], entropies: Sequence[float], proposals: Sequence[Proposal], off: Sequence[Proposal]
    ) -> None:
        self.targets = targets
        self.target_entropies = entropies
        self.off_path = off
        self._proposals = proposals

    def on_path(self, position: int) -> Proposal:
        return self._proposals[position]


@dataclass(frozen=True, slots=True)
class _Named:
    """Children of one parent."""

    tokens: list[int] = field(default_factory=list)
    costs: list[float] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)

    def add(self, token: int, cost: float, entropy: float) -> None:
        if token not in self.tokens:
            self.tokens.append(token)
            self.costs.append(cost)
            self.entropies.append(entropy)

    def proposal(self) -> Proposal:
        order = sorted(range(len(self.tokens)), key=lambda i: self.costs[i])
        return Proposal([self.tokens[i] for i in order], [self.costs[i] for i in order], self.entropies[order[0]])


@dataclass(frozen=True, slots=True)
class _Ranked:
    """A proposal by the rank that the target's token has in it, to be used at another position."""

    costs: Sequence[float]
    entropy: float
    rank: int | None

    @classmethod
    def of(cls, named: _Named, targets: Sequence[int], position: int) -> _Ranked | None:
        if position + 1 >= len(targets):
            return None
        proposal = named.proposal()
        tokens = list(proposal.tokens)
        rank = tokens.index(targets[position + 1]) if targets[position + 1] in tokens else None
        return cls(proposal.costs, proposal.entropy, rank)

    def at(self, target: int) -> Proposal:
        tokens = [target if i == self.rank else FILLER + i for i in range(len(self.costs))]
        return Proposal(tokens, self.costs, self.entropy)


def _stranger(named: _Named) -> Proposal:
    """What the draft says where nothing that follows can be right."""
    proposal = named.proposal()
    return Proposal([FILLER + i for i in range(len(proposal.tokens))], proposal.costs, proposal.entropy)


@dataclass(frozen=True, slots=True)
class Start:
    """Where the comparison begins: the totals at the end of a round."""

    at_s: float
    tokens: int
    passes: int
    local_passes: int
    backlog_s: float


class _Reader:
    """One pass over a trace."""

    def __init__(self, recorded: Trace, policies: Policies) -> None:
        self.targets: list[int] = [0]
        self.entropies: list[float] = [0.0]
        self.origin = recorded.header.prompt_len - 1
        self.passes = self.local_passes = 0
        self.ended_s = 0.0
        self._useful_at: float | None = None
        """When the first useful frame arrived; the trace may show the link only later."""
        self._rounds: list[Start] = []
        self._frames: list[tuple[int, trace.Frame]] = []
        self._locals: list[tuple[int, tuple[int, ...], Proposal]] = []
        self._links: list[LinkView] = []
        self._seen: LinkView | None = None
        self._backlogs: list[tuple[int, float]] = []
        self._slopes: list[float] = []
        self._asked: tuple[float, trace.Act] | None = None
        self._backlog_s = 0.0
        self.passes_s: dict[int, list[float]] = {}
        """Seconds of each pass, by its rows."""
        self.drafts_s: list[float] = []
        """Seconds of each local draft step."""
        self._player = Player(recorded, policies)
        for moment in self._player.play():
            self._take(moment)

    def _take(self, moment: Moment) -> None:
        match moment.event:
            case trace.Frame() as event:
                given = self._player.generation.assignments.given.get(event.worker)
                if event.on_path and given is not None:
                    self._frames.append((given.epoch, event))
                if self._useful_at is None and moment.taken is not None and moment.taken.useful:
                    self._useful_at = moment.now
            case trace.Drafted(leaves, proposals):
                root = self._player.tree.root
                for leaf, (named, costs, entropy) in zip(leaves, proposals, strict=True):
                    path = self._player.node(leaf).path(root)
                    self._locals.append((root.position - self.origin, path, Proposal(named, costs, entropy)))
            case trace.Verified(tokens, entropies):
                self.targets += tokens
                self.entropies += entropies
                self.passes += 1
                self._timed(moment.now)
                self._end_round(moment.now)
            case trace.Decided(link, act=act):
                if link is not None and link != self._seen:
                    self._links.append(link)
                self._seen = link
                self._decided(moment.now, act)

    @property
    def ready_at(self) -> float | None:
        """When the worker had read the prompt: a step and half a round trip before its first useful frame."""
        if self._useful_at is None or not self._links:
            return None
        return self._useful_at - self._links[0].rtt_s / 2 - self._links[0].step_s

    def _decided(self, now: float, act: trace.Act) -> None:
        if self._asked is not None:
            before, action = self._asked
            if action.kind == "draft":
                self.drafts_s.append(now - before - self._backlog_s)
        self._asked = (now, act)
        self._backlog_s = self._player.costs.local_backlog_s
        if not self._rounds:
            self._end_round(now)
        backlog_s = self._player.costs.local_backlog_s
        tokens = len(self.targets)
        if self._backlogs:
            earlier, earlier_s = self._backlogs[-1]
            if tokens > earlier and backlog_s > earlier_s:
                self._slopes.append((backlog_s - earlier_s) / (tokens - earlier))
        self._backlogs.append((tokens, backlog_s))
        self.local_passes += act.kind == "draft"

    def _timed(self, now: float) -> None:
        """How long the pass took that the last decision asked for."""
        if self._asked is not None and self._asked[1].kind == "verify":
            rows = len(self._asked[1].nodes) + 1
            self.passes_s.setdefault(rows, []).append(now - self._asked[0])

    def _end_round(self, now: float) -> None:
        backlog_s = self._player.costs.local_backlog_s
        self._rounds.append(Start(now, len(self.targets) - 1, self.passes, self.local_passes, backlog_s))
        self.ended_s = now

    def _start(self) -> Start:
        """The last round that ended before the worker had read the prompt; without a worker the first decision."""
        if not self._rounds:
            raise TraceError("no pass of the target is in it.")
        early = [end for end in self._rounds if self.ready_at is not None and end.at_s <= self.ready_at]
        if early:
            return early[-1]
        return self._rounds[0]

    def _resolve(self) -> tuple[dict[int, _Named], list[_Named]]:
        """The children named after each position of the answer, and those named off it."""
        known: dict[int, _Named] = {}
        off: dict[object, _Named] = {}
        for place, key, token, cost, entropy in [*self._framed(), *self._local()]:
            if place == BEYOND:
                continue
            named = off.setdefault(key, _Named()) if place is None else known.setdefault(place, _Named())
            named.add(token, cost, entropy)

        return known, list(off.values())

    def _framed(self) -> Iterator[tuple[int | None, object, int, float, float]]:
        where: dict[tuple[int, int], int | None] = {}
        for epoch, frame in self._frames:
            for i, (parent, token) in enumerate(zip(frame.parents, frame.tokens, strict=True)):
                base = frame.prefix_len - 1 - self.origin
                place = base if parent == ROOT else where.get((epoch, parent))
                where[epoch, frame.first + i] = self._next(place, token)
                yield place, (epoch, parent), token, frame.costs[i] / 1000, frame.entropies[i] / 1000

    def _local(self) -> Iterator[tuple[int | None, object, int, float, float]]:
        for root, path, proposal in self._locals:
            place: int | None = root
            for token in path:
                place = self._next(place, token)
            for token, cost in zip(proposal.tokens, proposal.costs, strict=True):
                yield place, ("local", root, path), token, cost, proposal.entropy

    def _next(self, place: int | None, token: int) -> int | None:
        """The position after this token, None off the answer, BEYOND behind its end."""
        if place is None or place == BEYOND:
            return place
        if place + 1 >= len(self.targets):
            return BEYOND
        if self.targets[place + 1] == token:
            return place + 1

        return None

    @property
    def rtt_s(self) -> float | None:
        """The median round trip, or None without a worker."""
        if self._links:
            return median(link.rtt_s for link in self._links)
        return None

    @property
    def sequences(self) -> int:
        """Leaves that the worker evaluated in one step."""
        counts = [len(set(frame.parents)) for _, frame in self._frames]
        if counts:
            return max(1, round(median(counts)))
        return 1

    def _steps(self) -> Steps:
        """Passes as they were measured; a worker that was never there drafts as fast as the local draft."""
        costs = self._player.costs
        local_s = costs.local_step_s
        worker_s = median(link.step_s for link in self._links) if self._links else local_s
        if worker_s is None:
            raise TraceError("neither a worker nor a local draft was there, so that no policy can be tried on it.")

        token_s = self.token_s
        unread = round(self._start().backlog_s / token_s) if token_s else 0
        local = None if local_s is None else Curve({1: median(self.drafts_s) if self.drafts_s else local_s})
        return Steps(
            scaled(self._player.points, self.passes_s), local, Curve({1: worker_s}), token_s, unread, costs.local_leaves
        )

    @property
    def token_s(self) -> float:
        """Seconds in which the local draft reads a token; 0 where its backlog never grew."""
        if self._slopes:
            return median(self._slopes)
        return 0.0


class Traced(_Reader):
    """What a trace shows of its completion, its passes and its link."""

    def __init__(self, recorded: Trace, policies: Policies) -> None:
        """`policies`: the recorded one is among them. Raises TraceError where the trace cannot be played, or holds too
        little to try a policy on."""
        super().__init__(recorded, policies)
        self.header = recorded.header
        self._known, self._off = self._resolve()
        self.start = self._start()
        self.ahead_s = max(self.start.at_s - self.ready_at, 0.0) if self.ready_at is not None else 0.0
        """How long its worker had drafted when the comparison begins, while the target read the prompt."""
        self.tokens = len(self.targets) - 1 - self.start.tokens
        if self.tokens < 2 or not self._known:
            raise TraceError("it holds too few tokens, or no draft's proposals, so that no policy can be tried on it.")

        self.ms_per_token = (self.ended_s - self.start.at_s) * 1000 / self.tokens
        self.passes -= self.start.passes
        self.local_passes -= self.start.local_passes
        self.steps = self._steps()
        self.branching = max(len(named.tokens) for named in [*self._known.values(), *self._off])

    @property
    def known(self) -> float:
        """Share of the positions compared after which the draft's proposals were recorded."""
        here = range(self.start.tokens, self.start.tokens + self.tokens)
        return sum(position in self._known for position in here) / self.tokens

    def net(self, rtt_s: float | None = None) -> LinkModel:
        """The link as it was, or with another round trip. Raises TraceError where no worker was ever linked."""
        chosen = self.rtt_s if rtt_s is None else rtt_s
        if chosen is None:
            raise TraceError("no worker was linked in it: give a round trip with --rtt-ms.")
        return LinkModel(chosen)

    def rule(self) -> DraftRule:
        """A worker that drafts as the recorded one did: proposals are as wide as they were."""
        return DraftRule(self.branching, 0.0, self.sequences)

    def process(self, seed: int) -> TracedProcess:
        """The answer from where the comparison begins; `seed` decides what fills the gaps."""
        rng = random.Random(seed)
        begin = self.start.tokens
        end = len(self.targets)
        targets = [*self.targets[begin:], *range(FILLER + FILLER // 2, FILLER + FILLER // 2 + LOOKAHEAD)]
        entropies = [*self.entropies[begin:], *[0.0] * LOOKAHEAD]
        donors = [_Ranked.of(named, self.targets, position) for position, named in sorted(self._known.items())]
        usable = [donor for donor in donors if donor is not None]
        proposals = []
        for i in range(len(targets) - 1):
            named = self._known.get(begin + i) if begin + i < end - 1 else None
            proposals.append(named.proposal() if named else rng.choice(usable).at(targets[i + 1]))
        off = [_stranger(named) for named in (self._off or list(self._known.values()))]
        return TracedProcess(targets, entropies, proposals, off)


def scaled(expected: Mapping[int, float], timed: Mapping[int, Sequence[float]]) -> Curve:
    """Seconds of a pass by rows: medians of those timed, elsewhere the gateway's estimate, scaled to them."""
    known = {rows: median(times) for rows, times in timed.items()}
    scale = median(seconds / interpolate(expected, rows) for rows, seconds in known.items()) if known else 1.0
    return Curve({rows: seconds * scale for rows, seconds in expected.items()} | known)
