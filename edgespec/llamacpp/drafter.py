"""The draft model on llama.cpp: one tree-shaped decode per step, KV kept across prunes and requests.

A commit lets the request's trunk share the cells of the tip that contains the committed tokens and drops the tips
beside it, so that no valid KV is evaluated again. Leaves are identified by their tokens below the committed prefix; ()
is its end.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path

from edgespec.core.drafting.algorithm2 import Proposal
from edgespec.core.drafting.ranking import Asked, Rank, TokenPath, best_children
from edgespec.core.drafting.settings import DEFAULTS, MAX_REQUESTS, PREFILL_BATCH
from edgespec.core.errors import ConfigError, EdgespecError
from edgespec.core.eviction import Holding, Kept, first_to_go, gives_way
from edgespec.core.numbers import common_prefix
from edgespec.llamacpp.context import Context, Row
from edgespec.llamacpp.sequences import Leaf, Request, Tip, add_rows
from edgespec.shared.models import model_digest
from edgespec.shared.threads import ONE_CORE_LEFT, ThreadRule, begun, fixed_if
from edgespec.shared.vocabfiles import gguf_vocabulary

log = logging.getLogger(__name__)

IDS_PER_REQUEST = 8
"""Sequence ids per request on average: its trunk, its cached prefix after it is closed, and its tips."""
_MAX_IDS = 256
"""Compiled into llama.cpp. It suffices for 1 id per request and 2 per leaf of a step at the limits of a `Drafter`."""
_CACHE_SHARE = 4
"""Closed requests except the newest keep at most 1/4 of the cells: each cell, even masked, costs time in every step."""


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
    ) -> None:
        """`context`: KV cells, shared by all requests; `sequences`: maximum leaves of a step; `requests`: maximum open;
        `threads`: 0 for as many as `thread_rule` chooses; `gpu_layers`: as of `Context`.

        Raises ModelError (missing, corrupt or unsuitable file, too little memory, no GPU) and ConfigError.
        """
        _require("context", context, 1, 2**20)
        _require("sequences", sequences, 1, 32)
        _require("requests", requests, 1, MAX_REQUESTS)
        _require("prefill_batch", prefill_batch, 1, 2**14)
        _require("threads", threads, 0, 512)

        vocabulary = gguf_vocabulary(path)
        self.tokenizer_digest = vocabulary.digest
        self.name = path.name
        self.model_digest = model_digest(path)
        ids = min(2 * sequences + IDS_PER_REQUEST * requests, _MAX_IDS)
        rule = fixed_if(threads, thread_rule)
        counts = rule.counts()
        self._llama = Context(
            path,
            cells=context,
            sequences=ids,
            batch=prefill_batch,
            threads=counts[0],
            gpu_layers=gpu_layers,
        )
        self.vocab_size = min(len(vocabulary.entries), self._llama.vocab_size)
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
        self._free = list(range(ids))
        use = rule.use(counts, self._llama.use_threads, "draft model")
        self._threads = begun(use, self._try_a_pass, on_gpu=gpu_layers > 0)
        self._now = 0  # counts calls, to know what was used least recently
        log.info("draft model %s: %d tokens of context", path.name, self.context)

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
        opened = Request(list(tokens), self._take_sequence(), scope=scope)
        self._open[request] = opened
        donor = self._reuse(opened)

        # A cached prefix that was used is the newest again.
        if donor in self._closed:
            self._closed.remove(donor)
            self._cache(donor)
        return opened.evaluated

    def _reuse(self, r: Request) -> Request:
        """Shares the KV of the request that has evaluated most of these tokens, which may be itself; returns that.

        Called again before tokens are read: choices of one prompt are opened together, and it is read once.
        """
        requests = (*self._open.values(), *self._closed)
        donor = max(requests, key=lambda other: other.shared_with(r))
        common = donor.shared_with(r)
        if common > r.evaluated:
            self._llama.copy(donor.trunk, r.trunk, r.evaluated, common)
            r.evaluated = common
        return donor

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
            common = common_prefix(tip.path, path)
            if common > matched:
                self._llama.copy(tip.id, r.trunk, base + matched, base + common)
                matched = common

        r.tokens.extend(path)
        r.evaluated += matched

        # A tip below the committed tokens stays, with the rest of its path.
        kept: list[Tip] = []
        for tip in r.tips:
            rest = tip.path[len(path) :]
            if rest and tip.path[: len(path)] == path:
                tip.path = rest
                kept.append(tip)
            else:
                self._drop(tip.id)
        r.tips = kept

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
        self._reuse(r)
        start = r.evaluated
        last = len(r.tokens) - 1
        end = min(last, start + limit)
        if start < end:
            self._now += 1
            self._require_room(end)
            rows = [Row(r.tokens[position], position, (r.trunk,)) for position in range(start, end)]
            self._decode([r], rows)
            r.evaluated = end

        return max(last - r.evaluated, 0)

    def close(self, request: Hashable, *, keep: bool = True) -> None:
        """Closes a request. With `keep` the KV of its committed tokens is cached for later ones of its scope."""
        r = self._open.pop(request)
        for tip in r.tips:
            self._drop(tip.id)

        if keep and r.scope and r.evaluated:
            committed = r.tokens[: r.evaluated]
            self._cache(Request(committed, r.trunk, r.evaluated, scope=r.scope))
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
        self,
        request: Hashable,
        paths: Sequence[TokenPath],
        width: int,
        rank: Rank = best_children,
    ) -> list[Proposal]:
        """Evaluates the leaves and all their missing ancestors in one decode; one proposal per path, in order.

        Raises DraftMemoryError if there is no room although all cached prefixes, all idle tips and the KV of younger
        requests of the scope that holds most were dropped (the caller may close the request or retry); ValueError: no
        or too many leaves, no committed token, a bad token.
        """
        asked = Asked(request, paths, width, rank)
        return self.step_together([asked])[0]

    def step_together(self, asked: Sequence[Asked]) -> list[list[Proposal]]:
        """The same for several requests in one decode, at most `together` leaves; proposals in the order of `asked`.

        Raises as `step` does, for all of them; no KV of an open request is dropped for several.
        """
        requests = [self._open[part.request] for part in asked]
        paths_of = [list(dict.fromkeys(part.paths)) for part in asked]
        for r, paths in zip(requests, paths_of):
            self._check_leaves(r, paths)
            if r.evaluated < len(r.tokens) - 1:
                self._reuse(r)
        if sum(map(len, paths_of)) > self.together:
            raise ValueError(f"a step takes at most {self.together} leaves of all requests")

        # Leaves of all requests are located before any sequence is taken, which may drop an idle tip.
        self._now += 1
        leaves_of = [[self._locate(r, path) for path in paths] for r, paths in zip(requests, paths_of)]
        forks: list[int] = []
        rows: list[Row] = []
        row_of: list[dict[TokenPath, int]] = []
        for r, leaves in zip(requests, leaves_of):
            forks += self._place(r, leaves)
            row_of.append(add_rows(rows, r, leaves))

        try:
            self._decode(requests, rows)
        except Exception:  # whatever failed, the forks hold cells of the cache; the error goes on
            for sequence in forks:
                self._drop(sequence)
            raise

        for r, leaves in zip(requests, leaves_of):
            self._settle(r, leaves)

        return [self._ranked(part, indices) for part, indices in zip(asked, row_of)]

    def _check_leaves(self, r: Request, paths: Sequence[TokenPath]) -> None:
        """Raises ValueError or DraftMemoryError if a step cannot take these leaves of a request."""
        if not r.tokens or not 1 <= len(paths) <= self.sequences:
            raise ValueError(f"a step takes 1 to {self.sequences} leaves below at least one committed token")

        for path in paths:
            self._check(path)
        self._require_room(len(r.tokens) + max(map(len, paths)))

    def _ranked(self, asked: Asked, row_of: Mapping[TokenPath, int]) -> list[Proposal]:
        """The proposals of one request, in the order of its paths."""
        rank = asked.rank or best_children
        ranked: dict[TokenPath, Proposal] = {}
        for path, row in row_of.items():
            logits = self._llama.logits(row)[: self.vocab_size]
            ranked[path] = rank(logits, path, asked.width)

        return [ranked[path] for path in asked.paths]

    def _locate(self, r: Request, path: TokenPath) -> Leaf:
        """Finds the sequence that holds most of a path, and protects it from being dropped during this step."""
        source = None
        matched = 0
        for tip in r.tips:
            common = common_prefix(tip.path, path)
            if common > matched:
                source = tip
                matched = common
        if source is not None:
            source.used = self._now

        held = r.evaluated + matched
        length = len(r.tokens) + len(path)
        return Leaf(path, min(held, length - 1), source, repeated=held == length)

    def _place(self, r: Request, leaves: Sequence[Leaf]) -> list[int]:
        """Gives every leaf a sequence, and returns the forks.

        1. A leaf without tokens, if its row is missing: the trunk.
        2. A leaf whose parent ends a tip that no other leaf has taken: that tip's.
        3. Otherwise a fork of what holds most of its path.
        """
        base = len(r.tokens)
        forks: list[int] = []
        taken: set[int] = set()
        for leaf in leaves:
            if not leaf.path and not leaf.repeated:
                leaf.sequence = r.trunk
                continue

            holder = r.trunk
            if leaf.source is not None:
                holder = leaf.source.id
                ends_at_parent = base + len(leaf.source.path) == leaf.held
                if ends_at_parent and holder not in taken:
                    leaf.sequence = holder
                    taken.add(holder)
                    continue

            leaf.sequence = self._take_sequence()
            forks.append(leaf.sequence)
            self._llama.copy(holder, leaf.sequence, 0, leaf.held)

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

    def _decode(self, askers: Sequence[Request], rows: Sequence[Row]) -> None:
        """One decode for these requests; drops cached prefixes, then idle tips, then the KV of an open request, while
        the cells do not suffice."""
        with self._threads.watched(len(rows)):
            while not self._llama.decode(rows):
                if self._drop_cached() or self._drop_idle_tip() or self._drop_open(askers, len(rows)):
                    continue
                raise DraftMemoryError(f"the draft model's {self._llama.cells} KV cells are full with open requests")

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
        idle: list[tuple[Tip, Request]] = []
        for r in self._open.values():
            idle += [(tip, r) for tip in r.tips if tip.used < self._now]
        if not idle:
            return False

        oldest, r = min(idle, key=lambda entry: (entry[0].used, entry[0].id))
        r.tips.remove(oldest)
        self._drop(oldest.id)
        return True

    def _drop_open(self, askers: Sequence[Request], rows: int) -> bool:
        """Drops the KV of the youngest request of the scope that holds most, which may be read again later; False if
        that is the asker, or several ask."""
        if len(askers) != 1:
            return False

        (asker,) = askers
        requests = list(self._open.values())
        holdings = [Holding(r.owner, r.size, order) for order, r in enumerate(requests)]
        place = requests.index(asker)
        needed = max(asker.size + rows, len(asker.tokens))
        holdings[place] = Holding(asker.owner, needed, place)
        loser = gives_way(holdings, holdings[place])
        if loser is None or loser.order == place:
            return False

        r = requests[loser.order]
        for tip in r.tips:
            self._drop(tip.id)
        self._llama.trim(r.trunk, 0)
        r.tips = []
        r.evaluated = 0
        return True

    def _drop_cached(self, spared: Request | None = None) -> bool:
        """Drops the first cached prefix in eviction order, but never `spared`."""
        kept = [Kept(cached.scope, cached.evaluated, cached.used_at) for cached in self._closed]
        for index in first_to_go(kept, time.monotonic()):
            if self._closed[index] is not spared:
                dropped = self._closed.pop(index)
                self._drop(dropped.trunk)
                return True

        return False

    def _cache(self, kept: Request) -> None:
        """Caches a closed request's KV; drops cached prefixes that it covers, and others beyond the limits.

        It is kept itself, however long it is: the next turn of a conversation mostly follows at once.
        """
        covered = [other for other in self._closed if kept.shared_with(other) == len(other.tokens)]
        for other in covered:
            self._closed.remove(other)
            self._drop(other.trunk)

        kept.used_at = time.monotonic()
        self._closed.append(kept)
        while self._cache_exceeds(kept):
            if not self._drop_cached(spared=kept):
                return

    def _cache_exceeds(self, newest: Request) -> bool:
        """Whether there are too many cached prefixes, or those besides the newest hold too many cells."""
        if len(self._closed) > self.requests:
            return True

        cells = sum(cached.evaluated for cached in self._closed) - newest.evaluated
        return cells > self._llama.cells // _CACHE_SHARE

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


def _require(name: str, value: int, minimum: int, maximum: int) -> None:
    if not minimum <= value <= maximum:
        raise ConfigError(f"`{name}` = {value} is not possible for the draft model: choose {minimum} to {maximum}")
