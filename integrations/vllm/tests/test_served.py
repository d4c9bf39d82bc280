"""The measure of a served vLLM: a steady window, in which every client has a next request."""

from __future__ import annotations

import threading
import time
from typing import Any, cast

import pytest

from edgespec_lab.rig.processes import RigError
from integrations.vllm.live.served import Counts, Run, Server, differing, measure, report

TOKENS = 10
STEP_S = 0.01


class Double:
    """A vLLM that generates a token for each request in STEP_S, and one prompt ten times as slowly."""

    def __init__(self, slow: str = "") -> None:
        self.slow = slow
        self.tokens = 0
        self.running = 0
        self.idle = 0
        """Completions that ended while no other one ran."""
        self._lock = threading.Lock()

    def counts(self) -> Counts:
        return Counts(self.tokens, 2 * self.tokens, self.tokens)

    def complete(self, prompt: str, max_tokens: int, arm: str) -> str:
        with self._lock:
            self.running += 1
        for _ in range(max_tokens):
            time.sleep(STEP_S * (10 if prompt == self.slow else 1))
            with self._lock:
                self.tokens += 1
        with self._lock:
            self.running -= 1

        return f"text of {prompt}"


def test_a_slow_completion_at_the_end_does_not_lower_the_figure() -> None:
    prompts = [str(n) for n in range(8)]
    paces = []
    for slow in ("", prompts[-1]):
        run = measure(cast(Server, Double(slow)), "worker", prompts, 4, TOKENS)
        paces.append(run.tokens_per_s)
        assert all(texts == {f"text of {prompt}"} for prompt, texts in run.texts.items())
        assert run.drafted == 2 * run.accepted > 0

    # One of four clients is slow: three quarters. Until the last completion has ended it would be a quarter.
    assert 0.6 * paces[0] < paces[1]


def test_a_client_that_fails_ends_the_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Double):
        def complete(self, prompt: str, max_tokens: int, arm: str) -> str:
            raise RigError("vLLM refuses")

    monkeypatch.setattr("integrations.vllm.live.served.SERVE_S", 0.5)
    with pytest.raises(RigError):
        measure(cast(Server, Broken()), "worker", ["a"], 2, TOKENS)


def test_a_text_that_differs_from_plain_is_counted() -> None:
    def run(arm: str, **texts: Any) -> Run:
        return Run(arm, 1, 0, 10.0, 1, 1, {prompt: set(found) for prompt, found in texts.items()})

    rows = report([run("plain", a=["x"], b=["y"]), run("worker", a=["x"], b=["z"], c=["w"])])
    assert [row["differ"] for row in rows] == [0, 1]
    assert differing({"a": {"x", "y"}}, {}) == 1, "one prompt had two texts"
