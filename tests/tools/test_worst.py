"""A row of the worst cases: paired ratios of whole completions to plain decoding, beside the neighbour and alone."""

from __future__ import annotations

from edgespec.lab.demo.arms import Run, Table
from tools.bench import worst
from tools.places.series import ALONE


def run(ms: float, why: str | None = None) -> Run:
    timings = {"total": 10 * ms, "decode": 9 * ms, "before_worker": 0.0}
    return Run("text", 10, {"timings_ms": timings, "tokens_before_worker": 0, "why": why, "why_off": None}, 0.0)


def table() -> Table:
    made = Table()
    for plain, adaptive in ((30.0, 30.0), (30.0, 33.0), (60.0, 60.6)):
        made.add({"plain": run(plain), "plain" + ALONE: run(plain / 1.2), "adaptive": run(adaptive, "too slow")})
    return made


def test_ratios_are_paired_by_prompt_and_those_above_the_limit_counted() -> None:
    row = worst.row(table(), "adaptive")
    assert (row["plain"]["ratio"], row["plain"]["above_limit"]) == (1.01, 1)
    assert row["plain" + ALONE]["ratio"] == 1.212 and row["plain" + ALONE]["above_limit"] == 3
    assert row["reasons"] == {"too slow": 3} and row["same_text"] == 3
