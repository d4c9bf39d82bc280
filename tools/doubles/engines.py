"""A target and a local draft over a model without weights. They keep the very tokens that real ones would hold."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Hashable, Sequence

from cloud_gateway.core.policies.policy import Points
from cloud_gateway.core.verify.accept import FlatTree
from cloud_gateway.models.target_model import Pass, Work
from edgespec.core.drafting.algorithm2 import Proposal
from edgespec.core.drafting.ranking import Asked, best_children
from tools.doubles.model import EOS, HASH, HashModel, Model, Rows


class TableTarget:
    """Implements `Target`. A slot holds tokens in place of their keys and values; a batch is one pass."""

    def __init__(
        self,
        slots: int = 4,
        context: int = 512,
        pass_s: float | Callable[[int], float] = 0.003,
        *,
        model: Model = HASH,
        eos: frozenset[int] = frozenset({EOS}),
        kv_tokens: int = sys.maxsize,
    ) -> None:
        """`pass_s`: what a pass takes, or a pass over so many rows."""
        self.kv_tokens = kv_tokens
        self.rooms = dict[int, int]()
        self.vocab_size = model.vocab_size
        self.slots = slots
        self.context = context
        self.model = model
        self.eos = eos
        self.pass_s = pass_s if callable(pass_s) else lambda rows: pass_s
        self.sleep: Callable[[float], object] = time.sleep
        self.held: dict[int, list[int]] = {}
        """Committed tokens by slot, without the last one."""
        self._trees: dict[int, FlatTree] = {}
        self.verified = 0
        """Calls of `verify`."""
        self.passes: Sequence[Pass] = ()

    def open(self, tokens: Sequence[int], scope: bytes = b"", room: int = 0) -> tuple[int, int]:
        """Nothing is ever reused."""
        slot = next((slot for slot in range(self.slots) if slot not in self.held), None)
        if slot is None or sum(self.rooms.values()) + room > self.kv_tokens:
            raise IndexError("no slot is free, or no room")
        self.held[slot], self.rooms[slot] = [], room
        return slot, 0

    def resize(self, slot: int, room: int) -> None:
        """Asserts that the others leave so much."""
        self.rooms[slot] = room
        assert sum(self.rooms.values()) <= self.kv_tokens

    def prefill(self, slot: int, tokens: Sequence[int]) -> None:
        self.held[slot] += tokens

    def verify(self, batch: Sequence[Work]) -> list[Rows]:
        """One pass over all rows, as in the real engines; asserts that they are within the rooms of their slots."""
        for work in batch:
            room = self.rooms[work.slot] or sys.maxsize
            assert len(self.held[work.slot]) + len(work.tree) <= room
        self.verified += 1
        self._trees.update((work.slot, work.tree) for work in batch)
        rows = sum(len(work.tree) for work in batch)
        self.passes = [Pass(rows, self.pass_s(rows))]
        if self.passes[0].seconds > 0:
            self.sleep(self.passes[0].seconds)
        return [Rows(self.model, [*self.held[work.slot], work.tree.tokens[0]], work.tree) for work in batch]

    def keep(self, slot: int, rows: Sequence[int]) -> None:
        """Asserts that they are one path from row 0."""
        tree = self._trees.pop(slot)
        assert rows[0] == 0
        assert all(tree.parents[b] == a for a, b in itertools.pairwise(rows))
        self.held[slot] += [tree.tokens[row] for row in rows]

    def close(self, slot: int) -> None:
        del self.held[slot], self.rooms[slot]
        self._trees.pop(slot, None)


class TableDraft:
    """Implements `DraftModel`; commits of unknown requests and steps over too many leaves fail."""

    def __init__(self, right: float = 0.7, leaves: int = 1, *, model: Model | None = None) -> None:
        """`right`: share of places where the target's best token is this draft's, where no other model is given."""
        self.model = model or HashModel(right=right)
        self.leaves = leaves
        self.passes = 0
        self.together = 64
        self.step_s = 0.0005
        self.token_s = 0.0001
        self.points: Points = ()
        self._tokens: dict[Hashable, list[int]] = {}
        self._read: dict[Hashable, int] = {}

    def open(self, request: Hashable, tokens: Sequence[int], scope: bytes = b"") -> None:
        """Nothing is ever reused."""
        self._tokens[request], self._read[request] = list(tokens), 0

    def commit(self, request: Hashable, tokens: Sequence[int]) -> None:
        """Appends to the request's tokens."""
        self._tokens[request] += tokens

    def backlog(self, request: Hashable) -> int:
        """Tokens that no pass has read."""
        return len(self._tokens[request]) - self._read[request]

    def catch_up(self, request: Hashable, limit: int) -> int:
        """One pass over at most `limit` tokens; returns the backlog."""
        self.passes += 1
        self._read[request] = min(self._read[request] + limit, len(self._tokens[request]) - 1)
        return self.backlog(request)

    def draft(self, asked: Sequence[Asked]) -> list[list[Proposal]]:
        """One pass over the leaves at the ends of these paths."""
        self.passes += 1
        return [self._step(one) for one in asked]

    def _step(self, one: Asked) -> list[Proposal]:
        assert 1 <= len(one.paths) <= self.leaves
        tokens = self._tokens[one.request]
        self._read[one.request] = len(tokens) - 1
        rank = one.rank or best_children
        return [rank(self.model.logits([*tokens, *path]), path, one.width) for path in one.paths]

    def close(self, request: Hashable) -> None:
        del self._tokens[request], self._read[request]
