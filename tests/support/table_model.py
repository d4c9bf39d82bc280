"""A language model that is a hash function: real bookkeeping, no weights. Any misplaced token changes its answers.

`TableTarget` implements the gateway's target protocol by keeping the very tokens whose keys and values a real engine
would hold; `TableDraft` the local draft; `LoopWorker` a worker with Algorithm 2 that is right as often as asked.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import time
from collections.abc import Hashable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from cloud_gateway.core.verify.flatten import FlatTree
from cloud_gateway.engine.loop import Engine
from cloud_gateway.engine.offloading import LinkedWorker
from cloud_gateway.models.target_model import Pass, Work
from edgespec.core.drafting.algorithm2 import Drafting, DraftRule, Proposal
from edgespec.core.drafting.proposals import Rank, TokenPath, best_children
from edgespec.core.errors import RemoteProtocolError
from edgespec.core.protocol.messages import Close, Commit, Open

VOCAB = 32
EOS = 0


def next_logits(tokens: Sequence[int], vocab: int = VOCAB) -> NDArray[np.float32]:
    """Logits after these tokens: a deterministic function of all of them."""
    digest = hashlib.sha256(np.asarray(tokens, dtype=np.int64).tobytes()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "little")).normal(0, 2.5, vocab).astype(np.float32)


def plain_greedy(prompt: Sequence[int], count: int) -> list[int]:
    """The slow twin: one token at a time, ended after EOS."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + count:
        tokens.append(int(next_logits(tokens).argmax()))
        if tokens[-1] == EOS:
            break
    return tokens[len(prompt) :]


class _Rows:
    def __init__(self, paths: list[list[int]]) -> None:
        self._logits = [next_logits(path) for path in paths]
        self.argmax = [int(row.argmax()) for row in self._logits]

    def entropy(self, row: int) -> float:
        return _entropy(self._logits[row])

    def logits(self, row: int) -> NDArray[np.float32]:
        return self._logits[row]


def _entropy(logits: NDArray[np.float32]) -> float:
    p = np.exp(logits - logits.max())
    p /= p.sum()
    return float(-(p * np.log(p)).sum())


class TableTarget:
    """The target protocol over `next_logits`; `slots` hold token lists."""

    vocab_size, eos = VOCAB, frozenset({EOS})

    def __init__(self, slots: int = 4, context: int = 512, pass_s: float = 0.003) -> None:
        self.slots, self.context, self.pass_s = slots, context, pass_s
        self._held: dict[int, list[int]] = {}
        self._trees: dict[int, FlatTree] = {}
        self.verified = 0
        """Calls of `verify`."""
        self.passes: Sequence[Pass] = ()

    def open(self, tokens: Sequence[int], scope: bytes = b"") -> tuple[int, int]:
        slot = next(i for i in range(self.slots) if i not in self._held)
        self._held[slot] = []
        return slot, 0

    def prefill(self, slot: int, tokens: Sequence[int]) -> None:
        self._held[slot] += tokens

    def verify(self, batch: Sequence[Work]) -> list[_Rows]:
        self.verified += 1
        results, passes = [], []
        for work in batch:  # a pass each, as the torch engine's
            began = time.perf_counter()
            time.sleep(self.pass_s)
            paths: list[list[int]] = []
            for parent, token in zip(work.tree.parents, work.tree.tokens, strict=True):
                paths.append([*(paths[parent] if parent >= 0 else self._held[work.slot]), token])
            self._trees[work.slot] = work.tree
            results.append(_Rows(paths))
            passes.append(Pass(len(work.tree), time.perf_counter() - began))
        self.passes = passes
        return results

    def keep(self, slot: int, rows: Sequence[int]) -> None:
        tree = self._trees.pop(slot)
        assert rows[0] == 0 and all(tree.parents[b] == a for a, b in itertools.pairwise(rows))
        self._held[slot] += [tree.tokens[row] for row in rows]

    def close(self, slot: int) -> None:
        del self._held[slot]
        self._trees.pop(slot, None)


def draft_logits(tokens: Sequence[int], right: float) -> NDArray[np.float32]:
    """A draft's logits: the target's, its best token moved back to third place on a share 1 - `right` of places."""
    logits = next_logits(tokens)
    digest = hashlib.sha256(bytes(int(t) % 256 for t in tokens[-9:])).digest()
    if int.from_bytes(digest[:4], "little") / 2**32 > right:
        best = np.argsort(-logits)[:3]
        logits[np.roll(best, -1)] = logits[best]
    return logits


