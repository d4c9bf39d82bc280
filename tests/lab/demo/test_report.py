"""The demo: which arms run beside the neighbour, and its figures, which follow from its runs by their definitions."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import pytest
from rich.console import Console

from edgespec_lab.demo.arms import ARMS, BASE, CONTROL, LOCAL, Bench, Run, Table, measure
from edgespec_lab.demo.report import COLUMNS, remarks, show, summary

MAX_COLUMNS = 8
"""The width of a table that people read."""


def run(ms: float, local_passes: int = 0, rounds: int = 32, before_ms: float = 0.0, before_tokens: int = 0) -> Run:
    """An answer of 65 tokens whose decoding took `ms` for each."""
    usage = {
        "timings_ms": {"decode": 65 * ms, "before_worker": before_ms, "total": 65 * ms + 130},
        "tokens_before_worker": before_tokens,
        "local_draft_passes": local_passes,
        "rounds": rounds,
        "drafted": {"worker": 40, "local": 10},
        "accepted": {"worker": 30, "local": 5},
        "frames": {"received": 50, "used": 30, "stale": 20, "rejected": 0},
        "fallbacks": 2,
    }
    return Run("text", 65, usage, 0.0)


def prompt_runs(remote: float = 15.0, adaptive: float = 12.0) -> dict[str, Run]:
    runs = {BASE: run(22.0, 100), CONTROL: run(21.0, 90)}
    runs |= {"plain": run(30.0, rounds=65), "remote": run(remote, 25), "adaptive": run(adaptive, 10)}
    return runs | {"adaptive_latency": run(adaptive - 1, 20)}


def table(*prompts: dict[str, Run]) -> Table:
    made = Table()
    for runs in prompts or (prompt_runs(), prompt_runs()):
        made.add(runs)
    return made


CONTEXT = {"rtt_ms": 20.0, "draft": "d"}


def test_ratios_and_shares_are_those_of_the_runs() -> None:
    figures = summary(table(), {"remote": [True, True], "adaptive": [True, True]}, CONTEXT)
    assert figures["identical"] is True and figures["candidates_accepted"] == 0.7
    assert figures["ms_per_token"] == {
        "plain": 30.0, BASE: 22.0, CONTROL: 21.0, "remote": 15.0, "adaptive": 12.0, "adaptive_latency": 11.0
    }  # fmt: skip
    assert figures["ratio"]["remote_to_colocated_k2"] == pytest.approx(15 / 22, abs=1e-4)
    assert figures["ratio"]["adaptive_to_no_worker"] == pytest.approx(12 / 21, abs=1e-4)
    assert figures["offload_share_by_arm"] == {"remote": 0.75, "adaptive": 0.9, "adaptive_latency": 0.8}
    assert figures["tokens_per_round_by_arm"]["plain"] == 1.0


def test_ratios_are_paired_by_prompt() -> None:
    slow = {arm: run(one.ms_per_token * 2) for arm, one in prompt_runs().items()} | {"adaptive": run(40.0)}
    figures = summary(table(prompt_runs(), prompt_runs(), slow), {}, CONTEXT)
    assert figures["ratio"]["adaptive_to_colocated_k2"] == pytest.approx(12 / 22, abs=1e-4)


def test_tokens_before_the_worker_read_the_prompt_are_left_out() -> None:
    assert run(10.0, before_ms=240.0, before_tokens=9).ms_per_token == pytest.approx((650 - 240) / 56)


def test_one_text_that_differs_shows_in_the_verdict_and_in_the_table() -> None:
    figures = summary(table(), {"remote": [True, False]}, CONTEXT)
    out = io.StringIO()
    show(figures, Console(file=out, width=80))
    shown = out.getvalue()
    assert figures["identical"] is False and figures["identical_by_arm"] == {"remote": 1}
    assert "texts differ" in shown and "adaptive" in shown and "70%" in shown
    assert 1 + len(COLUMNS) <= MAX_COLUMNS and "…" not in shown, "80 characters suffice"


def test_disturbed_prompts_count_only_where_there_are_no_others() -> None:
    noisy = prompt_runs(remote=99.0)
    noisy["plain"].others_share = 0.5
    both = table(prompt_runs(), noisy)
    alone = table(noisy)
    assert both.dropped == 1 and both.median("remote", lambda one: one.ms_per_token) == 15.0
    assert alone.dropped == 0 and alone.median("remote", lambda one: one.ms_per_token) == 99.0


@pytest.mark.parametrize(
    ("quiet", "noisy", "line"),
    [
        (2, 0, ""),
        (1, 2, "2 of 3 prompts are left out: other programs used more than 15% of a core"),
        (0, 2, "The times are those of a busy machine: for every prompt other programs used"),
    ],
)
def test_the_report_says_why_prompts_are_missing_and_what_to_do(quiet: int, noisy: int, line: str) -> None:
    disturbed = [prompt_runs() for _ in range(noisy)]
    for runs in disturbed:
        runs["plain"].others_share = 0.5
    lines = remarks(summary(table(*(prompt_runs() for _ in range(quiet)), *disturbed), {}, CONTEXT))
    assert [shown for shown in lines if "top" in shown] == [shown for shown in lines if line and line in shown]
    assert bool(line) == ("Run it again" in lines[0]) and lines[-1].startswith("Next: `edgespec plan`")


def test_every_arm_without_a_worker_asks_for_none() -> None:
    asked = {arm["policy"] for arm in LOCAL.values() if arm.get("offload") != "never"}
    assert asked == {"plain", "colocated"}, "policies that use no worker, and the control"


def test_a_completion_from_one_pass_is_no_error() -> None:
    instant = prompt_runs() | {BASE: run(0.0)}
    assert summary(table(instant), {}, CONTEXT)["ratio"]["adaptive_to_colocated_k2"] > 100


@pytest.fixture(autouse=True)
def a_quiet_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other process shows, whatever else runs here."""
    monkeypatch.setattr(import_module("edgespec_lab.demo.arms"), "machine_time_s", lambda: 0.0)


