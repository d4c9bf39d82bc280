"""A target at a server: texts are the server's own, by its stream and by calls, and nothing is lost or doubled."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import pytest

from cloud_gateway.core.requests.request import DoneEvent, GenerationRequest, Speculation
from cloud_gateway.core.verify.accept import NOT_COMPUTED, flatten
from cloud_gateway.core.verify.candidates import CandidateTree
from cloud_gateway.engine.exchange import Stream
from cloud_gateway.models.target_model import Work
from cloud_gateway.models.target_model.inside import DrawingTarget
from cloud_gateway.parts.http_engine import stream
from cloud_gateway.parts.http_engine import target as http_target
from cloud_gateway.parts.http_engine.draws import DRAWS
from cloud_gateway.parts.http_engine.server import Server
from cloud_gateway.parts.http_engine.stream import ServerTokens
from cloud_gateway.parts.http_engine.target import HttpTarget, ServerLoop
from edgespec.core.errors import ClientError
from edgespec.core.protocol.messages import Sampling
from tests.parts.http_engine.served import CONTEXT, LONG, Manners, Running, serving
from tests.support.engines import complete, engines
from tests.support.until import until
from tools.doubles.engines import TableDraft
from tools.doubles.model import EOS, VOCAB, HashModel, ShortMemory, plain_greedy
from tools.doubles.workers import LoopWorker

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
COUNT = 60
GREEDY = Sampling()
TEXT = plain_greedy(PROMPT, COUNT)
TOKENS = ServerTokens(VOCAB, frozenset({EOS}))
SLOW = Manners(token_s=0.01, call_s=0.01)


@contextlib.contextmanager
def target_at(running: Running, slots: int = 4) -> Iterator[HttpTarget]:
    loop = ServerLoop()
    server = Server(running.url)
    loop.run(server.open())
    yield HttpTarget(server, loop, TOKENS, slots=slots, context=CONTEXT, kv_tokens=slots * (CONTEXT + 64))
    loop.run(server.close())
    loop.stop()


def wanted(count: int = COUNT, sampling: Sampling = GREEDY, *, ignore_eos: bool = True) -> GenerationRequest:
    return GenerationRequest(PROMPT, count, sampling, ignore_eos=ignore_eos)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "RESUME_S", (0.01, 0.02, 0.05, 0.1, 0.2))


async def finished(
    running: Running, request: GenerationRequest | None = None, *, worker: float | None = None,
    draft: float | None = None,
) -> tuple[list[int], DoneEvent]:  # fmt: skip
    """A completion; `worker`, `draft`: how often a draft of each is right."""
    linked = None if worker is None else LoopWorker(0.002, worker)
    local = None if draft is None else TableDraft(model=HashModel(right=draft))
    with target_at(running) as target, engines() as started:
        return await complete(started(linked, local, target, methods={"shared-noise": DRAWS}), request or wanted())


async def test_without_drafts_one_stream_brings_the_text() -> None:
    with serving() as running:
        tokens, done = await finished(running)
    assert tokens == TEXT and done.finish == "length" and done.usage.rounds == COUNT
    assert running.server.streams == [PROMPT] and running.server.calls == []


@pytest.mark.parametrize("right", [1.0, 0.7, 0.0])
@pytest.mark.parametrize("source", ["worker", "draft"])
async def test_with_drafts_the_text_is_the_same_whatever_is_drafted(right: float, source: str) -> None:
    with serving(SLOW) as running:
        tokens, done = await finished(running, **{source: right})
    assert tokens == TEXT and done.error is None
    if right == 1.0:
        assert running.server.calls and done.usage.rounds < COUNT


async def test_a_call_has_the_committed_tokens_and_a_path_to_each_candidate() -> None:
    with serving(SLOW) as running:
        await finished(running, worker=1.0)
    text = [*PROMPT, *TEXT]
    for committed, *paths in running.server.calls:
        assert committed == text[: len(committed)]
        assert paths and all(path[: len(committed)] == committed for path in paths)
    salts = {body["cache_salt"] for body in running.server.bodies}
    assert len(salts) == 1


async def test_a_stream_after_a_call_asks_no_more_than_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "FRESH_S", 60.0)
    monkeypatch.setattr(http_target, "FRESH_S", 60.0)
    with serving(SLOW) as running:
        tokens, _ = await finished(running, worker=0.7)
    assert tokens == TEXT and running.server.calls and len(running.server.streams) > 1
    assert running.server.listings == 2  # when the gateway starts, and for the completion's first token


async def test_a_server_that_was_found_to_be_another_one_gets_no_call() -> None:
    with serving() as running, target_at(running) as target:
        await complete_one(target)
        running.server.manners.shift = 1
        slot, _ = target.open(PROMPT)
        target.begin(slot, wanted())
        await until(lambda: target.ready(slot, lambda: None))  # its stream has ended with an error
        tree = CandidateTree(PROMPT)
        tree.add_local(tree.root, TEXT[0], 1.0, 1.0)
        (rows,) = target.verify([Work(slot, flatten(tree.root, tree.best(1)))])
        with pytest.raises(ClientError, match="serves another one"):
            list(rows.argmax)
        assert running.server.calls == []
        target.close(slot)


async def complete_one(target: HttpTarget) -> None:
    """A completion, for which the server is asked whether it is the same."""
    slot, _ = target.open(PROMPT)
    target.begin(slot, wanted(1))
    await until(lambda: target.ready(slot, lambda: None))
    tree = CandidateTree(PROMPT)
    target.verify([Work(slot, flatten(tree.root, []))])
    target.close(slot)


async def test_the_end_of_a_text_ends_it_also_if_the_server_leaves_it_out() -> None:
    whole = plain_greedy(PROMPT, 400, ignore_eos=False)
    assert whole[-1] == EOS
    for shows_end in (True, False):
        for worker in (None, 1.0):
            with serving(Manners(token_s=0.004, call_s=0.004, shows_end=shows_end)) as running:
                tokens, done = await finished(running, wanted(400, ignore_eos=False), worker=worker)
            assert tokens == whole[:-1] and done.finish == "stop"


async def test_a_text_goes_on_after_its_end_if_the_client_ignores_that() -> None:
    count = len(plain_greedy(PROMPT, 400, ignore_eos=False)) + 10
    with serving(Manners(token_s=0.001)) as running:
        tokens, _ = await finished(running, wanted(count), draft=0.5)
    assert tokens == plain_greedy(PROMPT, count)


async def test_several_requests_have_streams_of_their_own() -> None:
    with serving(Manners(token_s=0.002)) as running, target_at(running) as target, engines() as started:
        engine = started(None, None, target)
        prompts = [[*PROMPT, number] for number in range(6)]
        streams = [engine.submit(GenerationRequest(prompt, 30, ignore_eos=True)) for prompt in prompts]
        texts = [(await stream.whole())[0] for stream in streams]
    assert texts == [plain_greedy(prompt, 30) for prompt in prompts]


async def test_in_company_no_request_calls_and_all_take_their_streams() -> None:
    prompts = [[*PROMPT, number] for number in range(3)]
    with serving(SLOW) as running, target_at(running) as target, engines() as started:
        engine = started(None, TableDraft(model=HashModel(right=1.0)), target, methods={"shared-noise": DRAWS})
        streams = [engine.submit(GenerationRequest(prompt, 40, ignore_eos=True)) for prompt in prompts]
        await until(lambda: engine.active == len(prompts))
        before = len(running.server.calls)
        texts = [(await streams[0].whole())[0]]
        calls = len(running.server.calls) - before
        texts += [(await stream.whole())[0] for stream in streams[1:]]
    assert texts == [plain_greedy(prompt, 40) for prompt in prompts]
    assert calls <= 1, "a pass that began while one request was alone"


async def test_in_company_a_pass_has_draws_as_far_as_the_stream_has_come() -> None:
    with serving(Manners(token_s=0.2)) as running, target_at(running) as target:
        slots = [target.open([*PROMPT, *more])[0] for more in ([], [7])]
        for slot in slots:
            target.begin(slot, wanted())
        await until(lambda: target.ready(slots[0], lambda: None))
        tree = CandidateTree(PROMPT)
        node = tree.root
        for token in TEXT[:5]:
            node = tree.add_local(node, token, 1.0, 1.0) or node
        flat = flatten(tree.root, tree.best(5))
        (rows,) = target.verify([Work(slots[0], flat)])
        drawn = [token for token in rows.argmax if token != NOT_COMPUTED]
        assert drawn == TEXT[: len(drawn)] and 1 <= len(drawn) < 5
        assert running.server.calls == []
        for slot in slots:
            target.close(slot)


async def test_a_long_prompt_at_the_server_holds_up_no_other_request() -> None:
    with serving(Manners(token_s=0.002, long_s=30.0)) as running, target_at(running) as target, engines() as started:
        engine = started(None, None, target)
        first = engine.submit(wanted(200))
        await until(lambda: engine.stats.tokens > 5)
        second = engine.submit(GenerationRequest([LONG, *PROMPT], 5, ignore_eos=True))
        tokens, _ = await first.whole()
        assert tokens == plain_greedy(PROMPT, 200)
        assert engine.active == 1
        second.cancel()


async def test_a_client_that_leaves_ends_its_stream_at_the_server() -> None:
    with serving(Manners(token_s=0.01)) as running, target_at(running) as target, engines() as started:
        engine = started(None, None, target)
        left: Stream = engine.submit(wanted(400))
        await until(lambda: engine.stats.tokens > 2)
        left.cancel()
        await until(lambda: running.server.open_streams == 0)


# --- faults ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("worker", [None, 0.7])
async def test_a_stream_that_is_cut_again_and_again_loses_and_repeats_nothing(worker: float | None) -> None:
    with serving(Manners(token_s=0.004, call_s=0.004, cut_after=7)) as running:
        tokens, done = await finished(running, worker=worker)
    assert tokens == TEXT and done.finish == "length"
    assert len(running.server.streams) > 2


async def test_a_server_that_is_started_again_goes_on_where_it_was() -> None:
    running_manners = Manners(token_s=0.01)
    with serving(running_manners) as running, target_at(running) as target, engines() as started:
        engine = started(None, None, target)
        text = engine.submit(wanted())
        await until(lambda: engine.stats.tokens > 5)
        restarted = Running(running.server, running.port)
        running.stop()
        await asyncio.sleep(0.1)
        with restarted.up():
            tokens, done = await text.whole()
    assert tokens == TEXT and done.finish == "length"


@pytest.mark.parametrize(("change", "sentence"), [("name", "another one than table"), ("shift", "another one")])
async def test_a_server_that_comes_back_with_another_model_ends_the_text(change: str, sentence: str) -> None:
    with serving(Manners(token_s=0.01)) as running, target_at(running) as target, engines() as started:
        engine = started(None, None, target)
        text = engine.submit(wanted())
        await until(lambda: engine.stats.tokens > 5)
        setattr(running.server.manners, change, {"name": "other", "shift": 1}[change])
        running.server.manners.cut_after = 0
        tokens, done = await text.whole()
    assert tokens == TEXT[: len(tokens)] and len(tokens) > 5
    assert done.finish == "error" and done.refusal is not None
    assert done.refusal.status == 502 and sentence in str(done.refusal)


@pytest.mark.parametrize(
    ("status", "passed", "code"),
    [
        (400, 400, "engine_refused"),
        (429, 429, "engine_busy"),
        (503, 503, "engine_stopped"),
        (401, 502, "engine_failed"),
        (500, 502, "engine_failed"),
        (0, 503, "engine_stopped"),
    ],
)
async def test_a_refusal_before_the_first_token_is_passed_on(status: int, passed: int, code: str) -> None:
    with serving(Manners(streams_fail=[status])) as running:
        tokens, done = await finished(running)
    assert tokens == [] and done.finish == "error" and done.refusal is not None
    assert (done.refusal.status, done.refusal.code) == (passed, code)
    if status == 429:
        assert done.refusal.retry_after_s == 7.0
    assert len(running.server.streams) == 1


async def test_a_server_that_is_busy_behind_the_first_token_is_asked_again() -> None:
    with serving(Manners(token_s=0.002, cut_after=9)) as running:
        running.server.manners.streams_fail += [1, 429, 503, 1]
        tokens, done = await finished(running)
    assert tokens == TEXT and done.finish == "length"


async def test_a_server_that_stays_away_ends_the_text_with_one_sentence() -> None:
    with serving(Manners(token_s=0.002, cut_after=9)) as running:
        running.server.manners.streams_fail += [1, *[0] * 20]
        tokens, done = await finished(running)
    assert tokens == TEXT[:9] and done.refusal is not None
    assert done.refusal.status == 503 and "does not answer" in str(done.refusal)


async def test_what_is_no_completion_ends_the_text() -> None:
    with serving(Manners(garbled=True)) as running:
        tokens, done = await finished(running)
    assert tokens == [] and done.refusal is not None and done.refusal.status == 502


@pytest.mark.parametrize("status", [429, 500])
async def test_a_call_that_fails_costs_drafts_and_no_token(status: int) -> None:
    with serving(Manners(token_s=0.01, call_s=0.01, call_status=status)) as running:
        tokens, done = await finished(running, worker=1.0)
    assert tokens == TEXT and done.finish == "length"
    assert len(running.server.calls) == 1


async def test_penalties_that_count_the_completion_take_the_stream_alone() -> None:
    penalised = Sampling(presence_penalty=0.5)
    with serving(SLOW) as running:
        tokens, _ = await finished(running, wanted(sampling=penalised), worker=1.0)
    assert tokens == TEXT  # the server's: this one has no penalties
    assert running.server.calls == [] and running.server.streams == [PROMPT]

    with serving(Manners(token_s=0.002, cut_after=9)) as running:
        tokens, done = await finished(running, wanted(sampling=penalised))
    assert tokens == TEXT[:9] and done.refusal is not None and len(running.server.streams) == 1


async def test_what_the_server_cannot_do_is_refused() -> None:
    with serving() as running, target_at(running) as target:
        assert isinstance(target, DrawingTarget)
        request = GenerationRequest(PROMPT, 5, min_tokens=2)
        tokens, done = await finished(running, request)
    assert tokens == [] and done.refusal is not None and "min_tokens" in str(done.refusal)
    assert done.refusal.status == 400 and running.server.streams == []


async def test_temperature_goes_to_the_server_and_its_draws_are_taken() -> None:
    sampling = Sampling(temperature=0.8, top_k=7, top_p=0.9, min_p=0.1, seed=5)
    with serving(SLOW) as running:
        tokens, done = await finished(running, wanted(sampling=sampling), worker=1.0)
    assert tokens == TEXT and done.usage.verification == "draws"
    for body in running.server.bodies:
        assert (body["temperature"], body["top_k"], body["top_p"], body["min_p"]) == (0.8, 7, 0.9, 0.1)
        assert "seed" not in body


async def test_what_was_drawn_is_taken_before_anything_is_drawn_again() -> None:
    with serving() as running, target_at(running) as target:
        slot, _ = target.open(PROMPT)
        target.begin(slot, wanted())
        await until(lambda: target.ready(slot, lambda: None))
        await until(lambda: running.server.open_streams == 0)  # the stream is over, and all of it is there
        tree = CandidateTree(PROMPT)
        node = tree.root
        for token in TEXT[:5]:
            node = tree.add_local(node, token, 1.0, 1.0) or node
        (rows,) = target.verify([Work(slot, flatten(tree.root, tree.best(5)))])
        assert list(rows.argmax) == TEXT[:6] and running.server.calls == []
        target.close(slot)


async def test_no_token_is_asked_for_beyond_the_limit() -> None:
    with serving() as running, target_at(running) as target:
        slot, _ = target.open(PROMPT)
        target.begin(slot, wanted(5))
        await until(lambda: target.ready(slot, lambda: None))
        await until(lambda: running.server.open_streams == 0)
        tree = CandidateTree(PROMPT)
        node = tree.root
        for token in TEXT[:8]:
            node = tree.add_local(node, token, 1.0, 1.0) or node
        (rows,) = target.verify([Work(slot, flatten(tree.root, tree.best(8)))])
        assert list(rows.argmax)[:5] == TEXT[:5]
        assert running.server.streams == [PROMPT] and running.server.calls == []
        target.close(slot)


async def test_a_repeating_text_is_found_by_a_source_and_verified_by_calls() -> None:
    with serving(Manners(model=ShortMemory(), token_s=0.01, call_s=0.005)) as running:
        request = GenerationRequest(PROMPT, 80, ignore_eos=True, speculation=Speculation(sources=("lookup",)))
        tokens, done = await finished(running, request)
    with serving(Manners(model=ShortMemory())) as running:
        plain, _ = await finished(running, GenerationRequest(PROMPT, 80, ignore_eos=True))
    assert tokens == plain and done.usage.rounds <= 40
