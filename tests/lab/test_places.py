"""Tables of several places: which arms run at each place, how they are saved and continued, and what their rows say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from edgespec_lab.demo.arms import BASE, CONTROL, Bench, Run
from edgespec_lab.places import __main__ as places
from edgespec_lab.places.report import interval, summary
from edgespec_lab.places.series import ALONE, FACTOR_TURNS, Place, Series, neighbour_factor
from edgespec_lab.rig import Rig
from edgespec_lab.rig.neighbour import Neighbour
from tests.lab.demo.test_report import FakeNeighbour

PLACES = [Place(0.0), Place(80.0)]
KEYS = {place.arm(name): f"key of {place.arm(name)}" for place in PLACES for name in places.SWEPT}


def run(ms: float, passes: int = 0, others: float = 0.0) -> Run:
    usage = {
        "timings_ms": {"decode": 10 * ms, "before_worker": 0.0, "total": 10 * ms + 50},
        "tokens_before_worker": 0, "local_draft_passes": passes, "rounds": 5, "accepted": {"local": 4}, "why": None,
    }  # fmt: skip
    return Run("digest", 10, usage, others)


class FakeRig:
    """Remembers who asked for what, and whether the neighbour drafted."""

    folder = Path("unused")
    cores = (None, None)

    def __init__(self, neighbour: FakeNeighbour) -> None:
        self.neighbour = neighbour
        self.asked = list[tuple[str, str, Mapping[str, Any], bool]]()
        self.on_chat: Callable[[str], None] = lambda key: None

    def pid(self, name: str) -> str:
        return name

    def pids(self) -> list[int]:
        return []

    def chat(self, prompt: str, max_tokens: int, key: str = "", **asks: Any) -> dict[str, Any]:
        self.asked.append((prompt, key, asks, self.neighbour.active))
        self.on_chat(key)
        found = run(30.0 if asks["policy"] == "plain" else 20.0)
        return {
            "choices": [{"message": {"content": prompt}}],
            "usage": {"completion_tokens": 10, "edgespec": found.usage},
        }


def series() -> tuple[Series, FakeRig]:
    beside = FakeNeighbour()
    rig = FakeRig(beside)
    return Series(Bench(cast(Rig, rig), cast(Neighbour, beside)), KEYS), rig


def test_the_factor_is_that_of_plain_passes_with_and_without_neighbour() -> None:
    made, rig = series()
    found = neighbour_factor(made.bench)
    assert found["factor"] == 1.0 and found["draft_steps"] == 5 * FACTOR_TURNS
    assert [active for *_, active in rig.asked] == [False, True] * FACTOR_TURNS
    made.bench.neighbour = None
    assert neighbour_factor(made.bench) == {}


def figures(*remote_ms: float) -> dict[str, Any]:
    every = []
    for number, ms in enumerate(remote_ms):
        runs = {"plain": run(40.0), BASE: run(20.0, 10), "colocated_k5": run(16.0, 12), CONTROL: run(25.0, 9)}
        runs |= {name + ALONE: run(one.ms_per_token / 1.25) for name, one in runs.items()} if number == 0 else {}
        every.append(runs | {name: run(ms * (0.5 if "latency" in name else 1.0), 5) for name in KEYS})
    start = {"kept": [5], "neighbour": {"factor": 1.25}}
    setting = {"draft": "quantised", "target": "deep"}
    return {"setting": setting, "start": start, **summary(every, PLACES, start)}


def test_ratios_are_paired_and_to_the_better_of_plain_and_k2() -> None:
    found = figures(18.0, 20.0, 30.0)
    row = found["rows"][0]
    assert (row["rtt_ms"], row["prefer"], found["best_k"]) == (0.0, "balanced", 5)
    assert row["decoding"]["k2"]["median"] == row["decoding"]["better"]["median"] == 1.0
    assert row["decoding"]["plain"]["median"] == 0.5 and row["decoding"]["best"]["median"] == 1.25
    assert row["decoding"]["control"]["median"] == 0.8
    assert row["decoding"]["better"]["above"] == 1, "30 ms is over the limit, 20 is not"
    assert row["passes_to_k2"] == 0.5 and row["accepted_per_round"] == 0.8
    assert row["whole"]["k2"]["median"] == 1.0 and row["decoding"]["k2"]["low"] == 0.9
    assert found["local"]["plain"]["beside_to_alone"] == 1.25


def test_disturbed_prompts_are_left_out() -> None:
    local = {"plain": run(40.0), BASE: run(20.0), "colocated_k5": run(16.0), CONTROL: run(25.0)}
    runs = {**local, **{name: run(20.0) for name in KEYS}}
    noisy = runs | {"plain": run(40.0, others=0.5)}
    found = summary([runs, noisy], PLACES, {"kept": [5]})
    assert (found["prompts"], found["prompts_dropped"]) == (1, 1)


def test_the_interval_of_the_median_follows_from_the_order() -> None:
    assert interval([float(i) for i in range(10)]) == (1.0, 8.0), "covers 97.9 % of ten values' medians"
    assert interval([3.0, 1.0, 2.0]) == (1.0, 3.0)
    assert interval([float(i) for i in range(6)]) == (0.0, 5.0)
