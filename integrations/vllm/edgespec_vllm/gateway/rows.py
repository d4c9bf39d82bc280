"""Drafts verified through the `/v1/completions` of a vLLM that has no scheduler of ours; pure.

The candidates become a list of prompts: the committed tokens, and these with the path to each candidate. vLLM draws one
token after each, with its own sampler, and what it computed of the common prefix before is in its cache. So the draws
are those that it would have made one by one: the walk follows them from the committed tokens as long as they are
candidates. A call takes longer than a token of a stream, so it is made only if it is expected to pay (`Prices`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from cloud_gateway.core.requests.request import GenerationRequest
from cloud_gateway.core.verify.candidates import CandidateTree
from edgespec.core.drafting.tree import Node
from edgespec_vllm.gateway.bodies import UpstreamError, decode

MAX_ROWS = 16
"""Candidates in one call."""
SIZES = (1, 2, 3, 4, 6, 8, 12, MAX_ROWS)
"""Numbers of candidates that are compared."""
MARGIN = 0.95
"""A call has to take less than this share of the time of the tokens that it is expected to bring."""
SMOOTHING = 0.2
"""Weight of a new sample in a mean."""
FIRST_CALL = 1.5
"""Time of a first call, in tokens of a stream, before one was measured: it is tried if a draft is good."""
CALL_SMOOTHING = 0.5
FORGET_AFTER = 64
FORGET = 0.9
"""After so many looks at candidates that no call was worth, calls are taken to be so much cheaper: vLLM may have become
idle. A call that still does not pay costs some tokens' time in several hundred."""


@dataclass(frozen=True, slots=True)
class Walk:
    """The tokens that the draws of one call commit."""

    tokens: Sequence[int]
    """One at least; the last one is vLLM's own choice after the accepted candidates."""
    accepted: int
    """Candidates among them."""


def can_verify(request: GenerationRequest) -> bool:
    """Whether draws after each prefix have the distribution of the request.

    In a call the committed tokens are part of the prompt. So what counts tokens of the completion alone would be
    another request: penalties for their presence and frequency, grammars, a least length. Log-probabilities are left to
    the stream, which has them in the order of the tokens.
    """
    sampling = request.sampling
    counts = sampling.presence_penalty or sampling.frequency_penalty or request.min_tokens
    return not counts and request.constraint is None and request.row_reader is None


def call(stream: Mapping[str, Any], committed: Sequence[int], nodes: Sequence[Node], root: Node) -> dict[str, Any]:
    """The body of a call, from that of the stream of the same request.

    `nodes`: candidates below `root`, the last committed token; each stands behind its parent.
    """
    prompts = [list(committed)]
    prompts += [[*committed, *node.path(root)] for node in nodes]
    return {**stream, "prompt": prompts, "max_tokens": 1, "stream": False}


def draws_of(body: bytes, count: int, vocab_size: int) -> list[int]:
    """The token drawn after each of `count` prompts. Raises UpstreamError."""
    try:
        found = decode(body).choices
    except msgspec.MsgspecError:
        raise UpstreamError("rows that cannot be read") from None

    draws: dict[int, int] = {}
    for row in found:
        if row.token_ids is None or len(row.token_ids) != 1 or not 0 <= row.token_ids[0] < vocab_size:
            raise UpstreamError("a row without one token of the vocabulary")
        draws[row.index] = row.token_ids[0]
    if sorted(draws) != list(range(count)):
        raise UpstreamError(f"{len(draws)} rows of {count}")

    return [draws[index] for index in range(count)]


def walked(draws: Sequence[int], nodes: Sequence[Node], root: Node) -> Walk:
    """Follows the draws from the root down the candidates: `draws[0]` after the root, `draws[i + 1]` after node i."""
    rows = {node: row for row, node in enumerate(nodes, 1)}
    tokens: list[int] = []
    place = root
    row = 0
    while True:
        token = draws[row]
        tokens.append(token)
        child = place.children.get(token)
        if child is None or child not in rows:
            return Walk(tokens, len(tokens) - 1)
        place = child
        row = rows[child]


