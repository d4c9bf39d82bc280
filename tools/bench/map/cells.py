"""The arms of the map, how much of each is measured, and a cell's figures: in virtual time, or over real sockets."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloud_gateway.core.policies.settings import PolicySettings
from cloud_gateway.core.requests.choices import Choices
from edgespec_lab.sim import virtual
from edgespec_lab.sim.live.gateway import Load
from edgespec_lab.sim.live.setting import Setting
from edgespec_lab.sim.live.stage import Stage
from tools.bench.map import theory
from tools.bench.map.machine import ACCEPTANCE, LOADS, RATIOS, TARGET_MS, Place

TOKENS = {1: (48, 400), 4: (32, 120), 16: (12, 24), 32: (16, 24), 64: (12, 16)}
"""Of each client, by the load: those that pass before, in which estimates settle, and those that count."""
TREES = (2, 3, 4)
"""Depths of co-located trees."""
TREE_CLIENTS = 16
"""With more their rows are far beyond the compute limit: 0.35 of the chain's rate for 32 clients."""


@dataclass(frozen=True, slots=True)
class Arm:
    """A configuration of the gateway."""

    name: str
    policy: PolicySettings
    workers: bool = False

    def setting(self, place: Place, scale: float = 1.0) -> Setting:
        """At a place; nobody's completion ends in the time that is measured."""
        length = 4 * sum(tokens(place.clients))
        return place.setting(self.policy, length, scale)


OURS = Arm("ours", PolicySettings(), workers=True)
ALONE = Arm("alone", PolicySettings())
"""The same gateway without a worker."""


COMPARED = ("colocated", "colocated-tree")
"""The policies that draft at the gateway alone."""


def chain(gamma: int) -> Arm:
    """Co-located speculation as vLLM does it; plain decoding for 0."""
    policy = PolicySettings(name="colocated", k=gamma) if gamma else PolicySettings(name="plain")
    return Arm(f"chain {gamma}" if gamma else "plain", policy)


def tree(depth: int) -> Arm:
    """The same with a tree."""
    return Arm(f"tree {depth}", PolicySettings(name="colocated-tree", k=depth))


def tokens(clients: int) -> tuple[int, int]:
    """As TOKENS has it."""
    return next(value for load, value in TOKENS.items() if clients <= load or load == max(TOKENS))


Measure = Callable[[Arm, Place], dict[str, float]]


def simulated(arm: Arm, place: Place, choices: Choices) -> dict[str, float]:
    """Its figures in virtual time. `choices`: of the gateway, the arm's policy among them."""
    workers = place.clients if arm.workers else 0
    return virtual.measure(arm.setting(place), workers, place.clients, *tokens(place.clients), choices=choices)


def without_worker(place: Place, measured: Measure) -> dict[str, Any]:
    """The arms that no round trip changes: plain, the best chain by the closed form, trees, and ours alone."""
    gamma, rate = theory.best(place)
    trees = TREES if place.clients <= TREE_CLIENTS else ()
    arms = [chain(0), *([chain(gamma)] if gamma else []), *map(tree, trees), ALONE]
    found = {arm.name: measured(arm, place) for arm in arms}
    return {"gamma": gamma, "closed_form": round(rate, 2), "arms": found}


def grid() -> Iterator[Place]:
    """All cells at WANSpec's step times."""
    for acceptance in ACCEPTANCE:
        for clients in LOADS:
            for ratio in RATIOS:
                yield Place(ratio * TARGET_MS, acceptance, clients)


def cell(place: Place, base: dict[str, Any], ours: dict[str, float]) -> dict[str, Any]:
    """One row of the map. `best`: of all co-located arms."""
    rates = {name: figures["rate"] for name, figures in base["arms"].items()}
    name = max(rates, key=lambda one: rates[one])
    line = f"chain {base['gamma']}" if base["gamma"] else "plain"
    return {
        "ratio": round(place.rtt_ms / place.target_ms, 3),
        "acceptance": place.acceptance,
        "clients": place.clients,
        "ours": round(ours["rate"], 2),
        "best": name,
        "rates": {one: round(rate, 2) for one, rate in rates.items()},
        "closed_form": base["closed_form"],
        "to_chain": round(ours["rate"] / rates[line], 3),
        "to_best": round(ours["rate"] / rates[name], 3),
        "to_alone": round(ours["rate"] / rates["alone"], 3),
        "figures": {one: round(value, 3) for one, value in ours.items()},
    }


WINS = 1.05
KEPT = 0.98
"""Ours ÷ another arm from which on it wins, and below which it loses."""


def live(arm: Arm, place: Place, scale: float, counts: tuple[int, int] | None = None) -> dict[str, float]:
    """Its figures over real sockets as `simulated` has them, in unscaled time, and what the hosts took.

    Every time is `scale` times as long, so that hosts that share two cores take a smaller part. Raises RigError.
    `counts`: tokens of each client that pass before, and that count.
    """
    skipped, counted = counts or tokens(place.clients)
    workers = place.clients if arm.workers else 0
    with tempfile.TemporaryDirectory() as name, Stage(arm.setting(place, scale), Path(name), workers) as stage:
        found = stage.ask(Load([*range(place.clients)], counted, skipped, bool(workers)))
        workers_cpu_s = sum(one["cpu_s"] for one in stage.end_workers())

    return {
        "rate": found.tokens / found.seconds / place.clients * scale,
        "tokens_per_pass": found.tokens / found.passes,
        "draft_passes": found.draft_passes / found.tokens,
        "rows": found.rows / found.tokens,
        "host_us": found.host_s / found.passes / place.clients * 1e6,
        "waited_share": found.waited_s / found.seconds,
        "gateway_cpu_us": found.cpu_s / found.tokens * 1e6,
        "workers_cpu_s": workers_cpu_s,
        "late_us": found.late_us,
    }
