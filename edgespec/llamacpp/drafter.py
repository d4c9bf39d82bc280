"""The draft model on llama.cpp: one tree-shaped decode per step, KV kept across prunes and requests.

A commit lets the request's trunk share the cells of the tip that contains the committed tokens and drops the tips
beside it, so that no valid KV is evaluated again. Leaves are identified by their tokens below the committed prefix; ()
is its end.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgespec.core.drafting.algorithm2 import Proposal
from edgespec.core.drafting.ranking import Asked, Rank, TokenPath, best_children
from edgespec.core.drafting.settings import DEFAULTS, MAX_REQUESTS, PREFILL_BATCH
from edgespec.core.errors import ConfigError, EdgespecError
from edgespec.core.eviction import Holding, Kept, first_to_go, gives_way
from edgespec.core.numbers import common_prefix
from edgespec.llamacpp.context import Context, Row
from edgespec.llamacpp.sequences import Leaf, Request, Tip, batch_rows
from edgespec.shared.models import model_digest
from edgespec.shared.threads import ONE_CORE_LEFT, ThreadRule, begun, fixed_if
from edgespec.shared.vocabfiles import gguf_vocabulary

IDS_PER_REQUEST = 8
"""Sequence ids per request on average: its trunk, its cached prefix after it is closed, and its tips."""
_MAX_IDS = 256
"""Compiled into llama.cpp. It suffices for 1 id per request and 2 per leaf of a step under all `_LIMITS`."""
_CACHE_SHARE = 4
"""Closed requests except the newest keep at most 1/4 of the cells: each cell, even masked, costs time in every step."""
_LIMITS = {"context": 2**20, "sequences": 32, "requests": MAX_REQUESTS, "prefill_batch": 2**14, "threads": 512}


class DraftMemoryError(EdgespecError):
    """No memory for a request: too many at once, or too long for the context. Other requests are unaffected."""

    exit_code = 71


class DraftTokenError(EdgespecError, ValueError):
    """A token lies outside the draft model's vocabulary; the target's may have more entries, which are unused."""


class Drafter:
    """Evaluates the speculation trees of several requests, several in one decode. Owned by one thread.

    A decode that has begun is not interrupted; `prefill_batch` and `sequences` bound how long it takes.
    """

    def __init__(
        self,
        path: Path,
        *,
        context: int = DEFAULTS.context,
        sequences: int = 4,
        threads: int = 1,
        thread_rule: ThreadRule = ONE_CORE_LEFT,
        gpu_layers: int = 0,
        prefill_batch: int = PREFILL_BATCH,
        requests: int = DEFAULTS.requests,
        log: logging.Logger | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`context`: KV cells, shared by all requests; `sequences`: maximum leaves of a step; `requests`: maximum open;
        `threads`: 0 for as many as `thread_rule` chooses; `gpu_layers`: as of `Context`.

        Raises ModelError (missing, corrupt or unsuitable file, too little memory, no GPU) and ConfigError.
        """
        given = (context, sequences, requests, prefill_batch, threads)
        for (name, most), value in zip(_LIMITS.items(), given, strict=True):
            least = 0 if name == "threads" else 1
            if not least <= value <= most:
                raise ConfigError(f"`{name}` = {value} is not possible for the draft model: choose {least} to {most}")
        vocabulary = gguf_vocabulary(path)
        self.tokenizer_digest = vocabulary.digest
        entries = len(vocabulary.entries)
        self.name = path.name
        self.model_digest = model_digest(path)
        ids = min(2 * sequences + IDS_PER_REQUEST * requests, _MAX_IDS)
        rule = fixed_if(threads, thread_rule)
        counts = rule.counts()
        self._llama = Context(
            path, cells=context, sequences=ids, batch=prefill_batch, threads=counts[0], gpu_layers=gpu_layers
        )
        self.vocab_size = min(entries, self._llama.vocab_size)
        """Without unused entries at the end, of which the target may have fewer: they are never proposed."""
        self.context = min(context, self._llama.trained_context)
        """Maximum tokens of one request: limited by the cells and by the model's trained positions."""
        self.sequences = sequences
        self.prefill_batch = prefill_batch
        self.requests = requests
        self.together = (ids - requests) // 2
        """Maximum leaves of all requests in one step: each may take a sequence beside that which it is forked from."""
        self.passes = 0
        """Calls of llama_decode so far."""
        self.rows = 0
        """Tokens evaluated so far."""
        self._open: dict[Hashable, Request] = {}
        self._closed: list[Request] = []
        self._clock = clock
        self._free = list(range(ids))
        use = rule.use(counts, self._llama.use_threads, "draft model")
        self._threads = begun(use, self._try_a_pass, on_gpu=gpu_layers > 0)
        self._now = 0  # counts calls, to know what was used least recently
        (log or logging.getLogger(__name__)).info("draft model %s: %d tokens of context", path.name, self.context)

    # --- requests ------------------------------------------------------------------------------------------------

    def open(self, request: Hashable, tokens: Sequence[int], scope: bytes = b"") -> int:
        """Opens a request with the committed tokens so far. No model work.

        Returns how many tokens' KV it shares with another request, open or closed, of the same `scope` and with a
        common prefix; 0 for an empty scope. Raises DraftMemoryError: too many open requests, or too long; ValueError:
        open already, token outside the vocabulary.
        """
        if request in self._open:
            raise ValueError(f"request {request} is open already")

        self._check(tokens)
        self._require_room(len(tokens))
        if len(self._open) >= self.requests:
            raise DraftMemoryError(f"the draft model serves {self.requests} requests already")

        self._now += 1
        opened = self._open[request] = Request(list(tokens), self._take_sequence(), scope=scope)
        alike = self._share(opened)
        if alike in self._closed:
            self._closed.remove(alike)
            self._cache(alike)
        return opened.evaluated

    def _share(self, r: Request) -> Request:
        """Shares the KV of the request that has evaluated most of these tokens, which may be itself; returns that.

        Called again before tokens are read: choices of one prompt are opened together, and it is read once.
        """
        known = (*self._open.values(), *self._closed)
        shared, alike = max(((one.shared_with(r), one) for one in known), key=lambda pair: pair[0])
        if shared > r.evaluated:
            self._llama.copy(alike.trunk, r.trunk, r.evaluated, shared)
            r.evaluated = shared
        return alike

    def commit(self, request: Hashable, tokens: Sequence[int]) -> int:
        """Extends the committed prefix; KV along it is kept, tips beside it are dropped. No model work.

        Returns how many of the tokens were evaluated before. Raises ValueError: a token outside the vocabulary.
        """
        self._check(tokens)
        r = self._open[request]
        path = tuple(tokens)
        base = len(r.tokens)
        matched = 0
        for tip in r.tips:
            if (common := common_prefix(tip.path, path)) > matched:
                self._llama.copy(tip.id, r.trunk, base + matched, base + common)
                matched = common
        r.tokens.extend(path)
        r.evaluated += matched
        tips = r.tips
        r.tips = []
        for tip in tips:
            if len(tip.path) > len(path) and tip.path[: len(path)] == path:
                tip.path = tip.path[len(path) :]
                r.tips.append(tip)
            else:
                self._drop(tip.id)

        return matched

    def backlog(self, request: Hashable) -> int:
        """Committed tokens, the last one included, whose KV is missing: `step` would evaluate them with its leaves."""
        r = self._open[request]
        return len(r.tokens) - r.evaluated

    def catch_up(self, request: Hashable, limit: int) -> int:
        """Evaluates at most `limit` pending tokens in one batch, but never the last one, whose logits a step needs.

        Returns how many remain: a long prompt is split into batches, so that other requests and commits are served
        between them (WANSpec section 4.5). Raises DraftMemoryError as `step` does.
        """
        r = self._open[request]
        self._share(r)
        start = r.evaluated
        end = min(len(r.tokens) - 1, r.evaluated + limit)
        if start < end:
            self._now += 1
            self._require_room(end)
            self._decode(r, [Row(r.tokens[i], i, (r.trunk,)) for i in range(start, end)])
            r.evaluated = end
        return max(len(r.tokens) - 1 - r.evaluated, 0)

    def close(self, request: Hashable, *, keep: bool = True) -> None:
        """Closes a request. With `keep` the KV of its committed tokens is cached for later ones of its scope."""
        r = self._open.pop(request)
        for tip in r.tips:
            self._drop(tip.id)
        if keep and r.scope and r.evaluated:
            self._cache(Request(r.tokens[: r.evaluated], r.trunk, r.evaluated, scope=r.scope))
        else:
            self._drop(r.trunk)

    def idle(self) -> None:
        """To be called when no request is open: may try other numbers of threads."""
        self._threads.idle(self._try_a_pass)

    def shutdown(self) -> None:
        """Frees the model; no other method may be called afterwards."""
        self._open.clear()
        self._closed.clear()
        self._llama.close()

    # --- drafting ------------------------------------------------------------------------------------------------

    def step(
        self, request: Hashable, paths: Sequence[TokenPath], width: int, rank: Rank = best_children
    ) -> list[Proposal]:
        """Evaluates the leaves and all their missing ancestors in one decode; one proposal per path, in order.

        Raises DraftMemoryError where there is no room although all cached prefixes, all idle tips and the KV of younger
        requests of the scope that holds most were dropped (the caller may close the request or retry); ValueError: no
        or too many leaves, no committed token, a bad token.
        """
        return self.step_together([Asked(request, paths, width, rank)])[0]

    def step_together(self, asked: Sequence[Asked]) -> list[list[Proposal]]:
        """The same for several requests in one decode, at most `together` leaves; proposals in the order of `asked`.

        Raises as `step` does, for all of them; no KV of an open request is dropped for several.
        """
        parts = [(one, self._open[one.request], list(dict.fromkeys(one.paths))) for one in asked]
        for _, r, unique in parts:
            if not r.tokens or not 1 <= len(unique) <= self.sequences:
                raise ValueError(f"a step takes 1 to {self.sequences} leaves below at least one committed token")
            self._check([token for path in unique for token in path])
            self._require_room(len(r.tokens) + max(map(len, unique)))
            if r.evaluated < len(r.tokens) - 1:
                self._share(r)
        if sum(len(unique) for *_, unique in parts) > self.together:
            raise ValueError(f"a step takes at most {self.together} leaves of all requests")

        self._now += 1
        located = [(one, r, [self._locate(r, path) for path in unique]) for one, r, unique in parts]
        forks = list[int]()
        rows = list[Row]()
        row_of = list[dict[TokenPath, int]]()
        for _, r, leaves in located:
            forks += self._place(r, leaves)
            more, indices = batch_rows(r, leaves)
            row_of.append({path: len(rows) + index for path, index in indices.items()})
            rows += more
        try:
            self._decode(parts[0][1] if len(parts) == 1 else None, rows)
        except Exception:  # whatever failed, the forks hold cells of the cache; the error goes on
            for sequence in forks:
                self._drop(sequence)
            raise
        for _, r, leaves in located:
            self._settle(r, leaves)

        return [self._ranked(one, indices) for one, indices in zip(asked, row_of, strict=True)]

    def _ranked(self, one: Asked, row_of: Mapping[TokenPath, int]) -> list[Proposal]:
        rank = one.rank or best_children
        ranked = {path: rank(self._logits(row), path, one.width) for path, row in row_of.items()}
        return [ranked[path] for path in one.paths]

    def _logits(self, row: int) -> NDArray[np.float32]:
        return self._llama.logits(row)[: self.vocab_size]

    def _locate(self, r: Request, path: TokenPath) -> Leaf:
        """Finds the sequence that holds most of a path, and protects it from being dropped during this step."""
        source = None
        common = 0
        for tip in r.tips:
            if (shared := common_prefix(tip.path, path)) > common:
                source = tip
                common = shared
        if source is not None:
            source.used = self._now
        held = r.evaluated + common
        length = len(r.tokens) + len(path)
        return Leaf(path, min(held, length - 1), source, repeated=held == length)

    def _place(self, r: Request, leaves: Sequence[Leaf]) -> list[int]:
        """A sequence for every leaf: the trunk, the tip that ends at its parent, or a fork; returns the forks."""
        forks: list[int] = []
        taken: set[int] = set()
        for leaf in leaves:
            tip = leaf.source
            if not leaf.path and not leaf.repeated:
                leaf.sequence = r.trunk
            elif tip is not None and len(r.tokens) + len(tip.path) == leaf.held and tip.id not in taken:
                leaf.sequence = tip.id
                taken.add(tip.id)
            else:
                leaf.sequence = self._take_sequence()
                forks.append(leaf.sequence)
                self._llama.copy(r.trunk if tip is None else tip.id, leaf.sequence, 0, leaf.held)

        return forks

    def _settle(self, r: Request, leaves: Sequence[Leaf]) -> None:
        """After a decode: the leaves' sequences become tips."""
        r.evaluated = len(r.tokens)
        known = {tip.id: tip for tip in r.tips}
        for leaf in leaves:
            if leaf.repeated:
                self._drop(leaf.sequence)
            elif leaf.sequence in known:
                known[leaf.sequence].path = leaf.path
            elif leaf.sequence != r.trunk:
                r.tips.append(Tip(leaf.sequence, leaf.path, self._now))

    def _decode(self, asker: Request | None, rows: Sequence[Row]) -> None:
        """One decode; drops cached prefixes, then idle tips, then the KV of an open request, while the cells do not
        suffice. `asker`: the only request in it."""
        with self._threads.watched(len(rows)):
            while not self._llama.decode(rows):
                if not (self._drop_cached() or self._drop_idle_tip() or self._drop_open(asker, len(rows))):
                    raise DraftMemoryError(
                        f"the draft model's {self._llama.cells} KV cells are full with open requests"
                    )
        self.passes += 1
        self.rows += len(rows)

    # --- sequences and cells -------------------------------------------------------------------------------------

    def _take_sequence(self) -> int:
        """A free sequence id; drops the tip that was idle longest if there is none, then a cached prefix.

        There always is one: open requests, one step's leaves and their sources do not need all ids.
        """
        if not self._free and not self._drop_idle_tip():
            self._drop_cached()
        return self._free.pop()

    def _drop(self, sequence: int) -> None:
        self._llama.trim(sequence, 0)
        self._free.append(sequence)

    def _drop_idle_tip(self) -> bool:
        """Drops the tip that was idle longest, of whatever request, unless this call needs it."""
        idle = [(tip.used, tip.id, r) for r in self._open.values() for tip in r.tips if tip.used < self._now]
        if not idle:
            return False

        _, sequence, r = min(idle, key=lambda entry: entry[:2])
        r.tips = [tip for tip in r.tips if tip.id != sequence]
        self._drop(sequence)
        return True

    def _drop_open(self, asker: Request | None, rows: int) -> bool:
        """Drops the KV of the youngest request of the scope that holds most, which may be read again later; False where
        that is the asker, or several ask."""
        if asker is None:
            return False

        open_ = list(self._open.values())
        needs = max(asker.size + rows, len(asker.tokens))
        held = [Holding(r.owner, needs if r is asker else r.size, order) for order, r in enumerate(open_)]
        loser = gives_way(held, held[open_.index(asker)])
        if loser is None or (r := open_[loser.order]) is asker:
            return False

        for tip in r.tips:
            self._drop(tip.id)
        self._llama.trim(r.trunk, 0)
        r.tips = []
        r.evaluated = 0
        return True

    def _drop_cached(self, spared: Request | None = None) -> bool:
        """Drops the first cached prefix in eviction order, but never `spared`."""
        kept = [Kept(c.scope, c.evaluated, c.used_at) for c in self._closed]
        for i in first_to_go(kept, self._clock()):
            if self._closed[i] is not spared:
                self._drop(self._closed.pop(i).trunk)
                return True
        return False

    def _cache(self, kept: Request) -> None:
        """Caches a closed request's KV; drops cached prefixes that it covers, and others beyond the limits.

        It is kept itself, however long it is: the next turn of a conversation mostly follows at once.
        """
        for other in [c for c in self._closed if kept.shared_with(c) == len(c.tokens)]:
            self._closed.remove(other)
            self._drop(other.trunk)
        kept.used_at = self._clock()
        self._closed.append(kept)
        most = self._llama.cells // _CACHE_SHARE
        while len(self._closed) > self.requests or sum(c.evaluated for c in self._closed) - kept.evaluated > most:
            if not self._drop_cached(spared=kept):
                return

    def _try_a_pass(self) -> None:
        """Over one row, in a sequence and a cell that are free again afterwards."""
        sequence = self._take_sequence()
        self._llama.decode([Row(0, 0, (sequence,), True)])
        self._drop(sequence)

    def _require_room(self, tokens: int) -> None:
        if tokens > self.context:
            raise DraftMemoryError(f"{tokens} tokens are more than the draft model's context of {self.context}")

    def _check(self, tokens: Sequence[int]) -> None:
        if tokens and not 0 <= min(tokens) <= max(tokens) < self.vocab_size:
            raise DraftTokenError(f"a token lies outside the draft model's vocabulary of {self.vocab_size}")
