"""The demo's figures follow from its runs by the definitions of docs/demo.md."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from edgespec.lab.demo.arms import ARMS, Run, Table
from edgespec.lab.demo.report import show, summary


def run(ms: float, local_passes: int = 0, rounds: int = 32, before_ms: float = 0.0, before_tokens: int = 1) -> Run:
    """An answer of 65 tokens whose decoding took `ms` for each of 64."""
    usage = {
        "timings_ms": {"decode": 64 * ms, "before_worker": before_ms, "total": 64 * ms + 130},
        "tokens_before_worker": before_tokens,
        "local_draft_passes": local_passes,
        "rounds": rounds,
        "drafted": {"worker": 40, "local": 10},
        "accepted": {"worker": 30, "local": 5},
        "frames": {"received": 50, "used": 30, "stale": 20, "rejected": 0},
        "fallbacks": 2,
    }
    return Run("text", 65, usage, 0.0)


def table(remote: float = 15.0, adaptive: float = 12.0) -> Table:
    runs = {arm: run(20.0 + abs(int(arm[-1]) - 4), 100) for arm in ARMS if arm.startswith("colocated")}
    runs |= {"plain": run(30.0, rounds=65), "remote": run(remote, 25), "adaptive": run(adaptive, 10)}
    return Table(clean=[runs, runs])


def test_ratios_shares_and_the_best_k_are_those_of_the_runs() -> None:
    figures = summary(table(), {"remote": [True, True], "adaptive": [True, True]}, {"rtt_ms": 20.0, "draft": "d"})
    assert figures["best_k"] == 4 and figures["identical"] is True
    assert figures["ms_per_token"] == {
        "plain": 30.0, "colocated_k2": 22.0, "colocated_best": 20.0, "remote": 15.0, "adaptive": 12.0
    }  # fmt: skip
    assert figures["ratio"]["remote_to_colocated_k2"] == pytest.approx(15 / 22, abs=1e-4)
    assert figures["ratio"]["adaptive_to_colocated_best"] == pytest.approx(12 / 20, abs=1e-4)
    assert (figures["offload_share"], figures["adaptive_offload_share"]) == (0.75, 0.9)
    assert figures["tokens_per_round_by_arm"]["plain"] == 1.0


def test_tokens_before_the_worker_read_the_prompt_are_left_out() -> None:
    assert run(10.0, before_ms=240.0, before_tokens=9).ms_per_token == pytest.approx((640 - 240) / 56)


def test_one_text_that_differs_shows_in_the_verdict_and_in_the_table() -> None:
    figures = summary(table(), {"remote": [True, False]}, {"rtt_ms": 20.0, "draft": "d"})
    out = io.StringIO()
    show(figures, Console(file=out, width=140))
    assert figures["identical"] is False and figures["identical_by_arm"] == {"remote": 1}
    assert "texts differ" in out.getvalue() and "adaptive" in out.getvalue()


def test_disturbed_prompts_count_only_where_there_are_no_others() -> None:
    calm, noisy = table().clean[0], table(remote=99.0).clean[0]
    assert Table(clean=[calm], disturbed=[noisy]).median("remote", lambda one: one.ms_per_token) == 15.0
    alone = Table(disturbed=[noisy])
    assert alone.dropped == 0 and alone.median("remote", lambda one: one.ms_per_token) == 99.0