@dataclass(slots=True)
class Mean:
    """A running mean of samples, in seconds."""

    value: float | None = None

    def add(self, sample: float, weight: float = SMOOTHING) -> None:
        """One more."""
        self.value = sample if self.value is None else self.value + weight * (sample - self.value)


@dataclass(slots=True)
class Prices:
    """The measured times of this vLLM, of all requests together, and how far to trust each worker's drafts."""

    token: Mean = field(default_factory=Mean)
    """The time between two tokens of a stream."""
    opening: Mean = field(default_factory=Mean)
    """The time from a stream's request to its first token, if its prompt was in the cache but for the last tokens."""
    calls: dict[int, Mean] = field(default_factory=dict)
    """The time of a call, by its number of prompts."""
    not_worth: int = 0
    """Looks at candidates in a row that no call was worth."""
    trust: dict[str, float] = field(default_factory=dict)
    """By the worker's name: candidates that were accepted, for one that was expected to be; 1 before its first call."""

    def called(self, worker: str, rows: int, seconds: float, expected: float, accepted: int) -> None:
        """A call was made: `expected` of the worker's candidates were to be accepted, without `trust`."""
        self.calls.setdefault(rows, Mean()).add(seconds, CALL_SMOOTHING)
        if expected > 0:
            before = self.trust.get(worker, 1.0)
            self.trust[worker] = before + SMOOTHING * (min(accepted / expected, 2.0) - before)

    def call_s(self, rows: int) -> float | None:
        """Seconds of a call of so many prompts; None before anything was measured.

        Of a number that was not tried yet: those of the next smaller one, or else of the least.
        """
        if not self.calls:
            if self.token.value is None:
                return None
            return FIRST_CALL * self.token.value
        smaller = [known for known in self.calls if known <= rows]
        return self.calls[max(smaller) if smaller else min(self.calls)].value

    def choose(self, tree: CandidateTree, worker: str, room: int, *, streaming: bool) -> Sequence[Node]:
        """The candidates to verify now, parents first; none if plain decoding is expected to be as fast.

        Args:
            tree: Candidates after the committed tokens.
            worker: The name of the worker that drafts.
            room: Tokens that the completion may still have.
            streaming: Whether a stream is open, which a call would end.
        """
        if self.token.value is None or room < 2:
            return ()

        best: Sequence[Node] = ()
        best_saving = 0.0
        ordered = [node for node in tree.best(min(MAX_ROWS, room - 1)) if node.position - tree.root.position < room]
        for size in SIZES:
            if size > len(ordered):
                break
            nodes = ordered[:size]
            saving = self._saving(nodes, tree.root, self.trust.get(worker, 1.0), streaming=streaming)
            if saving > best_saving:
                best = nodes
                best_saving = saving

        self.not_worth = 0 if best else self.not_worth + bool(ordered)
        if self.not_worth >= FORGET_AFTER:
            self.not_worth = 0
            for mean in self.calls.values():
                mean.value = None if mean.value is None else FORGET * mean.value
        return best

    def _saving(self, nodes: Sequence[Node], root: Node, trust: float, *, streaming: bool) -> float:
        """Seconds that a call over these candidates is expected to save; negative if it costs some."""
        call_s = self.call_s(1 + len(nodes))
        token_s = self.token.value
        assert call_s is not None and token_s is not None

        accepted = trust * expected(nodes, root)
        plain_s = (1 + accepted) * token_s
        if streaming:  # after the call the next token comes from a new stream, unless more is drafted by then
            again_s = max((self.opening.value or token_s) - token_s, 0.0)
            call_s += again_s / (1 + accepted)
        return MARGIN * plain_s - call_s


def expected(nodes: Sequence[Node], root: Node) -> float:
    """Candidates of these that would be accepted if the draft were the target."""
    return sum(math.exp(root.cost - node.cost) for node in nodes)
