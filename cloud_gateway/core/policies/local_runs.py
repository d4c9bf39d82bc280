"""The local run of the greatest worth: how many leaves its passes evaluate, and from which node it goes.

A run is a number of local draft passes in a row, of which each adds a level to the candidate tree. Its first pass is
chosen by what it finds less its time; each further one is worth a constant share of the one before (`worth.run_s`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cloud_gateway.core.policies.policy import Costs
from cloud_gateway.core.policies.tree_model import TreeEstimate
from cloud_gateway.core.policies.worth import Level, Prices, run_s, run_tokens
from edgespec.core.drafting.tree import Node


class Situation(NamedTuple):
    """What a decision is made from."""

    estimate: TreeEstimate
    costs: Costs
    prices: Prices
    level: Level
    """Value of what a draft step finds, at these prices."""
    now: float


class FirstPass(NamedTuple):
    """The first pass of a local run."""

    leaves: int
    step_s: float
    """What it takes."""
    value_s: float
    """What its candidates are worth."""


class Run(NamedTuple):
    """A local run: its first pass and its worth."""

    leaves: Sequence[Node]
    first_s: float
    """What the candidates of the first pass are worth."""
    step_s: float
    """Seconds of one pass."""
    decay: float
    """Share of a level's probability from which the next one goes on."""
    value_s: float
    """What all levels are worth beyond their time."""
    read_ahead_s: float
    """Time to read candidates above the leaves."""
    tokens: float = 0.0
    """Tokens that it brings; in a run that extends suggestions, not counted."""
    extends_suggestions: bool = False
    """Whether it drafts what sources without a model have proposed."""


def best_first_pass(situation: Situation) -> FirstPass:
    """How many leaves to evaluate, and the value of what they find; any number if none pays for itself."""
    max_leaves = len(situation.estimate.leaves)
    points = situation.costs.local_points or ((max_leaves, 0.0),)
    widths = {min(leaves, max_leaves) for leaves, _ in points}
    passes = sorted([(situation.costs.draft_s(leaves), leaves) for leaves in widths])

    cheapest_s, cheapest = passes[0]
    expected = situation.estimate.expected(max_leaves)
    chosen = FirstPass(cheapest, cheapest_s, 0.0)
    if situation.level.value_s(expected) <= cheapest_s:  # fewer leaves find less
        return chosen

    children = len(situation.estimate.shares)
    best = (0.0, 0)
    for step_s, leaves in passes:
        value_s = situation.level.value_s(expected[: leaves * children])
        if (value_s - step_s, leaves) > best:
            best = (value_s - step_s, leaves)
            chosen = FirstPass(leaves, step_s, value_s)

    return chosen


def best_run(situation: Situation, first: FirstPass, extendable: Node | None) -> Run | None:
    """The local run of the greatest worth; None if no first pass pays for itself.

    `extendable`: the tree's root, if other sources help and no worker drafts.
    """
    decay = _decay(situation)
    best = None
    if first.value_s > first.step_s:
        best = Run(
            leaves=situation.estimate.leaves[: first.leaves],
            first_s=first.value_s,
            step_s=first.step_s,
            decay=decay,
            value_s=run_s(first.value_s, decay, first.step_s),
            read_ahead_s=_read_ahead_s(situation, situation.estimate.leaves[0]),
            tokens=run_tokens(first.value_s, decay, first.step_s, situation.prices.token_s),
        )
    if extendable is None:
        return best

    extending = _extending_run(situation, first, decay)
    if extending.value_s <= 0:
        return best
    if best is None or extending.value_s - extending.read_ahead_s >= best.value_s - best.read_ahead_s:
        return extending

    return best


def _extending_run(situation: Situation, first: FirstPass, decay: float) -> Run:
    """The run from the first node of the likeliest path that only sources without a model have proposed."""
    node, (chance, *below) = situation.estimate.undrafted()
    value_s = 0.0
    if below:
        full_s = situation.level.value_s([chance * share for share in situation.estimate.shares])
        known_s = [full_s * known / chance for known in below]
        value_s = run_s(full_s, decay, situation.costs.draft_s(1), known_s)
    return Run(
        leaves=[node],
        first_s=first.value_s,
        step_s=first.step_s,
        decay=decay,
        value_s=value_s,
        read_ahead_s=_read_ahead_s(situation, node),
        extends_suggestions=True,
    )


def _read_ahead_s(situation: Situation, leaf: Node) -> float:
    """Time to read the candidates between the root and a leaf."""
    return (leaf.position - situation.estimate.root.position) * situation.costs.local_token_s


def _decay(situation: Situation) -> float:
    """Share of a level's value that the next level has: that of the children from which a step goes on.

    A leaf beside the best one is evaluated if what it finds pays for it.
    """
    decay = 0.0
    for rank, chance in enumerate(situation.estimate.shares):
        more_s = situation.costs.draft_s(rank + 1) - situation.costs.draft_s(max(rank, 1))
        if rank == 0 or chance * situation.prices.token_s > more_s:
            decay += chance
    return decay
