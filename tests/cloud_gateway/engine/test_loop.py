"""The engine with real bookkeeping and threads and a hash function as model: same completion with any drafter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from cloud_gateway.core.policies.registry import POLICIES
from cloud_gateway.core.requests.assignment import OPEN_TOKENS
from cloud_gateway.core.requests.events import FrameArrived
from cloud_gateway.core.requests.request import DoneEvent, GenerationRequest, Speculation, Usage
from cloud_gateway.engine.exchange import WorkerReady
from edgespec.core.protocol.messages import Sampling, Tree
from tests.support.engines import Make, complete
from tools.doubles.engines import TableDraft, TableTarget
from tools.doubles.model import plain_greedy
from tools.doubles.workers import LoopWorker

pytestmark = pytest.mark.driven
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


def request(count: int = 60, prompt: list[int] = PROMPT, **more: object) -> GenerationRequest:
    return GenerationRequest(prompt, count, ignore_eos=True, **more)


def twin(count: int, prompt: list[int] = PROMPT) -> list[int]:
    return plain_greedy(prompt, count)


@pytest.mark.claim("the-completion-is-plain-decodings-with-any-drafter")
@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("right", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("delay_s", [0.0, 0.004])
async def test_the_completion_is_plain_decodings_with_any_drafter(
    make: Make, policy: str, right: float, delay_s: float
) -> None:
    engine = make(LoopWorker(delay_s, right), TableDraft(right), policy=policy)
    tokens, done = await complete(engine, request(30))
    assert tokens == twin(30) and done.finish == "length"
    assert done.usage.completion_tokens == 30 and done.usage.prompt_tokens == len(PROMPT)


async def test_a_worker_receives_a_prompt_before_the_target_has_read_it(make: Make) -> None:
    worker = LoopWorker(right=1.0)
    engine = make(worker, None)
    prefill = engine.target.prefill
    received = []

    def slow(slot: int, tokens: Sequence[int]) -> None:
        engine.target.sleep(0.05)  # type: ignore[attr-defined]
        received.append(len(worker.seen))
        prefill(slot, tokens)

    engine.target.prefill = slow  # type: ignore[method-assign]
    await complete(engine, request(10))
    assert received == [1]


async def test_a_good_worker_saves_passes_and_the_usage_says_so(make: Make) -> None:
    engine = make(LoopWorker(0.001, right=1.0), None)
    tokens, done = await complete(engine, request(200))
    usage: Usage = done.usage
    assert tokens == twin(200)
    assert usage.rounds < 150 and usage.accepted["worker"] >= 200 - usage.rounds - usage.accepted.get("local", 0)
    assert usage.frames["used"] > 0 and usage.why_off is None


@pytest.mark.parametrize("right", [0.5, 1.0])
async def test_the_links_hear_when_the_target_left_what_a_worker_drafted(make: Make, right: float) -> None:
    worker = LoopWorker(0.001, right)
    _, done = await complete(make(worker, None, policy="wanspec"), request(100))
    assert done.usage.drafted["worker"] > 0
    if right == 1.0:
        assert worker.divergences <= 1, "only the end of the answer cuts a path short"
    else:
        assert worker.divergences > 1


@pytest.mark.claim("a-seed-gives-one-answer-with-and-without-a-worker")
@pytest.mark.parametrize("temperature", [0.7, 1.3])
async def test_a_seed_gives_one_answer_with_and_without_a_worker(make: Make, temperature: float) -> None:
    sampling = Sampling(temperature=temperature, seed=42, top_p=0.95)
    alone, _ = await complete(make(None, None, policy="plain"), request(sampling=sampling))
    helped, done = await complete(make(LoopWorker(0.001, 0.8), None), request(sampling=sampling))
    assert alone == helped and alone != twin(60)
    assert done.usage.frames["received"] > 0


async def test_the_table_of_workers_is_made_for_assignments_not_for_decisions(make: Make) -> None:
    worker = LoopWorker(0.001, 0.8)
    _, done = await complete(make(worker, TableDraft(0.7)), request(100))
    assert done.usage.rounds > 10 and worker.tables <= 2


@pytest.mark.claim("a-worker-that-dies-in-the-middle-changes-nothing")
async def test_a_worker_that_dies_in_the_middle_changes_nothing(make: Make) -> None:
    worker = LoopWorker(0.002, 0.9)
    engine = make(worker, TableDraft(0.7))
    stream = engine.submit(request(300))
    tokens: list[int] = []
    async for event in stream:
        if isinstance(event, DoneEvent):
            break
        tokens += event.tokens
        if len(tokens) > 100 and worker.up:
            worker.die()
    assert tokens == twin(300) and not worker.up


async def test_a_worker_that_comes_back_is_used_again_in_the_same_answer(make: Make) -> None:
    worker = LoopWorker(0.001, 1.0)
    engine = make(worker, TableDraft(0.3))
    stream = engine.submit(request(400))
    tokens: list[int] = []
    used: list[Any] = []

    async for event in stream:
        if isinstance(event, DoneEvent):
            break
        tokens += event.tokens
        if len(tokens) > 50 and not used:
            worker.die()
            used.append(True)
        elif len(tokens) > 100 and not worker.up:
            worker.up = True
            engine.post(WorkerReady("w"))
    opens = [body for body in worker.seen if type(body).__name__ == "Open"]
    assert tokens == twin(400)
    assert [body.epoch for body in opens] == [1, 2] and opens[1].prompt_len > len(PROMPT) + 100


async def test_a_silent_worker_is_given_up_and_the_answer_goes_on(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Judged by the waits that the engine decides on, whatever time the machine takes for everything else."""
    worker = LoopWorker(0.002, 1.0)
    waits_s = [0.0]
    engine = make(worker, TableDraft(0.7))
    wait = engine._wait

    def noting(until: float) -> None:
        if worker.muted and engine.active:
            waits_s.append(until - engine.clock())
        wait(until)

    monkeypatch.setattr(engine, "_wait", noting)
    stream = engine.submit(request(200))
    tokens: list[int] = []

    async for event in stream:
        if isinstance(event, DoneEvent):
            break
        tokens += event.tokens
        worker.muted = worker.muted or len(tokens) > 60
    assert tokens == twin(200) and worker.muted
    assert sum(waits_s) < 0.5  # for more than a hundred tokens


