"""Arms, cells and rows: which policies run where, how often, and what is reported of them."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from msgspec.structs import replace as replaced

from cloud_gateway.core.policies.policy import Learnt, Policy
from cloud_gateway.core.policies.registry import Policies, make
from cloud_gateway.core.policies.settings import DEFAULTS, Phi, PolicySettings, Prefer
from edgespec.core.drafting.algorithm2 import Drafting, DraftRule
from edgespec.core.drafting.best_first import BestFirst, BestFirstRule
from edgespec_lab.link_model import LinkModel
from edgespec_lab.sim.process import TokenProcess
from edgespec_lab.sim.tokens import Iid, IidProcess, Recorded
from edgespec_lab.sim.world import Curve, Result, Steps, run

Kind = Iid | Recorded
Row = dict[str, Any]
T = TypeVar("T")
R = TypeVar("R")
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """How the worker drafts: by Algorithm 2, or best first."""

    rule: str = "algorithm2"
    branching: int = 2
    theta: float = 0.5
    sequences: int = 4
    count: int = 1
    """Workers that share the request."""

    def make(self, prompt_len: int, step_s: Curve, epoch: int = 1) -> Drafting:
        """The worker's state machine for one request. Best first it chooses its leaves by its own curve, as shipped."""
        if self.rule == "algorithm2":
            return Drafting(1, epoch, prompt_len, DraftRule(self.branching, self.theta, self.sequences))
        rule = BestFirstRule(branching=self.branching, sequences=self.sequences)
        return BestFirst(1, epoch, prompt_len, rule, step_s=step_s)


@dataclass(frozen=True, slots=True)
class Arm:
    """One configuration: a gateway policy and, where it has one, a worker."""

    config: str
    policy: str
    worker: WorkerSpec | None = None
    k: int = DEFAULTS.k
    phi: Phi | None = None
    """None: 0.5, WANSpec's, whose figures these are; learnt by policy `adaptive`."""
    verify_nodes: int = DEFAULTS.verify_nodes
    prefer: Prefer = DEFAULTS.prefer
    local: bool = True
    """Whether the gateway has a draft of its own."""
    depth: int = DEFAULTS.depth
    """Maximum levels that `wanspec` verifies at once."""

    @property
    def settings(self) -> PolicySettings:
        """As the gateway's configuration would have them."""
        phi: Phi = self.phi if self.phi is not None else "learnt" if self.policy == "adaptive" else 0.5
        return replaced(
            DEFAULTS, name=self.policy, k=self.k, phi=phi, verify_nodes=self.verify_nodes, depth=self.depth,
            prefer=self.prefer, workers_per_request=self.worker.count if self.worker else 1,
        )  # fmt: skip

    def controller(self, policies: Policies, before: Learnt | None = None) -> Policy:
        """A fresh policy of the gateway, with what the answer before taught. Raises ConfigError if it lacks it."""
        return make(self.settings, before, policies)


BASE = Arm("colocated k=2", "colocated", k=2)


def unseen(done: int, total: int) -> None:
    """Progress that nobody watches."""


@dataclass(frozen=True, slots=True)
class Simulator:
    """The means of each simulation, as a command line gives them."""

    policies: Policies
    """All of the gateway, with those of its parts; each process gets a pickled copy."""
    processes: int = 2
    progress: Progress = unseen


@dataclass(frozen=True, slots=True)
class Cell:
    """One arm at one place, over `runs` seeds."""

    arm: Arm
    kind: Kind
    net: LinkModel
    steps: Steps
    tokens: int = 100
    runs: int = 20
    labels: dict[str, Any] = field(default_factory=dict, compare=False)
    """Further columns of its row."""
    base: Arm = field(default=BASE, compare=False)
    """What its ratios are relative to, without a worker."""
    workers: tuple[Iid, ...] = ()
    """Each worker's draft; empty: the gateway's own model."""
    changes_after: int = 1 << 30
    """Completions after which all workers draft with the gateway's own model."""


