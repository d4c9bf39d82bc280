"""The worth of actions, against slow twins that try everything."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_gateway.core.limits.shared_passes import shared_rows
from cloud_gateway.core.policies.policy import Costs
from cloud_gateway.core.policies.tree_model import TreeModel
from cloud_gateway.core.policies.worth import (
    MAX_RUN,
    Level,
    Prices,
    levels_of,
    tree_s,
    worker_s,
)
from cloud_gateway.core.verify.candidates import CandidateTree

TT = 0.030
TD = 0.004
SECONDS = st.floats(0.001, 0.2)
CHANCE = st.floats(0.01, 0.99)


def prices(row_s: float) -> Prices:
    return Prices(Costs(lambda rows: TT + row_s * rows), token_s=0.02)


def every_subset(tree: CandidateTree, survival: dict[int, float], row_s: float, token_s: float) -> float:
    """The greatest net worth of any set of candidates that holds the parents of its members."""
    nodes = list(tree.tree.nodes.values())
    best = -math.inf
    for size in range(len(nodes) + 1):
        for chosen in itertools.combinations(nodes, size):
            if all(node.parent is tree.root or node.parent in chosen for node in chosen):
                net = token_s * sum(survival[node.id] for node in chosen) - (TT + row_s * (1 + size))
                best = max(best, net)
    return best


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), CHANCE), min_size=1, max_size=7), st.floats(0, 0.02))
def test_the_verified_candidates_are_the_best_of_all_subsets(made: list[tuple[int, float]], row_s: float) -> None:
    tree = CandidateTree([1, 2])
    nodes = [tree.root]
    for parent, chance in made:
        above = nodes[parent % len(nodes)]
        nodes.append(tree.add_local(above, 10 + len(nodes), -math.log(chance), 1.0) or above)
    estimate = TreeModel().estimate(tree, 4, 8)
    survival = {node.id: 0.0 for node in tree.tree.nodes.values()}
    survival |= {node.id: chance for node, chance in zip(estimate.nodes, estimate.survival, strict=True)}
    price = prices(row_s)
    count = price.best_count(estimate.survival)
    net = price.token_s * sum(estimate.survival[:count]) - price.pass_s(count)
    assert net == pytest.approx(every_subset(tree, survival, row_s, price.token_s), abs=1e-4)


@pytest.mark.parametrize(("least_s", "count"), [(TT, 5), (5 * TT, 2), (0.0, 5)])
def test_a_row_count_on_offer_is_tried_where_the_least_it_takes_pays(least_s: float, count: int) -> None:
    costs = Costs(lambda rows: TT * max(rows - 4, 1), other_rows=2, probe=(8, least_s))
    price = Prices(costs, token_s=TT)
    assert price.best_count([0.9] * 7) == count, "2 rows of others, the root, and 5 candidates"
    assert price.best_count([0.9] * 4) == 2, "there are not that many"


@given(SECONDS, CHANCE, SECONDS)
def test_a_run_has_the_number_of_levels_that_is_worth_most(first: float, decay: float, step: float) -> None:
    lengths = [sum(first * decay**level - step for level in range(count)) for count in range(17)]
    levels = levels_of(first, decay, step)
    assert sum(levels) - len(levels) * step == pytest.approx(max(lengths))


@given(CHANCE, st.integers(1, 12))
def test_a_level_left_for_the_next_pass_costs_what_that_pass_lacks(stay_rate: float, levels: int) -> None:
    def tokens(depth: int) -> float:
        return sum(stay_rate**level for level in range(depth + 1))

    recovered = tokens(levels + 1) - tokens(levels)
    assert worker_s(1.0, stay_rate, 1.0, levels) == pytest.approx(1 - recovered), "the next levels are worth no wait"
    assert worker_s(1.0, stay_rate, 1.0, 0.0) == 1, "what the worker does not bring is lost"


def test_a_row_that_pays_alone_does_not_pay_where_seven_others_wait_for_it() -> None:
    alone, beside = (Prices(Costs(lambda rows: TT + 0.01 * rows, sharers=n), 8 * 0.01) for n in (0, 7))
    assert (alone.best_count([0.5]), beside.best_count([0.5])) == (1, 0)


@given(st.lists(CHANCE, max_size=20), st.lists(CHANCE, min_size=1, max_size=8), st.integers(2, 40))
def test_those_that_share_a_draft_step_share_rows(known: list[float], found: list[float], clients: int) -> None:
    """The worth if each of them had the same candidates, and the best number of these were verified for all."""

    def pass_s(rows: int) -> float:
        return TT * max(rows / 20, 1.0)

    def worth(candidates: list[float]) -> float:
        gained = itertools.accumulate(sorted(candidates, reverse=True)[:16], initial=0.0)
        return max(TT * each - (pass_s(3 + clients * (1 + n)) - pass_s(3 + clients)) / clients
                   for n, each in enumerate(gained))  # fmt: skip

    costs = Costs(pass_s, sharers=clients - 1, rows_s=shared_rows(pass_s, clients, 3, 16))
    level = Level(Prices(costs, clients * TT), sorted(known, reverse=True), 16)
    assert level.value_s(found) == pytest.approx(worth([*known, *found]) - worth(known), abs=1e-9)


@given(CHANCE, SECONDS, SECONDS, st.integers(0, 3))
def test_a_chain_alone_takes_what_the_closed_form_says(match: float, step_s: float, pass_s: float, others: int) -> None:
    """One leaf and one child a step: (γ t_d + t_v) / (1 + a + ... + a^γ) at the best γ."""
    costs = Costs(lambda rows: pass_s, step_s, local_leaves=1, sharers=others)
    every = [
        (depth * (1 + others) * step_s + pass_s) / sum(match**level for level in range(depth + 1))
        for depth in range(MAX_RUN + 1)
    ]
    assert tree_s(costs, [match], 16) == pytest.approx(min(every))
    assert tree_s(Costs(lambda rows: pass_s), [match], 16) == pass_s, "without a draft it decodes"


def test_a_tree_alone_takes_the_width_that_pays() -> None:
    """Two children a leaf, each right half of the time: two leaves find every second token, one finds it half as often
    from the second level on."""
    free, dear = (Costs(lambda rows: TT, TD, local_points=((1, TD), (2, pair_s))) for pair_s in (TD, 100 * TD))
    narrow, wide = (tree_s(costs, [0.5, 0.4], 16) for costs in (dear, free))
    assert wide < narrow == pytest.approx(min(
        (depth * TD + TT) / (1 + sum(0.9 * 0.5**level for level in range(depth))) for depth in range(1, MAX_RUN)
    ))  # fmt: skip
    assert tree_s(free, [0.5, 0.4], 2) > wide, "a pass takes so many candidates only"


def test_a_tree_in_company_has_only_candidates_that_pay_for_rows() -> None:
    """Eight rows are free, two for each of four: of four children the best one is verified."""
    costs = Costs(lambda rows: TT * max(rows / 8, 1.0), TD / 4, local_leaves=1, sharers=3)
    assert tree_s(costs, [0.5, 0.2, 0.1, 0.1], 16) == pytest.approx((TD + TT) / 1.5)