@pytest.mark.claim("a-protocol-violation-ends-the-link-and-changes-no-completion")
async def test_a_protocol_violation_ends_the_link_and_changes_no_completion(make: Make) -> None:
    worker = LoopWorker(0.0, 0.9)
    engine = make(worker, TableDraft(0.5))
    stream = engine.submit(request(150))
    tokens: list[int] = []

    async for event in stream:
        if isinstance(event, DoneEvent):
            done = event
            break
        tokens += event.tokens
        if len(tokens) > 30 and not worker.punished and worker.requests:
            drafting = next(iter(worker.requests.values()))
            prefix = len(drafting.prefix)
            digest = drafting.prefix.digest
            engine.post(FrameArrived("w", Tree(drafting.request, 1, prefix, digest, 60_000, [0], [1], [1], [1])))
    assert tokens == twin(150)
    assert [error.reason for error in worker.punished] == ["shape-ids"]
    assert done.usage.frames["rejected"] == 1


@pytest.mark.claim("a-client-that-leaves-frees-its-slot-and-its-worker")
async def test_a_client_that_leaves_frees_its_slot_and_its_worker(make: Make) -> None:
    worker = LoopWorker(0.0)
    engine = make(worker, None, TableTarget(slots=1))
    stream = engine.submit(request(10_000 // 25))
    async for event in stream:
        stream.cancel()
        if isinstance(event, DoneEvent):
            assert event.finish == "cancelled"
            break
    tokens, _ = await complete(engine, request(20))
    assert tokens == twin(20)
    assert type(worker.seen[-1]).__name__ == "Close"


async def test_a_request_may_choose_its_own_policy(make: Make) -> None:
    engine = make(LoopWorker(0.0), TableDraft(), policy="wanspec")
    _, done = await complete(engine, request(20, speculation=Speculation(policy="local-chain", k=4)))
    assert done.usage.policy == "local-chain" and done.usage.local_draft_passes > 0


async def test_an_answer_ends_when_the_context_is_full(make: Make) -> None:
    tokens, done = await complete(make(LoopWorker(0.0, 1.0), TableDraft(1.0)), request(5000))
    assert done.finish == "length" and len(PROMPT) + len(tokens) == 512
    assert tokens == twin(len(tokens))


async def test_long_prompts_reach_the_worker_in_pieces(make: Make) -> None:

    worker = LoopWorker(0.0, 1.0)
    engine = make(worker, None)
    engine.target.context = 20_000
    long = [(i * 7) % 31 + 1 for i in range(OPEN_TOKENS * 3 + 5)]
    tokens, done = await complete(engine, request(12, long))
    assert tokens == twin(12, long)
    assert len(worker.seen[0].tokens) == OPEN_TOKENS and done.usage.frames["used"] > 0