def simulate(cell: Cell, policies: Policies) -> list[Result]:
    """All runs of a cell, in the order of their seeds: the same answers for every arm. A policy carries what it learns
    from one to the next, as in service; the first one starts without. Raises ConfigError if the cell's is none of
    `policies`."""
    results: list[Result] = []
    before: Learnt | None = None
    for seed in range(cell.runs):
        process: TokenProcess = cell.kind.make(seed, cell.tokens)
        worker = cell.arm.worker
        says = cell.steps.worker_says or cell.steps.worker
        made = [worker.make(2, says, epoch) for epoch in range(1, worker.count + 1)] if worker else []
        steps = cell.steps if cell.arm.local else replace(cell.steps, local=None)
        controller = cell.arm.controller(policies, before)
        drafts = _drafts(cell, process, seed) if made else []
        results.append(run(controller, made, process, cell.net, steps, cell.tokens, seed, drafts=drafts))
        before = controller.state()

    return results


def _drafts(cell: Cell, process: TokenProcess, seed: int) -> list[TokenProcess]:
    """What the workers propose for the completion of `process`, if they have drafts of their own."""
    if not cell.workers or seed >= cell.changes_after:
        return []
    assert isinstance(process, IidProcess), "a recording has one draft"
    return [kind.beside(process, seed + 1000 * nth, cell.tokens) for nth, kind in enumerate(cell.workers)]


def rows_of(cells: Sequence[Cell], simulator: Simulator) -> list[Row]:
    """Simulates all cells and reports each relative to its base (co-located k = 2) on the same answers.

    A ratio is the median over runs of the ratio of one run to the reference's on the same answer.
    """
    bases = {
        _base_key(cell): Cell(cell.base, cell.kind, LinkModel(0.0), cell.steps, cell.tokens, cell.runs)
        for cell in cells
    }

    # An arm without a worker is the same at every round trip.
    work: dict[Cell, list[Result]] = {_canonical(cell): [] for cell in [*bases.values(), *cells]}
    _fill(work, simulator)
    return [_row(cell, work[_canonical(cell)], work[_canonical(bases[_base_key(cell)])]) for cell in cells]


def _base_key(cell: Cell) -> tuple[Any, ...]:
    return (cell.base, cell.kind, cell.steps, cell.tokens, cell.runs)


def _canonical(cell: Cell) -> Cell:
    net = cell.net if cell.arm.worker else LinkModel(0.0)
    return Cell(cell.arm, cell.kind, net, cell.steps, cell.tokens, cell.runs)


def _fill(work: dict[Cell, list[Result]], simulator: Simulator) -> None:
    simulator.progress(0, len(work))
    order = sorted(work, key=lambda cell: -cell.net.rtt_s)  # long round trips take longest
    results_of = partial(simulate, policies=simulator.policies)
    for done, (cell, results) in enumerate(spread(results_of, order, simulator.processes), 1):
        work[cell] = results
        simulator.progress(done, len(work))


def spread(function: Callable[[T], R], items: Iterable[T], processes: int) -> Iterator[tuple[T, R]]:
    """Each item with its result as soon as that is there, over so many processes."""
    if processes <= 1:
        yield from ((item, function(item)) for item in items)
        return
    with ProcessPoolExecutor(min(processes, os.cpu_count() or 1)) as pool:
        futures = {pool.submit(function, item): item for item in items}
        yield from ((futures[future], future.result()) for future in as_completed(futures))


def _row(cell: Cell, results: Sequence[Result], bases: Sequence[Result]) -> Row:
    def ratio(of: Callable[[Result], float]) -> float:
        return round(statistics.median(of(r) / of(b) for r, b in zip(results, bases, strict=True)), 4)

    tokens = sum(r.tokens for r in results)
    return {
        "rtt_ms": round(cell.net.rtt_s * 1000, 3),
        "config": cell.arm.config,
        **cell.labels,
        "latency_ratio": ratio(lambda r: r.seconds),
        "draft_ratio": ratio(lambda r: r.local_passes),
        "draft_token_ratio": ratio(lambda r: r.local_tokens),
        "ms_per_token": round(sum(r.seconds for r in results) / tokens * 1000, 4),
        "tokens_per_round": round(tokens / sum(r.rounds for r in results), 3),
        "worker_steps_per_token": round(sum(r.worker_steps for r in results) / tokens, 3),
        "frames_per_round": round(sum(r.frames for r in results) / sum(r.rounds for r in results), 2),
        "stale_frames": round(1 - sum(r.useful_frames for r in results) / max(sum(r.frames for r in results), 1), 3),
        "up_bytes_per_token": round(sum(r.up_bytes for r in results) / tokens, 1),
        "down_bytes_per_token": round(sum(r.down_bytes for r in results) / tokens, 1),
    }
