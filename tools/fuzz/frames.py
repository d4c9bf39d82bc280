"""Frames of a worker that keeps to the shape checks and to nothing else."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass

from cloud_gateway.core.requests.events import FrameArrived
from cloud_gateway.core.requests.router import LinkedWorker
from edgespec.core.protocol.digests import Prefix
from edgespec.core.protocol.messages import (
    MAX_COST,
    MAX_LEAVES,
    MAX_MICROS,
    MAX_POINTS,
    ROOT,
    Close,
    Commit,
    Open,
    StepTimes,
    ToWorker,
    Tree,
    check_tree_shape,
    max_entropy,
)
from tools.doubles.workers import OneWorker

MAX_NODES = 14
"""Of most frames; a few have 64, the most that the shape checks let in."""


def step_times(rng: random.Random) -> StepTimes:
    """Any curve that the wire lets in, of steps that take no time, a minute, or longer with fewer leaves."""
    leaves = sorted({1, *rng.sample(range(1, MAX_LEAVES + 1), rng.randrange(MAX_POINTS))})
    micros = [rng.choice((1, MAX_MICROS, round(10 ** rng.uniform(2, 5)))) for _ in leaves]
    return StepTimes(leaves[:MAX_POINTS], micros[:MAX_POINTS])


@dataclass(slots=True)
class RandomWorker:
    """One epoch of a worker. It knows the answer, which it follows as often as not, so that its nodes are reached."""

    rng: random.Random
    vocab_size: int
    answer: Sequence[int]
    """Prompt and answer, as plain decoding gives them; empty where that is not known."""
    next_id: int = 1

    def frame(self, prefix: Prefix, starts: Sequence[int]) -> Tree:
        """New nodes after one of the prefixes that ended at `starts`; mostly the newest."""
        rng = self.rng
        length = starts[-1] if rng.random() < 0.8 else rng.choice(starts)
        digest = prefix.digest_at(length) if rng.random() < 0.98 else rng.randbytes(32)
        first = self.next_id if rng.random() < 0.99 else rng.choice((1, self.next_id + 1, 2**32 - 1))
        kind = rng.random()
        if kind < 0.02:  # a chain below the node before, mostly deeper than the protocol allows
            tokens = [rng.randrange(self.vocab_size) for _ in range(64)]
            parents = list(range(first - 1, first + 63))
        else:
            parents, tokens = self._nodes(first, 64 if kind < 0.04 else rng.randint(1, MAX_NODES), length)
        self.next_id = first + len(tokens)
        costs = [self._cost() for _ in tokens]
        highest = max_entropy(self.vocab_size)
        entropies = [rng.choice((0, 1, highest, rng.randint(0, highest))) for _ in tokens]
        return Tree(1, 1, length, digest, first, parents, tokens, costs, entropies)

    def _nodes(self, first: int, count: int, length: int) -> tuple[list[int], list[int]]:
        """Parents before children, no token twice under one parent."""
        rng = self.rng
        answer = self.answer
        parents: list[int] = []
        tokens: list[int] = []
        seen: set[tuple[int, int]] = set()
        right, depth = ROOT, length  # the end of the right path in this frame, and the position that follows it
        for i in range(count):
            follows = rng.random() < 0.5 and depth < len(answer)
            parent = right if follows else rng.choice((ROOT, rng.randint(max(0, first + i - 12), first + i - 1)))
            token = answer[depth] if follows else rng.randrange(self.vocab_size)
            if (parent, token) in seen:
                parent = first + i - 1
                token = rng.randrange(self.vocab_size)
                follows = False
            if (parent, token) in seen:
                break
            seen.add((parent, token))
            parents.append(parent)
            tokens.append(token)
            if follows:
                right = first + i
                depth = depth + 1

        return parents or [ROOT], tokens or [rng.randrange(self.vocab_size)]

    def _cost(self) -> int:
        return self.rng.choice((0, 1, 50, 700, MAX_COST, self.rng.randint(0, 5000), self.rng.randint(0, MAX_COST)))


class RandomLink(OneWorker):
    """A linked worker that answers every message with a random frame, and is back at once when it is punished."""

    def __init__(self, rng: random.Random, vocab_size: int) -> None:
        super().__init__(LinkedWorker("w", 0.002, 0.003, 0.001, paused=False), returns=True)
        self._rng = rng
        self._vocab_size = vocab_size
        self._open: dict[int, tuple[Open, Prefix, RandomWorker]] = {}

    def send(self, worker: str, bodies: Sequence[ToWorker]) -> None:
        """Takes messages, and answers each."""
        for body in bodies:
            self._take(body)

    def _take(self, body: ToWorker) -> None:
        match body:
            case Open():
                drafting = RandomWorker(self._rng, self._vocab_size, ())
                self._open[body.request] = body, Prefix(body.tokens), drafting
            case Commit() if body.request in self._open:
                self._open[body.request][1].extend(body.tokens)
            case Close():
                self._open.pop(body.request, None)
        if body.request in self._open:
            asyncio.get_running_loop().call_soon(self._answer, *self._open[body.request])

    def _answer(self, opening: Open, prefix: Prefix, drafting: RandomWorker) -> None:
        frame = drafting.frame(prefix, [len(prefix)])
        columns = frame.first, frame.parents, frame.tokens, frame.costs, frame.entropies
        tree = Tree(opening.request, opening.epoch, frame.prefix_len, frame.prefix_hash, *columns)
        check_tree_shape(tree, self._vocab_size)
        assert self.engine is not None
        self.engine.post(FrameArrived("w", tree))
