"""A row of the worst cases: paired ratios of whole completions to those without a worker."""

from __future__ import annotations

from edgespec_lab.demo.arms import CONTROL, Run, Table
from tools.bench import worst


def run(ms: float, why: str | None = None) -> Run:
    timings = {"total": 10 * ms, "decode": 9 * ms, "before_worker": 0.0}
    return Run("text", 10, {"timings_ms": timings, "tokens_before_worker": 0, "why": why, "why_off": None}, 0.0)


def test_ratios_are_paired_by_prompt_and_those_above_the_limit_counted() -> None:
    table = Table()
    for control, adaptive in ((30.0, 30.0), (30.0, 33.0), (60.0, 60.6)):
        table.add({CONTROL: run(control), worst.ALONE: run(control / 1.2), "slow": run(adaptive, "too slow")})
    beside, alone = (worst.row(table, "slow", control) for control in (CONTROL, worst.ALONE))
    assert (beside["case"], beside["ratio"], beside["above 1.02"], beside["disturbed"]) == ("slow", 1.01, 1, 0)
    assert (alone["case"], alone["ratio"], alone["above 1.02"], alone["no worker ms"]) == ("slow*", 1.212, 3, 25.0)
    assert (beside["same text"], beside["reason"]) == (3, "too slow")
    assert (beside["single ratios"], alone["single ratios"]) == ("1.00 1.10 1.01", "1.20 1.32 1.21")
