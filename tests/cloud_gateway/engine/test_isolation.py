"""A fault in one request stays in it; a failed pass of the target is retried. Real engine thread, model a hash."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cloud_gateway.core.policies.adaptive import Adaptive
from cloud_gateway.core.policies.registry import POLICIES
from cloud_gateway.core.policies.settings import PolicySettings
from cloud_gateway.core.requests.events import Listener
from cloud_gateway.core.requests.request import DoneEvent, GenerationRequest, Speculation
from cloud_gateway.core.verify.candidates import CandidateTree
from cloud_gateway.core.verify.interface import Constraint
from cloud_gateway.engine.loop import Engine
from cloud_gateway.models.target_model import Work
from edgespec.core.protocol.messages import Sampling
from tests.support.engines import Make, complete, engines
from tools.doubles.engines import TableDraft, TableTarget
from tools.doubles.model import plain_greedy
from tools.doubles.workers import LoopWorker

pytestmark = pytest.mark.driven
SECRET = "the text of an exception may quote a prompt"
POISON = 29
"""A prompt that begins with this token makes some stage fail."""


class FailingTarget(TableTarget):
    """Fails on demand, as a real one does when memory runs out."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.fails: Callable[[str, list[list[int]]], bool] = lambda stage, held: False
        """Called with the stage and the tokens of the slots concerned."""

    def _check(self, stage: str, slots: Sequence[int]) -> None:
        if self.fails(stage, [list(self.held.get(slot, [])) for slot in slots]):
            raise RuntimeError(SECRET)

    def open(self, tokens: Sequence[int], scope: bytes = b"", room: int = 0) -> tuple[int, int]:
        if self.fails("open", [list(tokens)]):
            raise RuntimeError(SECRET)
        return super().open(tokens, scope, room)

    def prefill(self, slot: int, tokens: Sequence[int]) -> None:
        self._check("prefill", [slot])
        super().prefill(slot, tokens)

    def verify(self, batch: Sequence[Work]) -> list[Any]:
        self._check("verify", [work.slot for work in batch])
        return super().verify(batch)

    def keep(self, slot: int, rows: Sequence[int]) -> None:
        self._check("keep", [slot])
        super().keep(slot, rows)


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    with engines() as start:
        yield lambda *sides, **settings: start(*sides, target=FailingTarget(), **settings)


async def answer(engine: Engine, prompt: Sequence[int], count: int = 30, **more: Any) -> tuple[list[int], DoneEvent]:
    return await complete(engine, GenerationRequest(list(prompt), count, ignore_eos=True, **more))


def twin(prompt: Sequence[int], count: int = 30) -> list[int]:
    return plain_greedy(prompt, count)


PROMPTS = [[3, 1, 4], [1, 5, 9], [2, 6, 5]]
BAD = [POISON, 7, 7]


class Limits(Constraint):
    """A constraint that allows everything, or fails at one of its methods."""

    def __init__(self, fails: str = "", after: int = 0) -> None:
        self.fails = fails
        self.after = after

    def _maybe(self, name: str) -> None:
        self.after -= name == self.fails
        if name == self.fails and self.after < 0:
            raise ValueError(SECRET)

    def __call__(self, path: Sequence[int]) -> NDArray[np.bool_] | None:
        self._maybe("call")
        return None

    def allowed(self, path: Sequence[int]) -> int:
        self._maybe("allowed")
        return len(path)

    def forced(self, path: Sequence[int]) -> Sequence[int]:
        self._maybe("forced")
        return ()

    def committed(self, tokens: Sequence[int]) -> None:
        self._maybe("committed")


def poisoned(function: Callable[..., Any], is_poisoned: Callable[..., bool]) -> Callable[..., Any]:
    """The function, but raising if its arguments belong to the poisoned request."""

    def called(*args: Any, **more: Any) -> Any:
        if is_poisoned(*args):
            raise ValueError(SECRET)
        return function(*args, **more)

    return called


def of_poison(tree: Any) -> bool:
    return isinstance(tree, CandidateTree) and tree.prefix.tokens[0] == POISON


async def others_finish(engine: Engine, bad: Any) -> Any:
    """Runs bad requests beside three others, which must not notice; returns what became of the bad ones."""
    good = [asyncio.ensure_future(answer(engine, prompt)) for prompt in PROMPTS]
    found = await bad
    assert [tokens for tokens, _ in await asyncio.gather(*good)] == [twin(prompt) for prompt in PROMPTS]
    assert not engine.requests.target_broken
    return found


