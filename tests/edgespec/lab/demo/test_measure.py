"""Which arms run beside the neighbour, and in which order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import pytest

from edgespec.lab.demo.arms import ARMS
from edgespec.lab.demo.measure import Bench, measure


@pytest.fixture(autouse=True)
def a_quiet_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other process shows, whatever else runs here."""
    monkeypatch.setattr(import_module("edgespec.lab.demo.measure"), "machine_time_s", lambda: 0.0)


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
        self.neighbour, self.asked = neighbour, list[tuple[str, int, bool]]()

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
    return Bench(rig, beside if neighbour else None), rig  # type: ignore[arg-type]


def test_only_arms_without_a_worker_have_a_neighbour() -> None:
    made, rig = bench()
    (_, first), (_, table) = list(measure(made, ["a", "b"], 8))
    assert first is table and [set(runs) for runs in table.every] == [set(ARMS)] * 2
    assert [next(iter(runs)) for runs in table.every] == list(ARMS)[:2]
    assert {policy for policy, _, active in rig.asked if active} == {"plain", "colocated", "control"}
    assert {policy for policy, _, active in rig.asked if not active} == {"wanspec", "adaptive"}
    list(measure(bench(neighbour=False)[0], ["a"], 8))
