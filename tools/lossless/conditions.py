"""Five ways of helping or hindering one gateway, and the result of one request (for `tools.lossless matrix`)."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from edgespec_lab.rig import Rig

RANDOM_WORKER = (sys.executable, "-m", "tools.lossless.random_worker")
CONDITIONS = ("none", "worker", "two", "killed", "random")
"""No worker linked; one; two that share the requests; one that is killed half-way; one that sends random trees."""


@dataclass(frozen=True, slots=True)
class Case:
    """One request. `kind` is `sampled`, or what else is tried."""

    kind: str
    name: str
    body: Mapping[str, Any]


@dataclass(slots=True)
class Answer:
    """What came back for one case under one condition."""

    choices: list[tuple[str, str]]
    """Text and finish reason of each choice: what must be the same."""
    usage: dict[str, Any]
    after_kill: int = 0
    """Characters that arrived when the worker had been killed already."""

    @property
    def length(self) -> int:
        """Characters of all choices."""
        return sum(len(text) for text, _ in self.choices)

    def figures(self) -> dict[str, Any]:
        """Counts that show what the workers did for it."""
        extension = self.usage["edgespec"]
        return {
            "tokens": self.usage["completion_tokens"],
            "rounds": extension["rounds"],
            "frames_received": extension["frames"]["received"],
            "frames_used": extension["frames"]["used"],
            "frames_rejected": extension["frames"]["rejected"],
            "verified_from_workers": extension["drafted"].get("worker", 0),
            "accepted_from_workers": extension["accepted"].get("worker", 0),
            "after_kill": self.after_kill,
        }

    def exercised(self, condition: str) -> bool:
        """Whether the condition was really applied to this request."""
        figures = self.figures()
        match condition:
            case "none":
                return figures["frames_used"] == 0
            case "killed":
                used = figures["frames_used"] > 0 and figures["verified_from_workers"] > 0
                return bool(used and 0 < self.after_kill < self.length)
            case "random":  # `adaptive` soon verifies none of its candidates; `wanspec`, beside it, verifies them
                return bool(figures["frames_received"] > 0)
        return bool(figures["accepted_from_workers"] > 0)


def prepare(stage: Rig, condition: str) -> None:
    """Starts and stops workers as the condition asks; call for all conditions in their order, again and again."""
    match condition:
        case "none":
            stage.stop("random")
        case "worker":
            stage.start_worker()
        case "two":
            stage.start_worker("second")
        case "killed":
            stage.stop("second")
        case "random":
            stage.stop("worker")
            stage.start_worker("random", RANDOM_WORKER)


def ask(stage: Rig, condition: str, cases: Sequence[Case], expected: Sequence[Answer]) -> list[Answer]:
    """The answers to cases that are asked at once. `expected` (of condition `none`) gives their lengths."""
    if condition != "killed":
        return at_once(lambda case: complete(stage, case), cases)

    if not stage.runs("worker"):
        stage.start_worker()
    cut = Cut(lambda: stage.stop("worker", signal.SIGKILL))
    halves = {case.name: answer.length // 2 for case, answer in zip(cases, expected, strict=True)}
    return at_once(lambda case: stream(stage, case, cut, halves[case.name]), cases)


def at_once(answer: Callable[[Case], Answer], cases: Sequence[Case]) -> list[Answer]:
    """One thread for each case."""
    with ThreadPoolExecutor(len(cases)) as pool:
        return list(pool.map(answer, cases))


def complete(stage: Rig, case: Case) -> Answer:
    """The answer in one piece."""
    answer = stage.complete(case.body)
    choices = [(str(one["message"]["content"]), str(one["finish_reason"])) for one in answer["choices"]]
    return Answer(choices, answer["usage"])


@dataclass(slots=True)
class Cut:
    """Does something once, when the first of several streams asks for it."""

    do: Callable[[], object]
    done: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def now(self) -> None:
        """Called on any thread."""
        with self._lock:
            if not self.done:
                self.do()
                self.done = True


def stream(stage: Rig, case: Case, cut: Cut, when: int) -> Answer:
    """The answer piece by piece; `cut` comes once `when` characters have arrived."""
    texts: dict[int, str] = {}
    finishes: dict[int, str] = {}
    usage: dict[str, Any] = {}
    after = 0
    for chunk in stage.chunks(case.body):
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            piece = choice["delta"].get("content") or ""
            index = choice["index"]
            texts[index] = texts.get(index, "") + piece
            finishes[index] = choice["finish_reason"] or finishes.get(index, "")
            after += len(piece) if cut.done else 0
        if not cut.done and sum(map(len, texts.values())) >= when:
            cut.now()

    return Answer([(texts[i], finishes[i]) for i in sorted(texts)], usage, after)