def propose(tokens: Sequence[int], width: int, right: float) -> Proposal:
    """What such a draft proposes by its plain ranking."""
    return best_children(draft_logits(tokens, right), (), width)


class TableDraft:
    """The local draft's interface; checks that every committed token is passed to it."""

    def __init__(self, right: float = 0.7, leaves: int = 1) -> None:
        self.right, self.leaves, self.passes = right, leaves, 0
        self.step_s, self.token_s = 0.0005, 0.0001
        self._tokens: dict[Hashable, list[int]] = {}
        self._seen: dict[Hashable, int] = {}

    def open(self, request: Hashable, tokens: Sequence[int], scope: bytes = b"") -> None:
        self._tokens[request], self._seen[request] = list(tokens), 0

    def commit(self, request: Hashable, tokens: Sequence[int]) -> None:
        self._tokens[request] += tokens

    def backlog(self, request: Hashable) -> int:
        return len(self._tokens[request]) - self._seen[request]

    def catch_up(self, request: Hashable, limit: int) -> int:
        self.passes += 1
        self._seen[request] = min(self._seen[request] + limit, len(self._tokens[request]) - 1)
        return self.backlog(request)

    def draft(
        self, request: Hashable, paths: Sequence[TokenPath], width: int = 1, rank: Rank = best_children
    ) -> list[Proposal]:
        assert 1 <= len(paths) <= self.leaves
        self.passes += 1
        self._seen[request] = len(self._tokens[request]) - 1
        return [rank(draft_logits([*self._tokens[request], *path], self.right), path, width) for path in paths]

    def close(self, request: Hashable) -> None:
        del self._tokens[request], self._seen[request]


class LoopWorker:
    """A worker in the event loop: messages and frames each take `delay_s`. Also the engine's link layer for it."""

    def __init__(self, delay_s: float = 0.0, right: float = 0.8, step_s: float = 0.0, rule: DraftRule | None = None):
        self.delay_s, self.right, self.step_s = delay_s, right, step_s
        self.rule = rule or DraftRule(branching=2, theta=0.5, sequences=4)
        self.engine: Engine | None = None
        self.up, self.muted = True, False
        self.punished: list[RemoteProtocolError] = []
        self.notes: list[str] = []
        self.diverged_times = 0
        self.tables = 0
        """Times that the table of all workers was made."""
        self.requests: dict[int, Drafting] = {}
        self.seen: list[Open | Commit | Close] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def linked(self) -> Mapping[str, LinkedWorker]:
        self.tables += 1
        view = self.view("w")
        return {"w": view} if view is not None else {}

    def send(self, worker: str, body: Open | Commit | Close) -> None:
        self.seen.append(body)
        asyncio.get_running_loop().call_later(self.delay_s, self._receive, body)

    def punish(self, worker: str, error: RemoteProtocolError) -> None:
        self.punished.append(error)
        self.up = False

    def view(self, worker: str) -> LinkedWorker | None:
        return LinkedWorker("w", 2 * self.delay_s, 2 * self.delay_s, 0.002, paused=False) if self.up else None

    def diverged(self, worker: str) -> None:
        self.diverged_times += 1

    def note(self, worker: str, reason: str, text: str) -> None:
        self.notes.append(reason)

    def die(self) -> None:
        """The machine is gone."""
        self.up = False
        self.requests.clear()
        assert self.engine is not None
        self.engine.worker_down("w", "gone")

    def _receive(self, body: Open | Commit | Close) -> None:
        match body:
            case Open():
                drafting = Drafting(body.request, body.epoch, body.prompt_len, self.rule)
                drafting.commit(0, body.tokens)
                self.requests[body.request] = drafting
                task = asyncio.ensure_future(self._draft(drafting))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            case Commit():
                if body.request in self.requests:
                    self.requests[body.request].commit(body.prefix_len, body.tokens, body.prefix_hash)
            case Close():
                self.requests.pop(body.request, None)

    async def _draft(self, drafting: Drafting) -> None:
        loop = asyncio.get_running_loop()
        while self.requests.get(drafting.request) is drafting:
            leaves = drafting.candidates()
            root, prefix = drafting.tree.root, drafting.prefix.tokens
            found = [propose([*prefix, *leaf.path(root)], self.rule.branching, self.right) for leaf in leaves]
            drafting.record(leaves, found)
            await asyncio.sleep(self.step_s if leaves else 0.001)
            frame = drafting.delta()
            if frame is not None and not self.muted and self.engine is not None:
                loop.call_later(self.delay_s, self.engine.frame, "w", frame)
