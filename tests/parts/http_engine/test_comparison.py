"""The comparison of samples finds a draft that decides, and nothing in two samples of one distribution."""

from __future__ import annotations

import random
from collections import Counter

from tools.parts.http_engine.draws import two_sample

TEXTS = [f"{first}{second}" for first in "abcd" for second in "wxyz"]
WEIGHTS = [1 / (1 + number) ** 2 for number in range(len(TEXTS))]


def drawn(seed: int, count: int) -> Counter[str]:
    return Counter(random.Random(seed).choices(TEXTS, WEIGHTS, k=count))


def test_samples_of_one_distribution_fit() -> None:
    tails = [two_sample(drawn(seed, 4000), drawn(seed + 1, 2000)).p for seed in range(0, 40, 2)]
    assert min(tails) > 0.005 and 0.2 < sum(tails) / len(tails) < 0.8


def test_one_completion_in_twenty_that_a_draft_decides_is_seen() -> None:
    wrong = drawn(2, 4000)
    for text in TEXTS:
        moved = wrong[text] // 20
        wrong[text] -= moved
        wrong[TEXTS[1]] += moved
    assert two_sample(drawn(1, 4000), wrong).p < 1e-4