@pytest.mark.claim("a-worker-that-names-an-endless-entropy-ends-no-answer")
@pytest.mark.parametrize("stage", ["decide", "verified", "merge", "best"])
async def test_a_fault_of_speculation_ends_no_answer(
    make: Make, stage: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if stage == "merge":
        monkeypatch.setattr(CandidateTree, "merge", poisoned(CandidateTree.merge, lambda self, *_: of_poison(self)))
    elif stage == "decide":
        monkeypatch.setattr(Adaptive, "decide", poisoned(Adaptive.decide, lambda self, tree, *_: of_poison(tree)))
    elif stage == "verified":
        broken = poisoned(Adaptive.verified, lambda self, *_: self.settings.prefer == "offload")
        monkeypatch.setattr(Adaptive, "verified", broken)
    policies = {**POLICIES, "offloading": lambda chosen: Adaptive(PolicySettings(prefer="offload"))}
    engine = make(LoopWorker(0.0, 0.8), TableDraft(0.7), policies=policies)
    speculation = Speculation(policy="offloading" if stage == "verified" else "adaptive")
    if stage == "best":
        monkeypatch.setattr(CandidateTree, "best", poisoned(CandidateTree.best, lambda self, *_: of_poison(self)))
        speculation = Speculation(policy="wanspec")
    tokens, done = await others_finish(engine, answer(engine, BAD, speculation=speculation))
    assert (tokens, done.finish) == (twin(BAD), "length")
    assert done.usage.why_off is not None and done.usage.why_off.startswith("decoded plainly since a fault")
    assert engine.stats.faults == 1
    assert SECRET not in caplog.text and "ValueError at tests" not in caplog.text


@pytest.mark.claim("requests-whose-sampler-fails-end-no-other-and-not-the-process")
@pytest.mark.parametrize("stage", ["call", "committed", "allowed"])
async def test_a_fault_in_choosing_tokens_ends_that_answer_alone(
    make: Make, stage: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = make(LoopWorker(0.0, 0.8), TableDraft(0.7))
    gone: list[bool] = []
    engine.on_failure = lambda: gone.append(True)
    bad = (answer(engine, BAD, constraint=Limits(stage, after=4)) for _ in range(6))
    for _, done in await others_finish(engine, asyncio.gather(*bad)):
        assert done.finish in (("error",) if stage != "allowed" else ("error", "length"))
        assert SECRET not in (done.error or "")
    assert not gone and engine.stats.faults >= 6 and engine.stats.failed_passes == 0
    assert SECRET not in caplog.text
    assert (await answer(engine, PROMPTS[0]))[0] == twin(PROMPTS[0])


@pytest.mark.claim("a-worker-that-names-an-endless-entropy-ends-no-answer")
async def test_a_fault_over_a_workers_data_ends_its_link_and_names_it(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken = poisoned(Adaptive.received, lambda self, merged, now: merged.fresh > 0)
    monkeypatch.setattr(Adaptive, "received", broken)
    worker = LoopWorker(0.0, 0.9)
    engine = make(worker, None)
    tokens, done = await answer(engine, PROMPTS[0], 60)
    assert tokens == twin(PROMPTS[0], 60) and done.finish == "length"
    assert [error.reason for error in worker.punished] == ["fault"]
    assert done.usage.frames["rejected"] == 1 and engine.stats.frames.counts["rejected"] == 1
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(lines) == 1 and "worker w" in lines[0] and "ValueError at" in lines[0] and SECRET not in caplog.text


@pytest.mark.claim("a-fault-of-a-clients-constraint-is-not-blamed-on-the-worker")
async def test_a_fault_of_a_clients_constraint_is_not_blamed_on_the_worker(make: Make) -> None:
    worker = LoopWorker(0.0, 0.9)
    engine = make(worker, None)
    await answer(engine, PROMPTS[0], 60, constraint=Limits("allowed", after=3))
    assert worker.punished == [] and worker.up


async def test_a_fault_of_the_local_draft_costs_the_request_its_local_draft_only(make: Make) -> None:
    class Breaks(TableDraft):
        def draft(self, asked: Any) -> Any:
            raise ValueError(SECRET)

    engine = make(None, Breaks(), policy="local-chain")
    tokens, done = await answer(engine, PROMPTS[0])
    assert tokens == twin(PROMPTS[0]) and done.finish == "length" and engine.stats.faults == 1
    assert done.usage.why_not_local == "a fault of the gateway ended the local draft of this request"


# --- failed passes of the target -----------------------------------------------------------------------------------


@pytest.mark.claim("a-failed-pass-is-retried-and-changes-no-answer")
@pytest.mark.parametrize("stage", ["open", "prefill", "verify", "keep"])
async def test_a_failed_pass_is_retried_and_changes_no_answer(make: Make, stage: str) -> None:
    engine = make(LoopWorker(0.0, 0.8), TableDraft(0.7))
    calls: list[str] = []

    def fails(now: str, held: list[list[int]]) -> bool:
        calls.append(now)
        return now == stage and calls.count(stage) == 3

    engine.target.fails = fails  # type: ignore[attr-defined]
    found = await asyncio.gather(*(answer(engine, prompt) for prompt in PROMPTS))
    assert [tokens for tokens, _ in found] == [twin(prompt) for prompt in PROMPTS]
    assert engine.stats.failed_passes == 1 and engine.stats.retries >= 1
    retried = [done.usage.why_off for _, done in found if done.usage.why_off]
    assert retried == ["decoded plainly since a pass of the target model failed"] * engine.stats.retries
    assert all(done.usage.why_not_local == done.usage.why_off for _, done in found if done.usage.why_off)


@pytest.mark.claim("a-failed-pass-is-retried-and-changes-no-answer")
@pytest.mark.parametrize("temperature", [0.0, 0.9])
async def test_a_retry_in_the_middle_of_an_answer_leaves_its_text_as_it_is(make: Make, temperature: float) -> None:
    sampling = Sampling(temperature=temperature, seed=5)
    undisturbed, _ = await answer(make(None, None, policy="plain"), PROMPTS[0], 40, sampling=sampling)
    engine = make(LoopWorker(0.0, 0.8), TableDraft(0.7))
    failed: list[int] = []

    def fails(stage: str, held: list[list[int]]) -> bool:
        due = stage == "verify" and len(held[0]) > 15 + 10 * len(failed) and len(failed) < 2
        failed.extend([1] * due)
        return due

    engine.target.fails = fails  # type: ignore[attr-defined]
    tokens, done = await answer(engine, PROMPTS[0], 40, sampling=sampling)
    assert tokens == undisturbed and done.finish == "length" and engine.stats.retries == 2


@pytest.mark.claim("a-failed-pass-is-retried-and-changes-no-answer")
@pytest.mark.parametrize("stage", ["prefill", "verify", "keep"])
async def test_the_request_that_makes_passes_fail_is_found_and_ends_alone(make: Make, stage: str) -> None:
    engine = make(LoopWorker(0.0, 0.8), TableDraft(0.7))

    def fails(now: str, held: list[list[int]]) -> bool:
        return now == stage and any(tokens[:1] == [POISON] for tokens in held)

    engine.target.fails = fails  # type: ignore[attr-defined]
    bad = [POISON, *range(1, 10)]
    if stage == "prefill":  # its first chunk goes into an empty slot
        bad = [POISON] + [i % 30 for i in range(300)]
    _, done = await others_finish(engine, answer(engine, bad))
    assert done.finish == "error" and done.error is not None and SECRET not in done.error
    assert (await answer(engine, PROMPTS[0]))[0] == twin(PROMPTS[0])


@pytest.mark.claim("one-request-that-fails-again-and-again-never-ends-the-gateway")
async def test_one_request_that_fails_again_and_again_never_ends_the_gateway(make: Make) -> None:
    engine = make(None, None)
    gone: list[bool] = []
    engine.on_failure = lambda: gone.append(True)
    engine.target.fails = lambda stage, held: stage == "verify" and held[0][:1] == [POISON]  # type: ignore[attr-defined]
    for _ in range(6):
        _, done = await others_finish(engine, answer(engine, BAD))
        assert done.finish == "error"
    assert not gone and not engine.requests.target_broken


@pytest.mark.claim("one-request-that-fails-again-and-again-never-ends-the-gateway")
async def test_a_target_that_fails_for_every_request_ends_the_gateway(make: Make) -> None:
    engine = make(None, None)
    gone = asyncio.Event()
    engine.on_failure = gone.set
    engine.target.fails = lambda stage, held: stage == "verify"  # type: ignore[attr-defined]
    for number in range(4):
        _, done = await answer(engine, [1, number])
        assert done.finish == "error" and not gone.is_set()
    await answer(engine, [1, 4])
    await asyncio.wait_for(gone.wait(), 10)


async def test_a_message_that_cannot_be_sent_stops_no_other(make: Make) -> None:
    class Broken(LoopWorker):
        def send(self, worker: str, bodies: Any) -> None:
            raise ValueError(SECRET)

    engine = make(Broken(), None)
    assert (await answer(engine, PROMPTS[0]))[0] == twin(PROMPTS[0])


# --- bounds of a round ----------------------------------------------------------------------------------------------


class Broken(Listener):
    """Fails at the first decision; another one counts them."""

    def __init__(self, fails: bool) -> None:
        self.fails = fails
        self.decisions = 0

    def decided(self, *given: object) -> None:
        self.decisions += 1
        if self.fails:
            raise ValueError(SECRET)


async def test_a_fault_of_a_listener_ends_that_listening_only(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    those = [Broken(True), Broken(False)]
    recorders = [type("", (), {"listener": lambda *_, one=one: one})() for one in those]
    engine = make(LoopWorker(0.002, 0.95), recorders=recorders)
    tokens, done = await answer(engine, PROMPTS[0])
    assert tokens == twin(PROMPTS[0]) and done.usage.why_off is None and engine.stats.faults == 0
    assert those[0].decisions == 1 < those[1].decisions and done.usage.accepted["worker"]
    assert "Broken of a request ended: ValueError at" in caplog.text and SECRET not in caplog.text
