"""`tools.bench sources`: its figures, and its prompts."""

from __future__ import annotations

from cloud_gateway.core.requests.request import Usage
from tools.bench import sources
from tools.bench.source_prompts import TEXTS


def test_figures_are_sums_over_prompts_and_a_median_of_times() -> None:
    plain = [Usage(completion_tokens=11, rounds=11, decode_s=1.0), Usage(completion_tokens=11, rounds=11, decode_s=2.0)]
    found = [
        Usage(completion_tokens=11, rounds=5, drafted={"lookup": 20}, accepted={"lookup": 6}, decode_s=0.5),
        Usage(completion_tokens=11, rounds=6, drafted={"local": 5}, accepted={"local": 5}, decode_s=1.0),
    ]
    row = sources.figures("edit", "merge", found, plain)
    assert row["tokens / round"] == 2 and row["accepted / drafted"] == 0.44
    assert row["ms / token"] == 75 and row["/ first arm"] == 0.5


def test_every_kind_has_several_different_prompts() -> None:
    assert set(TEXTS) == {"chat", "edit", "code"}
    assert all(len(set(prompts)) == len(prompts) >= 3 for prompts in TEXTS.values())
