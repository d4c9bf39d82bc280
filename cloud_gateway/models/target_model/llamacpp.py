"""The llama.cpp engine: a GGUF model, all requests in one context, the trees of a round in one pass.

A slot is a sequence of llama.cpp, and a row attends to the cells of its sequences. Of a tree each leaf has a sequence:
the deepest one its slot's own, whose cells are the committed tokens, and every other one a copy of that. A row belongs
to the sequences of all leaves below it, so a chain needs no copy. Sharing a prefix between slots, accepting a path and
dropping the rest only change which sequences a cell belongs to. `CellOrder` says when to move the cells together.

`exact`: in llama.cpp on a CPU a row has the same logits in any company if it is not alone in its pass, the pass has at
most MAX_EXACT_ROWS rows (with more, attention works on blocks of cells), and the cells of its sequence ascend with
their positions. So a lone row gets company, and cells are not used again until all are compacted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from cloud_gateway.core.verify.accept import FlatTree
from cloud_gateway.models.headers import MAX_SEQUENCES, spare_sequences
from cloud_gateway.models.settings import DEFAULTS, PREFILL_CHUNK
from cloud_gateway.models.target_model import Pass, Work
from cloud_gateway.models.target_model.cell_order import CellOrder
from cloud_gateway.models.target_model.llamacpp_rows import LlamaCppVerified
from cloud_gateway.models.target_model.slots import (
    HostEntropy,
    SlotTable,
    check_self_test,
    groups,
)
from edgespec.core.errors import ModelError
from edgespec.llamacpp.context import Context, Row
from edgespec.shared.threads import ONE_CORE_LEFT, ThreadRule, begun, fixed_if


@dataclass(frozen=True, slots=True)
class Laid:
    """A tree in a slot: its batch rows, in the tree's order, and its sequences besides the slot's own."""

    rows: Sequence[Row]
    base: int
    """Position of row 0."""
    forks: Sequence[int]

    def holding(self, path: Sequence[int], slot: int) -> tuple[int, int]:
        """A sequence with all rows of `path`, and how many of them the slot's own has."""
        in_slot = sum(slot in self.rows[row].sequences for row in path)
        if in_slot == len(path):
            return slot, in_slot

        last = self.rows[path[-1]]
        return last.sequences[0], in_slot


@dataclass(frozen=True, slots=True)
class Pending:
    """A verified tree of which nothing was kept yet."""

    tree: FlatTree
    laid: Laid
    company: bool
    """Whether other requests were in the same pass."""


def chain(tokens: Sequence[int]) -> FlatTree:
    """A tree with one path."""
    length = len(tokens)
    return FlatTree(tokens, range(-1, length - 1), range(length))


def leaves(tree: FlatTree) -> list[int]:
    """Rows without children, the deepest one first."""
    parents = set(tree.parents)
    childless = [row for row in range(len(tree)) if row not in parents]
    return sorted(childless, key=lambda row: -tree.depths[row])


def lay_out(tree: FlatTree, base: int, slot: int, free: Sequence[int]) -> Laid:
    """The rows of a tree whose row 0 has position `base`; takes a sequence of `free` for each leaf but one."""
    members: list[list[int]] = [[] for _ in tree.tokens]
    ends = leaves(tree)
    forks = free[: len(ends) - 1]
    for row, sequence in zip(ends, (slot, *forks), strict=True):
        while row >= 0:
            members[row].append(sequence)
            row = tree.parents[row]

    rows = [
        Row(token, base + depth, sequences, True)
        for token, depth, sequences in zip(tree.tokens, tree.depths, members, strict=True)
    ]
    return Laid(rows, base, forks)


T = TypeVar("T")
MAX_PASS_ROWS = 256
"""Rows of one pass, unless one tree has more: llama.cpp reserves memory for the logits of all of them."""
MIN_PASS_ROWS = 32
"""As many as loading.py verifies at the start, however small trees and slots are: llama.cpp aborts beyond."""
MAX_EXACT_ROWS = 63
"""Rows that llama.cpp computes at once under `exact`."""
PIECES = (1, 2, 3, 4, 5, 6, 7, 8, 16)
"""Numbers of rows in which the self-test verifies what it verifies at once too, under `exact`."""
_ALL = 2**30
"""A position behind all others."""


