"""What a worker is worth, and who is chosen for it: pure."""

from __future__ import annotations

import random

import pytest

from cloud_gateway.core.requests.router import MAX_KEYS, MIN_WORTH, START, LinkedWorker, Merit, choose

GROUPS = frozenset({"default"})
NEAR, FAR = (
    LinkedWorker(name, rtt, rtt, 0.01, paused=False, name=name) for name, rtt in (("near", 0.001), ("far", 0.04))
)


def chosen(merit: Merit, *, explore: bool = False) -> str | None:
    return choose((NEAR, FAR), {}, GROUPS, merit, explore=explore)


def test_each_silent_request_lowers_a_worker_and_a_good_one_raises_it() -> None:
    merit = Merit()
    assert merit.of("near").worth == START and merit.of("near").why == "nothing known yet"
    found = []
    for _ in range(20):
        merit.ended("near", "key", 40, 0, 0)
        found.append(merit.of("near").worth)
    assert found == sorted(found, reverse=True) and found[2] < START / 4 and found[-1] == MIN_WORTH
    assert merit.of("near").why == "nothing accepted in its last 20 requests"
    for _ in range(6):
        merit.ended("near", "key", 20, 20, 20)
    assert merit.of("near").worth > 0.45 and merit.of("near").why.startswith("saved 4")


def test_the_nearer_worker_is_chosen_until_it_has_brought_nothing() -> None:
    merit = Merit()
    assert chosen(merit) == "near"
    for _ in range(4):
        merit.ended("near", "key", 24, 0, 0)
    assert chosen(merit) == "far"
    assert chosen(merit, explore=True) == "near", "passed over for its worth"
    assert chosen(Merit(), explore=True) == "near", "nobody was passed over"


def test_a_short_request_says_little_and_one_without_rounds_nothing() -> None:
    merit = Merit()
    merit.ended("near", "key", 0, 0, 0)
    assert merit.of("near").worth == START
    merit.ended("near", "key", 2, 0, 0)
    assert START > merit.of("near").worth > 0.9 * START


def test_no_keys_prompts_alone_make_a_worker_worthless() -> None:
    merit = Merit()
    for _ in range(50):
        merit.ended("near", "honest", 20, 20, 20)
        merit.ended("near", "attacker", 40, 0, 0)
    assert merit.of("near").worth > 0.2 and chosen(merit) == "near"
    for number in range(2 * MAX_KEYS):
        merit.ended("near", f"key {number}", 40, 0, 0)
    assert len(merit.of("near").means) == MAX_KEYS


def test_one_of_ten_requests_explores() -> None:
    merit = Merit()
    assert sum(merit.explores() for _ in range(100)) == 10


@pytest.mark.parametrize("seed", range(40))
def test_of_workers_passed_over_the_one_tried_longest_ago_explores(seed: int) -> None:
    """The best worker is far away; all others are nearer, and have brought nothing."""
    draws = random.Random(seed)
    merit = Merit()
    names = [f"near {number}" for number in range(40)]
    near = [LinkedWorker(name, 0.001, 0.001, 0.01, paused=False, name=name) for name in names]
    for name in names:
        for _ in range(4):
            merit.ended(name, "key", 24, 0, 0)

    tried = names.copy()
    draws.shuffle(tried)
    for name in tried:
        merit.explores()
        merit.given(name)
    workers = [FAR, *near]
    draws.shuffle(workers)
    assert choose(workers, {}, GROUPS, merit) == "far"

    explored: list[str | None] = []
    for _ in names:
        worker = choose(workers, {}, GROUPS, merit, explore=True)
        merit.explores()
        merit.given(str(worker))
        explored.append(worker)
    assert explored == tried
