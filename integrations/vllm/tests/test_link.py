"""The link process and a board of vLLM over a real socket, with workers that a test plays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from edgespec_vllm import messages
from edgespec_vllm.board import Terms

from cloud_gateway.core.requests.events import FrameArrived
from cloud_gateway.engine.exchange import Declined, WorkerGone, WorkerReady
from edgespec.core.protocol.digests import prefix_hash
from edgespec.core.protocol.messages import Close, Commit, Open
from integrations.vllm.tests.boards import VOCAB
from integrations.vllm.tests.links import PlainEngine, Scene, tree


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    scene = Scene(tmp_path)
    await scene.server.start()
    yield scene
    await scene.server.close()


async def test_a_worker_is_sent_the_request_and_its_tree_reaches_vllm(scene: Scene) -> None:
    scene.workers.add("w")
    tokens = [1, 2, 3]
    scene.board.open("a", tokens, Terms(["default"], b"s", 0.5))
    await scene.settle()
    [(_, opened)] = scene.workers.taken()
    assert isinstance(opened, Open)
    assert (opened.tokens, opened.sampling.temperature) == ([1, 2, 3], 0.5)
    frame = tree(opened.request, opened.epoch, tokens, 1, [0, 0, 1, 2], [7, 8, 9, 6])
    scene.streams.post(FrameArrived("w", frame))
    await scene.settle()
    assert scene.board.chain("a").tokens == [7, 9]
    await scene.step(tokens, 8)
    assert scene.board.chain("a").tokens == [6]  # a sibling continues after the rejection
    [(_, commit)] = scene.workers.taken()
    assert isinstance(commit, Commit)
    assert (commit.prefix_len, commit.tokens, commit.prefix_hash) == (3, [8], prefix_hash(tokens))
    later = tree(opened.request, opened.epoch, tokens, 5, [4], [5])
    scene.streams.post(FrameArrived("w", later))
    await scene.settle()
    assert scene.board.chain("a").tokens == [6, 5]
    scene.board.close("a")
    await scene.settle()
    assert [type(body) for _, body in scene.workers.taken()] == [Close]


async def test_a_gateway_is_given_who_drafted_what_by_the_requests_tag(scene: Scene) -> None:
    scene.workers.add("w")
    tokens = [1, 2, 3]
    scene.board.open("a", tokens, Terms(["default"], tag="17"))
    await scene.settle()
    [(_, opened)] = scene.workers.taken()
    scene.streams.post(FrameArrived("w", tree(opened.request, opened.epoch, tokens, 1, [0, 1, 2], [7, 8, 9])))
    await scene.settle()
    scene.board.plan("a", [0.5] * 3)
    await scene.step(tokens, 7, 8, 5)  # two of three accepted
    scene.board.plan("a", [0.5] * 2)
    await scene.step(tokens)  # preempted: nothing was computed
    scene.board.plan("a", [0.5] * 1)
    tokens += [6]
    scene.board.close("a")  # the last step ends the request
    await scene.settle()
    assert scene.ledger.found == [
        ("assigned", "17", "w", "w"),
        ("frame", "17", "w", 3, True),
        ("verified", "17", "w", 3, 2),
        ("verified", "17", "w", 1, 0),
        ("released", "17", "w", "ended", 1),
    ]


async def test_a_worker_serves_few_requests_and_the_next_ones_in_turn(scene: Scene) -> None:
    scene.workers.add("w", step_s=0.020)
    sequences = [[n, 2, 3] for n in range(3)]
    for n, tokens in enumerate(sequences):
        scene.board.open(str(n), tokens, Terms(["default"]))
    await scene.settle()
    assert [body.tokens for _, body in scene.workers.taken()] == [sequences[0]]
    scene.board.close("0")
    await scene.settle()
    closed, opened = (body for _, body in scene.workers.taken())
    assert isinstance(closed, Close)
    assert opened.tokens == sequences[1]


@pytest.mark.parametrize(("step_s", "count"), [(0.03, 1), (0.012, 2), (0.005, 5), (1.0, 1)])
async def test_breadth_follows_from_draft_step_and_target_step(scene: Scene, step_s: float, count: int) -> None:
    engine = PlainEngine()
    scene.streams._periods_s[engine] = 0.05
    scene.workers.add("w", step_s=step_s)
    assert scene.streams.capacity(scene.workers.views["w"], [engine]) == count


async def test_only_workers_of_the_named_groups_see_a_request(scene: Scene) -> None:
    scene.workers.add("w", groups=frozenset({"physics"}))
    scene.board.open("a", [1, 2], Terms(["default"]))
    scene.board.open("b", [3, 4], Terms(["physics"]))
    await scene.settle()
    assert [body.tokens for _, body in scene.workers.taken()] == [[3, 4]]


async def test_another_worker_goes_on_from_the_tokens_it_lacks(scene: Scene) -> None:
    scene.workers.add("w")
    tokens = [1, 2, 3]
    scene.board.open("a", tokens, Terms(["default"]))
    await scene.settle()
    del scene.workers.views["w"]
    scene.streams.post(WorkerGone("w", "gone"))
    await scene.step(tokens, 4)
    scene.workers.taken()
    scene.workers.add("v")
    scene.streams.post(WorkerReady("v"))
    await scene.settle()
    (_, opened), *_ = scene.workers.taken()
    assert (opened.tokens, opened.epoch) == (tokens, 2)
    scene.streams.post(FrameArrived("w", tree(opened.request, 1, tokens, 1, [0], [7])))  # too late
    scene.streams.post(Declined("v", opened.request, "too long"))
    await scene.step(tokens, 5)
    assert scene.board.chain("a").tokens == []
    assert [type(body) for _, body in scene.workers.taken()] == [Close]


async def test_a_worker_that_brings_nothing_leaves_the_request(scene: Scene) -> None:
    scene.workers.add("w")
    tokens = [1, 2, 3]
    scene.board.open("a", tokens, Terms(["default"]))
    await scene.settle()
    for _ in range(60):
        await scene.step(tokens, 4)
    assert any(isinstance(body, Close) and body.reason == "useless" for _, body in scene.workers.taken())


@pytest.mark.parametrize(("every", "left"), [(8, True), (2, False)])
async def test_a_worker_whose_candidates_cost_more_than_they_save_leaves(scene: Scene, every: int, left: bool) -> None:
    scene.workers.add("w")
    tokens = [1, 2, 3]
    scene.board.open("a", tokens, Terms(["default"]))
    await scene.settle()
    opened = scene.workers.taken()[0][1]
    first = 1
    for n in range(20):  # a candidate is right each time, so the worker is not silent, but four are verified for it
        scene.streams.post(FrameArrived("w", tree(opened.request, 1, tokens, first, [0 if n == 0 else first - 1], [4])))
        first += 1
        scene.board.plan("a", [0.5] * 4)
        await scene.step(tokens, *[4] * (1 + (n % every == 0)))
    closes = [body for _, body in scene.workers.taken() if isinstance(body, Close)]
    assert [body.reason for body in closes] == ["useless"] * left


async def test_a_malformed_tree_is_the_workers_fault(scene: Scene) -> None:
    scene.workers.add("w")
    scene.board.open("a", [1, 2], Terms(["default"]))
    await scene.settle()
    scene.streams.post(FrameArrived("w", tree(1, 1, [1, 2], 9, [0], [7])))
    assert scene.workers.punished == ["w"]


async def test_a_long_prompt_is_complete_before_a_worker_has_it(scene: Scene) -> None:
    scene.workers.add("w")
    tokens = [n % VOCAB for n in range(20_000)]
    scene.board.open("a", tokens, Terms(["default"]))
    for _ in range(20):
        await scene.settle()
    sent = [body for _, body in scene.workers.taken()]
    assert sent[0].prompt_len == len(tokens)
    assert [token for body in sent for token in body.tokens] == tokens


@pytest.mark.parametrize(
    "data",
    [
        b"\xff" * 9,
        messages.frame(messages.Closed(1)),
        messages.frame(messages.Hello(1, 0, VOCAB + 1, 4)),
        messages.frame(messages.Hello(9, 0, VOCAB, 4)),
    ],
)
async def test_an_engine_that_does_not_fit_is_refused(scene: Scene, data: bytes) -> None:
    reader, writer = await asyncio.open_unix_connection(scene.server.path)
    writer.write(data)
    assert await asyncio.wait_for(reader.read(), 20) == b""
    assert scene.server.engines == 0
    writer.close()


async def test_requests_end_with_their_engine(scene: Scene) -> None:
    scene.workers.add("w")
    scene.board.open("a", [1, 2], Terms(["default"]))
    await scene.settle()
    scene.board.line.fail("killed")
    await asyncio.sleep(0.02)
    assert [type(body) for _, body in scene.workers.taken()] == [Open, Close]