def max_pass_rows(slots: int, tree_rows: int) -> int:
    """Rows of one pass: those of all trees, within limits, but at least those of one tree."""
    rows = min(slots * tree_rows, MAX_PASS_ROWS)
    return max(rows, tree_rows, MIN_PASS_ROWS)


class NoRoomError(ModelError):
    """The free cells do not suffice for a pass; nothing has changed."""


class LlamaCppTarget:
    """A target model with KV slots (the Protocol `cloud_gateway.models.target_model.Target`)."""

    def __init__(
        self,
        path: Path,
        *,
        eos: frozenset[int],
        slots: int = DEFAULTS.slots,
        context: int = DEFAULTS.context,
        kv_tokens: int | None = None,
        tree_nodes: int = 64,
        threads: int = 0,
        thread_rule: ThreadRule = ONE_CORE_LEFT,
        gpu_layers: int = 0,
        exact: bool = False,
    ) -> None:
        """`kv_tokens`: cells of all slots together, None for all that they can use; `tree_nodes`: maximum candidates of
        one tree; `threads`: 0 for as many as `thread_rule` chooses; `exact`: on a CPU, gives a
        row the same logits in any company, at a price (docs/numerics.md).

        Raises ModelError if llama.cpp cannot load the file or the model cannot verify trees, ConfigError if slots and
        trees need too many sequences.
        """
        self.exact = exact and not gpu_layers
        """Whether a row's logits are the same in any company, bit for bit: by design and in the self-test."""
        spare = spare_sequences(slots, tree_nodes, exact=self.exact)
        self.kv_tokens = kv_tokens or slots * (context + tree_nodes + 1)
        ids = min(slots + slots * tree_nodes + spare, MAX_SEQUENCES)
        self._forks = list(range(slots, ids - spare))
        self._company = ids - 2
        self._retired = ids - 1
        self._pass_rows = max_pass_rows(slots, tree_nodes + 1)
        batch = max(PREFILL_CHUNK, self._pass_rows)
        if self.exact:
            batch = MAX_EXACT_ROWS

        rule = fixed_if(threads, thread_rule)
        counts = rule.counts()
        self._llama = Context(
            path,
            cells=self.kv_tokens + spare,
            sequences=ids,
            outputs=self._pass_rows + 1,
            batch=batch,
            threads=counts[0],  # until it is measured: others may use the cores
            gpu_layers=gpu_layers,
            exact=self.exact,
        )
        self.context = min(context, self._llama.trained_context)
        self.slots = slots
        self.eos = eos
        self.vocab_size = self._llama.vocab_size
        self._entropy = HostEntropy()
        self._table = SlotTable(slots, capacity=self.kv_tokens)
        self._pending: dict[int, Pending] = {}
        """By slot."""
        self._order = CellOrder(self._llama.cells, skips=not gpu_layers)
        self.passes: Sequence[Pass] = ()
        self._self_test(counts)
        use = rule.use(counts, self._llama.use_threads, "target")
        self._threads = begun(use, self._try_a_pass, on_gpu=gpu_layers > 0)

    def open(self, tokens: Sequence[int], scope: bytes = b"", room: int = 0) -> tuple[int, int]:
        """See `Target.open`; the beginning may also be shared with another slot, even one in use."""
        claim = self._table.claim(tokens, scope, room)
        for slot in claim.evicted:
            self._leave(slot, 0)

        if claim.donor == claim.slot:
            self._leave(claim.slot, claim.reused)
        else:
            self._leave(claim.slot, 0)
            self._llama.copy(claim.donor, claim.slot, 0, claim.reused)
            self._order.shared[claim.slot] = claim.reused
        return claim.slot, claim.reused

    def resize(self, slot: int, room: int) -> None:
        for evicted in self._table.resize(slot, room):
            self._leave(evicted, 0)

    def prefill(self, slot: int, tokens: Sequence[int]) -> None:
        if not tokens:
            return

        base = len(self._table.held(slot))
        self._make_room(len(tokens), reads=True)
        rows = [Row(token, position, (slot,)) for position, token in enumerate(tokens, base)]
        try:
            with self._threads.watched(len(tokens)):
                self._in_order(lambda: self._decode(rows))
        except ModelError:
            self._drop(slot, base)
            raise
        self._table.extend(slot, tokens)

    def verify(self, batch: Sequence[Work]) -> Sequence[LlamaCppVerified]:
        """One forward pass over all trees, or a few if they have more rows than MAX_PASS_ROWS."""
        for work in batch:
            self._discard(work.slot)

        # For all groups at once: after the first one, trees share cells with their slots, and nothing can be moved.
        self._make_room(sum(len(work.tree) for work in batch))
        sizes = [(len(work.tree), len(leaves(work.tree)) - 1) for work in batch]
        cut = groups(sizes, self._pass_rows, len(self._forks))

        results: list[LlamaCppVerified] = []
        passes: list[Pass] = []
        for indices in cut:
            group = [batch[index] for index in indices]
            row_counts = [len(work.tree) for work in group]
            began = time.perf_counter()
            with self._threads.watched(sum(row_counts)):
                logits = self._verify(group)
            passes.append(Pass(len(logits), time.perf_counter() - began))

            if len(cut) > 1:  # the next pass overwrites them
                logits = logits.copy()
            results += self._results(logits, row_counts)

        self.passes = passes
        return results

    def keep(self, slot: int, rows: Sequence[int]) -> None:
        """Keeps these rows of the tree last verified in this slot."""
        pending = self._pending.pop(slot)
        tree = pending.tree
        laid = pending.laid
        refused = len(tree) - len(rows)
        self._order.kept(slot, len(rows), refused, company=pending.company)

        holder, in_slot = laid.holding(rows, slot)
        if in_slot < len(tree):  # a trim looks at every cell
            self._drop(slot, laid.base + in_slot)
        self._llama.copy(holder, slot, laid.base + in_slot, laid.base + len(rows))
        self._release(laid)
        self._table.extend(slot, [tree.tokens[row] for row in rows])

    def close(self, slot: int) -> None:
        self._discard(slot)
        self._table.release(slot)
        if not self._table.held(slot):
            self._leave(slot, 0)

    def idle(self) -> None:
        """To be called when no request waits: may try other numbers of threads."""
        self._threads.idle(self._try_a_pass)

    def _try_a_pass(self) -> None:
        """Over one row, in a sequence and a cell that are free again afterwards."""
        self._llama.decode([Row(0, 0, (self._forks[-1],), True)])
        self._llama.trim(self._forks[-1], 0)

    def shutdown(self) -> None:
        """Frees the model; no other method may be called afterwards."""
        self._llama.close()

    def _verify(self, group: Sequence[Work]) -> NDArray[np.float32]:
        """The logits of all rows of these trees, which stay in their slots; of none of them after an error."""
        for work in group:
            self._discard(work.slot)
        self._make_room(sum(len(work.tree) for work in group))
        return self._in_order(lambda: self._pass(group))

    def _pass(self, group: Sequence[Work]) -> NDArray[np.float32]:
        """See `_verify`. Raises NoRoomError if the free cells do not suffice; no tree is in its slot then."""
        rows: list[Row] = []
        for work in group:
            base = len(self._table.held(work.slot))
            laid = lay_out(work.tree, base, work.slot, self._forks)
            del self._forks[: len(laid.forks)]
            self._pending[work.slot] = Pending(work.tree, laid, len(group) > 1)
            for fork in laid.forks:
                self._llama.copy(work.slot, fork, 0, base)
            rows += laid.rows

        try:
            self._decode(rows)
            return self._llama.all_logits(len(rows))
        except ModelError:
            for work in group:
                self._discard(work.slot)
            raise

    def _results(
        self,
        logits: NDArray[np.float32],
        row_counts: Sequence[int],
    ) -> list[LlamaCppVerified]:
        """A pass's logits, tree by tree."""
        decodes = self._llama.decodes
        copied = logits.base is None

        def valid() -> bool:
            return copied or self._llama.decodes == decodes

        parts = np.split(logits, np.cumsum(row_counts)[:-1])
        return [LlamaCppVerified(part, valid, self._entropy) for part in parts]

    def _decode(self, rows: Sequence[Row]) -> None:
        """Evaluates these rows; a lone one gets company under `exact`. Raises NoRoomError."""
        alone = self.exact and len(rows) % MAX_EXACT_ROWS == 1
        if alone:
            # With logits, as the row has, since the last layer is computed for rows with logits only.
            company = Row(0, 0, (self._company,), rows[-1].wants_logits)
            fits = self._llama.decode([*rows, company])
            self._llama.trim(self._company, 0)  # the last cell, so the next row can use it
        else:
            fits = self._llama.decode(rows)
        if not fits:
            raise NoRoomError(f"llama.cpp has no room for {len(rows)} tokens in {self._llama.cells} cells")

        self._order.filled += len(rows)

    def _make_room(self, rows: int, *, reads: bool = False) -> None:
        """Puts the cells in order if that pays before these rows; `reads`: those of a prompt."""
        live = sum(len(self._table.held(slot)) for slot in range(self.slots))
        if not self._pending and self._order.due(rows, live, exact=self.exact, reads=reads):
            self._compact()

    def _in_order(self, compute: Callable[[], T]) -> T:
        """What `compute` returns; if the cells do not suffice, they are put in order and it is called once more."""
        try:
            return compute()
        except NoRoomError:
            if self._pending:  # trees of this round share cells with their slots, and cannot be moved
                raise
        self._compact()
        return compute()

    def _compact(self) -> None:
        """Moves the cells of all slots to the beginning of the cache."""
        counts = [len(self._table.held(slot)) for slot in range(self.slots)]
        self._llama.compact([slot for slot, count in enumerate(counts) if count])
        self._order.moved(sum(counts))

    def _discard(self, slot: int) -> None:
        """Drops a tree of which nothing was kept."""
        if slot in self._pending:
            laid = self._pending.pop(slot).laid
            self._drop(slot, laid.base)
            self._release(laid)

    def _release(self, laid: Laid) -> None:
        """Frees the sequences of a tree besides its slot's."""
        for fork in laid.forks:
            self._drop(fork, laid.base)
            self._llama.trim(fork, 0)
        self._forks += laid.forks

    def _leave(self, slot: int, start: int) -> None:
        """Drops what a slot held at positions from `start` on."""
        self._order.left(slot, start)
        self._drop(slot, start)

    def _drop(self, sequence: int, start: int) -> None:
        """Removes positions from `start` on from a sequence; under `exact` their cells are not used again."""
        if self.exact:
            self._llama.copy(sequence, self._retired, start, _ALL)
        self._llama.trim(sequence, start)

    def _same_in_pieces(self, counts: Sequence[int]) -> bool:
        """Whether tokens have the same logits verified at once and in pieces, with each of these numbers of threads."""
        total = min(MAX_EXACT_ROWS, self._pass_rows, self.context // 2)
        expected = None
        for count in counts:
            self._llama.use_threads(count)
            for sizes in ((total,), PIECES, PIECES[::-1]):
                logits = self._in_pieces([*sizes, total], total)
                if expected is None:
                    expected = logits
                if not np.array_equal(logits, expected):
                    return False

        return True

    def _in_pieces(self, sizes: Sequence[int], total: int) -> NDArray[np.float32]:
        """The logits of `total` tokens, verified in a slot so many at once, until all are."""
        slot, _ = self.open([0])
        parts = []
        start = 0
        for size in sizes:
            end = min(start + size, total)
            tokens = [1 + i % (self.vocab_size - 1) for i in range(start, end)]
            if tokens:
                parts.append(self._verify([Work(slot, chain(tokens))]).copy())
                self.keep(slot, range(len(tokens)))
            start = end

        self.close(slot)
        return np.concatenate(parts)

    def _self_test(self, counts: Sequence[int]) -> None:
        """Verifies a small tree whole and path by path. Raises ModelError."""
        step = max(self.vocab_size // 7, 1)
        tree = FlatTree(
            tokens=[(1 + i * step) % self.vocab_size for i in range(6)],
            parents=[-1, 0, 0, 2, 1, 3],
            depths=[0, 1, 1, 2, 2, 3],
        )
        slot, _ = self.open([0])
        whole = self._verify([Work(slot, tree)]).copy()

        errors: list[float] = []
        for path in ([0, 1, 4], [0, 2, 3, 5]):
            self._discard(slot)
            tokens = [tree.tokens[row] for row in path]
            alone = self._verify([Work(slot, chain(tokens))])
            for row, logits in zip(path, alone):
                difference = abs(logits - whole[row]).max()
                errors.append(float(difference / whole[row].std()))

        self._discard(slot)
        self.close(slot)
        self.exact = self.exact and max(errors) == 0.0 and self._same_in_pieces(counts)
        try:
            check_self_test(errors)
        except ModelError:
            self.shutdown()
            raise