class FakeNeighbour:
    """Counts whether it drafts."""

    active = False
    steps = 0

    @contextmanager
    def drafting(self) -> Iterator[None]:
        self.active = True
        self.steps += 5
        yield
        self.active = False

    def pids(self) -> list[int]:
        return []


class FakeRig:
    """Completions whose time follows from the policy, k, and whether the neighbour drafts."""

    def __init__(self, neighbour: FakeNeighbour) -> None:
        self.neighbour = neighbour
        self.asked = list[tuple[str, int, bool]]()

    def pids(self) -> list[int]:
        return []

    def chat(self, prompt: str, max_tokens: int, policy: str, k: int = 0, **asks: Any) -> dict[str, Any]:
        policy = "control" if asks.get("offload") == "never" else policy
        self.asked.append((policy, k, self.neighbour.active))
        ms = (30.0 if policy == "plain" else 20.0 + abs(k - 6)) * (1.25 if self.neighbour.active else 1.0)
        usage = {
            "timings_ms": {"decode": ms * max_tokens, "before_worker": 0.0, "total": ms * max_tokens},
            "tokens_before_worker": 0,
        }
        return {
            "choices": [{"message": {"content": ""}}],
            "usage": {"completion_tokens": max_tokens, "edgespec": usage},
        }


def bench(*, neighbour: bool = True) -> tuple[Bench, FakeRig]:
    beside = FakeNeighbour()
    rig = FakeRig(beside)
    return Bench(rig, beside if neighbour else None), rig


def test_only_arms_without_a_worker_have_a_neighbour() -> None:
    made, rig = bench()
    (_, first), (_, table) = list(measure(made, ["a", "b"], 8))
    assert first is table and [set(runs) for runs in table.every] == [set(ARMS)] * 2
    assert [next(iter(runs)) for runs in table.every] == list(ARMS)[:2]
    assert {policy for policy, _, active in rig.asked if active} == {"plain", "colocated", "control"}
    assert {policy for policy, _, active in rig.asked if not active} == {"wanspec", "adaptive"}
    list(measure(bench(neighbour=False)[0], ["a"], 8))
