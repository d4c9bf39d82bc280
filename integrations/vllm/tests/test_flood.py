"""What a worker or the link process sends costs a step of vLLM a bounded number of nodes, counted without a clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, overload

import pytest
from edgespec_vllm import messages
from edgespec_vllm.board import MIN_STEP_NODES, Board, Terms
from edgespec_vllm.line import Line
from edgespec_vllm.messages import MAX_CHAIN, MESSAGE_NODES, PASS_NODES, Chain, Opened, Tokens, Want
from edgespec_vllm.tree import MAX_NODES, Tree

from cloud_gateway.core.requests.events import FrameArrived
from edgespec.core.protocol.messages import MAX_DEPTH
from integrations.vllm.tests.boards import DRAFTS, VOCAB, Link
from integrations.vllm.tests.links import tree
from integrations.vllm.tests.test_worth import Link as WorkersLink

FLOODS: dict[str, Callable[[int], Any]] = {
    "chains of one token": lambda n: Chain(1, 3, [n % 2000], [1]),
    "chains of 192 tokens": lambda n: Chain(1, 3, [n % 2000] * MAX_CHAIN, [1] * MAX_CHAIN),
    "chains of foreign requests": lambda n: Chain(77, 3, [1], [1]),
    "wants": lambda n: Want(1, 3),
}


@pytest.mark.claim("a-flood-costs-a-step-of-vllm-a-bounded-number-of-nodes")
@pytest.mark.parametrize("kind", FLOODS)
def test_a_flood_costs_each_step_a_bounded_number_of_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    link = Link(tmp_path)
    board = Board(Line(link.path), 0, VOCAB, DRAFTS)
    board.open("a", [1, 2, 3], Terms(["default"]))
    board.send(0)
    link.received()
    link.send(b"".join(messages.frame(FLOODS[kind](n)) for n in range(4000))[: 1 << 16])

    taken: list[Any] = []
    take = board._take
    monkeypatch.setattr(board, "_take", lambda message: (taken.append(message), take(message)))
    steps: list[int] = []
    counts: list[int] = []
    while not counts or counts[-1]:
        stream = board.streams["a"]
        before = stream.tree.visited if stream.tree is not None else 0
        board.receive()
        board.chain("a")
        visited = (stream.tree.visited if stream.tree is not None else 0) - before
        steps.append(visited + MESSAGE_NODES * len(taken))
        counts.append(len(taken))
        taken.clear()

    assert sum(counts) > 150
    assert len(counts) > 2, "the flood is longer than a step takes"

    # The last message may exceed the bound, and the tree's nodes are counted once.
    assert max(steps) <= MIN_STEP_NODES + MESSAGE_NODES + MAX_CHAIN + MAX_NODES + DRAFTS


def test_what_a_step_leaves_is_taken_by_the_next_one(tmp_path: Path) -> None:
    link = Link(tmp_path)
    board = Board(Line(link.path), 0, VOCAB, DRAFTS)
    board.open("a", [1, 2, 3], Terms(["default"]))
    board.open("b", [1, 2, 3], Terms(["default"]))
    board.send(0)
    link.received()
    count = MIN_STEP_NODES // MESSAGE_NODES
    link.send(*[Chain(1, 3, [5], [1])] * count, Chain(2, 3, [6], [1]))
    board.receive()
    assert (board.chain("a").tokens, board.chain("b").tokens) == ([5], [])
    board.receive()
    assert board.chain("b").tokens == [6]


def test_more_requests_with_a_worker_may_cost_more_in_a_step(tmp_path: Path) -> None:
    link = Link(tmp_path)
    board = Board(Line(link.path), 0, VOCAB, DRAFTS)
    for number in range(1, 9):
        board.open(str(number), [1, 2, 3], Terms(["default"]))
    board.send(0)
    link.received()
    chains = [Chain(number, 3, [token] * 12, [1] * 12) for token in range(16) for number in range(1, 9)]
    link.send(*(Want(number, 0) for number in range(1, 9)))
    board.receive()
    link.send(*chains)  # 3,584 nodes
    board.receive()
    assert all(len(board.chain(str(number)).tokens) == DRAFTS for number in range(1, 9))
    assert board.line.receive() is None


def test_a_full_tree_is_counted_once_after_each_commit() -> None:
    tree = Tree(0)
    tokens = [7] * MAX_NODES
    assert tree.add(0, tokens, tokens, []) == MAX_NODES
    tree.advance([7])
    assert tree.add(1, [8], [1], [7]) == 1
    before = tree.visited
    for token in range(100, 1100):
        assert tree.add(1, [token], [1], [7]) == 0
    assert tree.visited - before == 1000


class Committed(Sequence[int]):
    """A long sequence that counts how much of it is copied."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.copied = 0

    def __len__(self) -> int:
        return self.length

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> list[int]: ...
    def __getitem__(self, at: int | slice) -> int | list[int]:
        if isinstance(at, int):
            return 1
        length = len(range(*at.indices(self.length)))
        self.copied += length
        return [1] * length


