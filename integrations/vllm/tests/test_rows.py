"""Drafts for a vLLM that nobody has changed: lists of prompts, when they pay, and a completion that changes over."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

import pytest
from edgespec_vllm.gateway.bodies import UpstreamError, check
from edgespec_vllm.gateway.remote import RemoteEngine
from edgespec_vllm.gateway.rows import FORGET_AFTER, MAX_ROWS, Prices, call, can_verify, draws_of, expected, walked
from edgespec_vllm.gateway.server import Server
from edgespec_vllm.link.streams import Streams

from cloud_gateway.api.generation import ServedModel
from cloud_gateway.core.requests.request import DoneEvent, GenerationRequest, Speculation, TokensEvent
from cloud_gateway.core.verify.candidates import CandidateTree
from cloud_gateway.core.verify.interface import Constraint, RowReader
from edgespec.core.drafting.tree import Node
from edgespec.core.errors import ClientError
from edgespec.core.protocol.messages import Sampling
from integrations.vllm.tests.plain_vllm import EOS, VOCAB, DraftingWorkers, PlainVllm, chosen
from tests.support.until import until

MODEL = ServedModel("m", 0, 4096, VOCAB, "f")
PROMPT = tuple(5 + number % 30 for number in range(20))
COUNT = 60
GREEDY = Sampling(temperature=0.0)


def expected_text(count: int = COUNT, ends_at: int = 1 << 30) -> list[int]:
    tokens = list(PROMPT)
    while len(tokens) < len(PROMPT) + count and (token := chosen(tokens, ends_at)) != EOS:
        tokens.append(token)
    return tokens[len(PROMPT) :]


# --- rows -----------------------------------------------------------------------------------------------------------


def chain(tree: CandidateTree, tokens: list[int], cost: float = 0.1) -> list[Node]:
    nodes: list[Node] = []
    parent = tree.root
    for token in tokens:
        node = tree.add_local(parent, token, cost, 1.0, "w")
        assert node is not None
        nodes.append(node)
        parent = node

    return nodes


def test_each_candidate_is_a_prompt_behind_the_committed_tokens() -> None:
    tree = CandidateTree([7, 8])
    first, second = chain(tree, [1, 2])
    (other,) = chain(tree, [3])
    body = call({"model": "m", "stream": True, "cache_salt": "s"}, [7, 8], [first, other, second], tree.root)
    assert body["prompt"] == [[7, 8], [7, 8, 1], [7, 8, 3], [7, 8, 1, 2]]
    assert (body["max_tokens"], body["stream"], body["cache_salt"]) == (1, False, "s")


@pytest.mark.parametrize(
    ("draws", "tokens"),
    [
        ([9, 0, 0, 0], [9]),
        ([1, 9, 0, 0], [1, 9]),
        ([3, 0, 9, 0], [3, 9]),
        ([1, 2, 0, 9], [1, 2, 9]),
    ],
)
def test_the_walk_follows_the_draws_as_long_as_they_are_candidates(draws: list[int], tokens: list[int]) -> None:
    tree = CandidateTree([7, 8])
    first, second = chain(tree, [1, 2])
    (other,) = chain(tree, [3])
    walk = walked(draws, [first, other, second], tree.root)
    assert list(walk.tokens) == tokens and walk.accepted == len(tokens) - 1


def test_a_candidate_that_was_not_asked_about_is_not_walked_to() -> None:
    tree = CandidateTree([7, 8])
    first, _ = chain(tree, [1, 2])
    assert walked([1, 2], [first], tree.root).tokens == [1, 2]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b'{"choices":[]}',
        b'{"choices":[{"index":0,"token_ids":[3]}]}',
        b'{"choices":[{"index":0,"token_ids":[3]},{"index":0,"token_ids":[3]}]}',
        b'{"choices":[{"index":0,"token_ids":[3]},{"index":1,"token_ids":[3,4]}]}',
        b'{"choices":[{"index":0,"token_ids":[3]},{"index":1,"token_ids":[40]}]}',
        b'{"choices":[{"index":0,"token_ids":[3]},{"index":1,"text":"x"}]}',
    ],
)
def test_rows_that_are_none_are_refused(body: bytes) -> None:
    with pytest.raises(UpstreamError):
        draws_of(body, 2, VOCAB)


def test_what_counts_the_completion_alone_is_left_to_the_stream() -> None:
    plain = GenerationRequest(PROMPT, 5, Sampling(temperature=0.7, repetition_penalty=1.2))
    assert can_verify(plain)
    for changed in (
        replace(plain, sampling=Sampling(presence_penalty=0.5)),
        replace(plain, sampling=Sampling(frequency_penalty=0.5)),
        replace(plain, min_tokens=3),
        replace(plain, row_reader=cast(RowReader, object())),
        replace(plain, constraint=cast(Constraint, object())),
    ):
        assert not can_verify(changed)


def test_a_reader_that_needs_whole_rows_is_refused() -> None:
    request = GenerationRequest(PROMPT, 5, row_reader=cast(RowReader, object()))
    with pytest.raises(ClientError, match="vLLM, which computes it, sends none") as refused:
        check(request)
    assert refused.value.code == "unsupported_parameter"


# --- when it pays ---------------------------------------------------------------------------------------------------


def priced(token_s: float, call_s: float) -> Prices:
    prices = Prices()
    prices.token.add(token_s)
    for rows in range(1, MAX_ROWS + 2):
        prices.called("w", rows, call_s, 0, 0)
    return prices


def likely(depth: int) -> CandidateTree:
    tree = CandidateTree(PROMPT)
    chain(tree, [*range(5, 5 + depth)])
    return tree


def test_a_call_is_worth_it_if_it_takes_less_than_the_tokens_it_brings() -> None:
    tree = likely(4)
    tokens = 1 + expected(tree.best(4), tree.root)
    assert len(priced(0.010, 0.010 * tokens * 0.9).choose(tree, "w", 50, streaming=False)) == 4
    assert not priced(0.010, 0.010 * tokens).choose(tree, "w", 50, streaming=False)


def test_before_a_token_was_timed_nothing_is_verified() -> None:
    assert not Prices().choose(likely(4), "w", 50, streaming=False)


def test_a_stream_is_left_only_for_more_than_its_opening_costs() -> None:
    prices = priced(0.010, 0.030)
    assert prices.choose(likely(4), "w", 50, streaming=True)
    prices.opening.add(0.2)
    assert not prices.choose(likely(4), "w", 50, streaming=True) and prices.choose(likely(4), "w", 50, streaming=False)


def test_no_more_is_verified_than_the_completion_may_have() -> None:
    assert len(priced(1.0, 0.001).choose(likely(8), "w", 3, streaming=False)) == 2
    assert not priced(1.0, 0.001).choose(likely(8), "w", 1, streaming=False)


def test_drafts_that_are_wrong_lose_their_trust_and_regain_it() -> None:
    prices = priced(0.010, 0.020)
    for _ in range(20):
        prices.called("w", 5, 0.020, 3.0, 0)
    assert not prices.choose(likely(4), "w", 50, streaming=False)
    assert prices.choose(likely(4), "another worker", 50, streaming=False)
    for _ in range(20):
        prices.called("w", 5, 0.020, 3.0, 3)
    assert prices.choose(likely(4), "w", 50, streaming=False)


def test_a_price_that_was_once_too_high_is_tried_again_rarely() -> None:
    prices = priced(0.010, 0.100)
    looks = next(looks for looks in range(10_000) if prices.choose(likely(4), "w", 50, streaming=False))
    assert FORGET_AFTER < looks < 20 * FORGET_AFTER


# --- the engine -----------------------------------------------------------------------------------------------------


@dataclass
class Running:
    engine: RemoteEngine
    vllm: PlainVllm
    workers: DraftingWorkers

    async def complete(self, **changes: Any) -> tuple[list[int], DoneEvent]:
        usual = GenerationRequest(PROMPT, COUNT, GREEDY, ignore_eos=True, groups=frozenset({"default"}))
        stream = self.engine.submit(replace(usual, **changes))
        tokens: list[int] = []
        async for event in stream:
            if isinstance(event, TokensEvent):
                tokens += event.tokens
            else:
                return tokens, event
        raise AssertionError("a stream without an end")


@asynccontextmanager
async def running(vllm: PlainVllm, workers: DraftingWorkers, *, hooked: bool = False) -> AsyncIterator[Running]:
    async with vllm.serving() as url:
        server = Server(url=url)
        engine = RemoteEngine(server, MODEL, frozenset({EOS}), slots=8, queue_limit=64, drafts=True)
        streams = Streams(cast(Any, workers), time.monotonic, engine)
        workers.streams = streams
        engine.use(streams, lambda: hooked)
        await server.start()
        try:
            yield Running(engine, vllm, workers)
        finally:
            await engine.stop()
            await server.close()


def sometimes(right: float, seed: int = 3) -> Callable[[list[int]], int]:
    rng = random.Random(seed)
    return lambda tokens: chosen(tokens) if rng.random() < right else 5 + rng.randrange(VOCAB - 5)


async def test_right_drafts_save_most_of_the_time_and_change_no_token() -> None:
    async with running(PlainVllm(token_s=0.02, call_s=0.02), DraftingWorkers(chosen)) as made:
        began = time.monotonic()
        tokens, done = await made.complete()
        seconds = time.monotonic() - began
    assert tokens == expected_text() and done.finish == "length"
    assert seconds < 0.02 * COUNT / 2, "plain decoding takes 0.02 s a token"
    assert done.usage.verification == "draws"
    assert done.usage.completion_tokens == COUNT and done.usage.accepted["worker"] > COUNT / 2
    assert len(made.vllm.salts) == 1, "stream and calls share what vLLM has cached"


@pytest.mark.parametrize("right", [0.0, 0.5, 0.8])
async def test_drafts_of_any_kind_change_no_token(right: float) -> None:
    async with running(PlainVllm(call_s=0.004), DraftingWorkers(sometimes(right))) as made:
        found = await asyncio.gather(*(made.complete() for _ in range(4)))
    assert made.vllm.calls, "candidates were verified"
    for tokens, done in found:
        assert tokens == expected_text() and (done.finish, done.usage.completion_tokens) == ("length", COUNT)


@pytest.mark.parametrize("ends_at", [len(PROMPT) + 1, len(PROMPT) + 37])
async def test_a_text_ends_at_its_end_also_within_a_call(ends_at: int) -> None:
    workers = DraftingWorkers(lambda tokens: chosen(tokens, ends_at))
    async with running(PlainVllm(token_s=0.02, call_s=0.02, ends_at=ends_at), workers) as made:
        tokens, done = await made.complete(ignore_eos=False)
    assert tokens == expected_text(ends_at=ends_at) and done.finish == "stop"


async def test_a_worker_that_vanishes_leaves_the_text_and_the_stream() -> None:
    workers = DraftingWorkers(chosen)
    async with running(PlainVllm(token_s=0.01, call_s=0.01), workers) as made:
        asked = asyncio.ensure_future(made.complete())
        await until(lambda: len(made.vllm.calls) >= 2)
        workers.vanish()
        tokens, done = await asked
        assert tokens == expected_text() and done.finish == "length"
        calls = len(made.vllm.calls)
        assert (await made.complete())[0] == expected_text() and len(made.vllm.calls) == calls


@pytest.mark.parametrize("status", [400, 429, 500, 503])
async def test_a_call_that_fails_is_the_last_one_and_costs_no_token(status: int) -> None:
    vllm = PlainVllm(token_s=0.01, call_s=0.01)
    vllm.call_status = status
    async with running(vllm, DraftingWorkers(chosen)) as made:
        tokens, done = await made.complete()
    assert tokens == expected_text() and done.finish == "length"
    assert len(vllm.calls) == 1 and len(vllm.streams) == 2


async def test_calls_that_do_not_pay_are_hardly_made() -> None:
    async with running(PlainVllm(token_s=0.002, call_s=0.05), DraftingWorkers(chosen, depth=4)) as made:
        tokens, _ = await made.complete(max_tokens=200)
    assert tokens == expected_text(200) and len(made.vllm.calls) <= 3


async def test_a_cut_stream_goes_on_where_it_was_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgespec_vllm.gateway.remote.RESUME_S", (0.01,))
    vllm = PlainVllm(token_s=0.002, call_s=0.5)
    vllm.cut_after = 7
    async with running(vllm, DraftingWorkers(sometimes(0.0))) as made:
        tokens, done = await made.complete()
    assert tokens == expected_text() and (done.finish, done.usage.completion_tokens) == ("length", COUNT)
    assert len(vllm.streams) >= COUNT / 7


async def test_a_server_that_is_busy_in_the_middle_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgespec_vllm.gateway.remote.RESUME_S", (0.01, 0.01))
    vllm = PlainVllm(token_s=0.002, call_s=0.5)
    vllm.cut_after = 20
    vllm.busy_from = 2
    async with running(vllm, DraftingWorkers(sometimes(0.0))) as made:
        tokens, done = await made.complete()
    assert tokens == expected_text() and done.finish == "length"


async def test_a_server_that_is_busy_at_the_beginning_says_so_to_the_client() -> None:
    vllm = PlainVllm()
    vllm.busy_from = 1
    async with running(vllm, DraftingWorkers(chosen)) as made:
        tokens, done = await made.complete()
    assert (tokens, done.finish) == ([], "error") and done.refusal is not None and done.refusal.status == 429


async def test_a_vllm_that_stays_away_is_an_error_after_the_last_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgespec_vllm.gateway.remote.RESUME_S", (0.01, 0.02))
    vllm = PlainVllm(token_s=0.002)
    vllm.cut_after = 0
    async with running(vllm, DraftingWorkers(chosen)) as made:
        tokens, done = await made.complete()
    assert (tokens, done.finish, len(vllm.streams)) == ([], "cancelled", 3)
    assert "started again" in (done.error or "")


@pytest.mark.parametrize(
    "changes",
    [
        {"speculation": Speculation(offload="never")},
        {"groups": frozenset()},
        {"sampling": Sampling(temperature=0.0, presence_penalty=0.5)},
    ],
)
async def test_without_consent_or_a_fitting_request_there_is_one_plain_stream(changes: dict[str, Any]) -> None:
    async with running(PlainVllm(), DraftingWorkers(chosen)) as made:
        tokens, _ = await made.complete(**changes)
    assert tokens == expected_text() and not made.vllm.calls and len(made.vllm.streams) == 1
    assert not made.workers.sends, "no worker has seen the prompt"


async def test_a_vllm_with_our_scheduler_is_sent_no_calls() -> None:
    async with running(PlainVllm(), DraftingWorkers(chosen), hooked=True) as made:
        assert (await made.complete())[0] == expected_text()
    assert not made.vllm.calls and not made.workers.sends


async def test_a_client_that_leaves_frees_its_worker() -> None:
    async with running(PlainVllm(token_s=0.01), DraftingWorkers(chosen)) as made:
        usual = GenerationRequest(PROMPT, COUNT, GREEDY, ignore_eos=True, groups=frozenset({"default"}))
        stream = made.engine.submit(usual)
        await until(lambda: bool(made.vllm.calls))
        stream.cancel()
        await until(lambda: made.engine.active == 0)
        assert made.engine.offloading.open == 0
