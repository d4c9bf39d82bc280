"""What the engine runs over in the fuzz gate: a target and a draft that are tables, and a worker of random frames."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Hashable, Mapping, Sequence

from cloud_gateway.core.verify.flatten import FlatTree
from cloud_gateway.engine.loop import Engine
from cloud_gateway.engine.offloading import LinkedWorker
from cloud_gateway.models.target_model import Pass, Work
from edgespec.core.drafting.algorithm2 import Proposal
from edgespec.core.drafting.proposals import Rank, TokenPath, best_children
from edgespec.core.errors import RemoteProtocolError
from edgespec.core.protocol.messages import Close, Commit, Open, Tree, check_tree_shape
from edgespec.core.protocol.prefix import Prefix
from tools.fuzz.frames import RandomWorker
from tools.fuzz.model import Rows, TableModel


class TableTarget:
    """`Target` over a table; a slot holds the tokens whose keys and values a real engine would hold."""

    def __init__(self, model: TableModel, slots: int = 4, context: int = 128) -> None:
        self.vocab_size, self.slots, self.context, self.eos = model.vocab_size, slots, context, frozenset({0})
        self._model = model
        self.passes: Sequence[Pass] = ()
        self._held: dict[int, list[int]] = {}
        self._trees: dict[int, FlatTree] = {}

    def open(self, tokens: Sequence[int], scope: bytes = b"") -> tuple[int, int]:
        """Nothing is ever reused."""
        slot = next(slot for slot in range(self.slots) if slot not in self._held)
        self._held[slot] = []
        return slot, 0

    def prefill(self, slot: int, tokens: Sequence[int]) -> None:
        """As the protocol says."""
        self._held[slot] += tokens

    def verify(self, batch: Sequence[Work]) -> list[Rows]:
        """As the protocol says."""
        self.passes = [Pass(len(work.tree), 0.0) for work in batch]
        self._trees |= {work.slot: work.tree for work in batch}
        return [Rows(self._model, [*self._held[work.slot], work.tree.tokens[0]], work.tree) for work in batch]

    def keep(self, slot: int, rows: Sequence[int]) -> None:
        """As the protocol says."""
        tree = self._trees.pop(slot)
        self._held[slot] += [tree.tokens[row] for row in rows]

    def close(self, slot: int) -> None:
        """As the protocol says."""
        del self._held[slot]
        self._trees.pop(slot, None)


class TableDraft:
    """`DraftModel` over a table."""

    step_s, token_s, leaves = 0.0005, 0.0001, 4

    def __init__(self, model: TableModel) -> None:
        self.passes = 0
        self._model = model
        self._tokens: dict[Hashable, list[int]] = {}
        self._seen: dict[Hashable, int] = {}

    def open(self, request: Hashable, tokens: Sequence[int], scope: bytes = b"") -> None:
        """As the protocol says."""
        self._tokens[request], self._seen[request] = list(tokens), 0

    def commit(self, request: Hashable, tokens: Sequence[int]) -> None:
        """As the protocol says."""
        self._tokens[request] += tokens

    def backlog(self, request: Hashable) -> int:
        """As the protocol says."""
        return len(self._tokens[request]) - self._seen[request]

    def catch_up(self, request: Hashable, limit: int) -> None:
        """As the protocol says."""
        self.passes += 1
        self._seen[request] = min(self._seen[request] + limit, len(self._tokens[request]) - 1)

    def draft(
        self, request: Hashable, paths: Sequence[TokenPath], width: int = 1, rank: Rank = best_children
    ) -> list[Proposal]:
        """As the protocol says."""
        self.passes += 1
        tokens = self._tokens[request]
        self._seen[request] = len(tokens) - 1
        return [rank(self._model.logits([*tokens, *path]), path, width) for path in paths]

    def close(self, request: Hashable) -> None:
        """As the protocol says."""
        del self._tokens[request], self._seen[request]


class RandomWorkers:
    """`Workers` with one worker, which answers every message with a random frame that passes the shape checks."""

    def __init__(self, rng: random.Random, vocab_size: int) -> None:
        self.engine: Engine | None = None
        self.punished: list[str] = []
        self._rng, self._vocab_size = rng, vocab_size
        self._open: dict[int, tuple[Open, Prefix, RandomWorker]] = {}

    def linked(self) -> Mapping[str, LinkedWorker]:
        """Always there, as if it had come back at once."""
        return {"w": LinkedWorker("w", 0.002, 0.003, 0.001, paused=False)}

    def send(self, worker: str, body: Open | Commit | Close) -> None:
        """Takes a message, and answers."""
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
        self.engine.frame("w", tree)

    def punish(self, worker: str, error: RemoteProtocolError) -> None:
        """Remembers why; the link of a real worker would end."""
        self.punished.append(error.reason)

    def view(self, worker: str) -> LinkedWorker | None:
        """As `linked`."""
        return self.linked().get(worker)

    def diverged(self, worker: str) -> None:
        """Its frames answer messages; they have no step."""

    def note(self, worker: str, reason: str, text: str) -> None:
        """Nothing to note."""