def test_an_old_start_is_not_compared_with_a_long_context() -> None:
    committed = Committed(100_000)
    tree = Tree(100_000)
    for _ in range(50):
        assert tree.add(0, [1] * MAX_CHAIN, [1] * MAX_CHAIN, committed) == 0
    assert committed.copied == 0
    assert tree.add(99_990, [1] * 11, [1] * 11, committed) == 1
    assert committed.copied == 10


def chain_cost(chains: Sequence[Chain]) -> int:
    return sum(MESSAGE_NODES + len(chain.tokens) for chain in chains)


@pytest.mark.claim("a-flood-costs-a-step-of-vllm-a-bounded-number-of-nodes")
def test_a_workers_frames_cost_its_request_a_bounded_number_of_nodes() -> None:
    link = WorkersLink()
    link.workers.add("w")
    number = link.open([1, 2, 3])
    stream = link.streams._of[link.engine, number]
    link.engine.received.clear()

    # A path of MAX_DEPTH - 1 nodes, and below it frame after frame of siblings: each is a chain of MAX_DEPTH tokens.
    depth = MAX_DEPTH - 1
    link.streams.post(FrameArrived("w", tree(stream.id, 1, [1, 2, 3], 1, [*range(depth)], [5] * depth)))
    first = depth + 1
    for n in range(8):
        tokens = [*range(1000 + 60 * n, 1060 + 60 * n)]
        link.streams.post(FrameArrived("w", tree(stream.id, 1, [1, 2, 3], first, [depth] * 60, tokens)))
        first += 60
    sent = chain_cost(link.engine.chains())
    assert PASS_NODES - MAX_DEPTH <= sent <= PASS_NODES + MAX_DEPTH + MESSAGE_NODES

    link.streams.tokens(link.engine, Tokens(number, 3, [5]))
    assert 0 < chain_cost(link.engine.chains()) <= PASS_NODES + MAX_DEPTH + MESSAGE_NODES


def test_candidates_beyond_the_bound_are_sent_after_the_next_commit() -> None:
    link = WorkersLink()
    link.workers.add("w")
    number = link.open([1, 2, 3])
    stream = link.streams._of[link.engine, number]
    siblings = [*range(100, 160)]
    link.streams.post(FrameArrived("w", tree(stream.id, 1, [1, 2, 3], 1, [0] * 60, siblings)))
    link.streams.post(FrameArrived("w", tree(stream.id, 1, [1, 2, 3], 61, [60] * 5, [*range(5)])))
    early = {token for chain in link.engine.chains() for token in chain.tokens}
    assert 159 not in early
    link.streams.tokens(link.engine, Tokens(number, 3, [159]))
    late = [chain.tokens for chain in link.engine.chains()]
    assert late == [[token] for token in range(5)]


def test_an_opened_message_twice_is_one_request() -> None:
    link = WorkersLink()
    link.streams.opened(link.engine, Opened(1, ["default"]))
    link.streams.opened(link.engine, Opened(1, ["default"]))
    assert link.streams.open == 1
