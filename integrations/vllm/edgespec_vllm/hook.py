"""What the scheduler subclass does in vLLM's step: opens, drafts, sends commits, closes.

It is written against the few attributes of vLLM's `Request` that `Running` lists, so that its tests need no vLLM.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from edgespec_vllm.board import Board, Terms
from edgespec_vllm.line import USER, Line
from edgespec_vllm.price import BatchLimits, RowPrice
from edgespec_vllm.report import Report

CONSENT = "edgespec_offload"
"""In `vllm_xargs`: the groups of workers that may see the prompt, separated by spaces. Without it no worker does."""
TAG = "edgespec_tag"
"""In `vllm_xargs`: by which a gateway before vLLM names the request."""
MAX_GROUPS = 16
MAX_GROUP = 64
"""Characters of a group's name."""
BOARD = "EDGESPEC_BOARD"
"""The environment variable with the path of the link process's socket."""


class Running(Protocol):
    """What the hook uses of vLLM's `Request`."""

    request_id: str
    sampling_params: Any
    prompt_token_ids: list[int] | None
    mm_features: Any
    resumable: bool
    cache_salt: str | None
    all_token_ids: Sequence[int]
    num_computed_tokens: int
    num_output_tokens: int
    max_tokens: int
    use_structured_output: bool
    spec_token_ids: list[int]


Grammar = Callable[[Any, list[int]], list[int]]
"""vLLM's `StructuredOutputManager.validate_tokens`."""
Validator = Callable[[list[int]], list[int]]
"""The same for one request: the longest prefix of draft tokens that its grammar allows."""


def board_path() -> str:
    """The socket of `cloud-gateway link` of the same user, unless `$EDGESPEC_BOARD` names another one."""
    if path := os.environ.get(BOARD):
        return path
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "edgespec" / "gateway"
    return str((Path(runtime) / "edgespec" if runtime else state) / "board.sock")


def board_user() -> int | None:
    """The user that runs the link process by `$EDGESPEC_BOARD_USER`; None if it is not set. Raises ValueError."""
    name = os.environ.get(USER, "")
    if not name:
        return None
    if name.isdecimal():
        return int(name)

    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        raise ValueError(f"${USER} is {name!r}, which is no user here: give the user's number") from None


def unusable(config: Any) -> str | None:
    """Why a vLLM of this `VllmConfig` verifies no drafts of its scheduler's; None if it does."""
    speculative = config.speculative_config
    if speculative is None or speculative.method != "custom_class":
        method = "none" if speculative is None else repr(speculative.method)
        return f"the speculative method is {method}: give --speculative-config with the method 'custom_class'"
    if getattr(config, "use_v2_model_runner", False):
        return "Model Runner V2 takes drafts on the GPU and ignores the scheduler's: set VLLM_USE_V2_MODEL_RUNNER=0"

    return None


def terms_of(request: Running, *, sampled: bool) -> Terms | None:
    """How a request may be offloaded; None if it may not be.

    None too for what the tokens alone do not determine (images, embeddings, sessions whose input changes), and, if not
    `sampled`, for a temperature above 0.
    """
    params = request.sampling_params
    extra = getattr(params, "extra_args", None) or {}
    consent = extra.get(CONSENT)
    tag = extra.get(TAG)
    tag = tag if isinstance(tag, str) and len(tag) <= MAX_GROUP else ""
    groups = consent.split() if isinstance(consent, str) else []
    if not 0 < len(groups) <= MAX_GROUPS or any(len(group) > MAX_GROUP for group in groups):
        return None
    if not request.prompt_token_ids or request.mm_features or request.resumable:
        return None
    if params.temperature > 0 and not sampled:
        return None

    scope = hashlib.sha256(request.cache_salt.encode()).digest() if request.cache_salt else b""
    return Terms(groups, scope, float(params.temperature), max(int(params.top_k), 0), float(params.top_p), tag)


def admit(chain: Sequence[int], *, vocab_size: int, room: int, grammar: Validator | None = None) -> list[int]:
    """The draft tokens of `chain` that vLLM can verify: before the first id that is none of the target's, at most
    `room` (tokens that the request may still get beside the one that the target adds), as far as `grammar` allows.

    vLLM trusts its own drafters: one token id beyond the vocabulary ends the whole server. That a chain continues the
    committed tokens, and has at most `num_speculative_tokens`, is of the board (`Board.chain`).
    """
    kept = list(takewhile(lambda token: 0 <= token < vocab_size, chain[: max(room, 0)]))
    if not kept or grammar is None:
        return kept

    try:
        return [token for token, _ in takewhile(lambda pair: pair[0] == pair[1], zip(kept, grammar(kept.copy())))]
    except Exception:  # noqa: BLE001  a grammar that fails costs this draft, not the hook
        return []


class Offer(NamedTuple):
    """Drafts of a request that decodes."""

    request: Running
    tokens: list[int]
    chances: list[float]
    """Of each draft after the one before, as its worker says."""
    survival: list[float]
    """Probability that each is accepted."""


class Hook:
    """One engine's hook."""

    def __init__(
        self,
        board: Board,
        *,
        vocab_size: int,
        max_len: int,
        sampled: bool,
        grammar: Grammar,
        limits: BatchLimits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`sampled`: whether this build samples drafted rows rightly (cpu.py); `limits`: most drafts of a request."""
        self.board = board
        self._report = Report(board)
        self._vocab_size = vocab_size
        self._max_len = max_len
        self._sampled = sampled
        self._grammar = grammar
        self._limits = limits
        self._clock = clock
        self._price = RowPrice()
        self._began_s: float | None = None
        """When the step under way began; None if nothing can be drafted in it."""

    def opened(self, request: Running) -> None:
        """A request was added: it goes on the board if it allows that."""
        terms = terms_of(request, sampled=self._sampled)
        if terms is not None:
            self.board.open(request.request_id, request.all_token_ids, terms)

    def draft(self, running: Iterable[Running]) -> None:
        """Before a step is scheduled: gives running requests the candidates that have arrived for them and pay."""
        board = self.board
        if not board.streams:
            self._began_s = None
            return

        self._began_s = self._clock()
        board.receive()
        if not board.drafted:
            return

        decoding = 0
        offers: list[Offer] = []
        for request in running:
            length = len(request.all_token_ids)
            # Else its prompt is not read yet, or it was preempted and is read again.
            decodes = request.num_computed_tokens == length - 1
            decoding += decodes
            if request.request_id not in board.drafted:
                continue

            request.spec_token_ids = []
            if decodes:
                offers.append(self._offer(request, length))

        self._take(offers, decoding)

    def _offer(self, request: Running, length: int) -> Offer:
        """Candidates of a request with so many tokens, as many as it can have verified."""
        chain = self.board.chain(request.request_id)
        if not chain.tokens:
            return Offer(request, [], [], [])

        grammar = self._validator(request) if request.use_structured_output else None
        room = min(self._max_len - length, request.max_tokens - request.num_output_tokens) - 1
        tokens = admit(chain.tokens, vocab_size=self._vocab_size, room=room, grammar=grammar)
        chances = chain.chances[: len(tokens)]
        survival = self.board.chances(request.request_id).survival(chances)
        return Offer(request, tokens, chances, survival)

    def _take(self, offers: Sequence[Offer], decoding: int) -> None:
        """Gives each request as many of its drafts as pay in a step over so many requests."""
        limit = self._limits.of(decoding)
        counts = self._price.allowed(decoding, [offer.survival[:limit] for offer in offers])
        for offer, count in zip(offers, counts):
            if count:
                offer.request.spec_token_ids = offer.tokens[:count]
                self.board.plan(offer.request.request_id, offer.chances[:count])

    def took(self, output: Any) -> None:
        """After a step, with vLLM's `SchedulerOutput`: measures what it took, unless prompts were read in it."""
        if self._began_s is None:
            return

        requests = len(output.num_scheduled_tokens)
        drafts = sum(map(len, output.scheduled_spec_decode_tokens.values()))
        if requests and output.total_num_scheduled_tokens == requests + drafts:
            self._price.measured(requests, drafts, self._clock() - self._began_s)
        self._began_s = None

    def committed(self) -> None:
        """After a step: sends what the target has chosen."""
        now = self._clock()
        self.board.send(now)
        self._report.look(now)

    def closed(self, request: Running) -> None:
        """A request is over."""
        self.board.close(request.request_id)

    def end(self) -> None:
        """The engine stops, or the hook is off."""
        self.board.line.fail("stopped")

    def _validator(self, request: Running) -> Validator:
        return lambda tokens: self._grammar(request, tokens)


def make_hook(config: Any, *, sampled: bool, grammar: Grammar) -> Hook:
    """The hook of one engine by its `VllmConfig`; it connects to the board at once, so that the log shows whether it
    can. Raises ValueError if this vLLM would verify no draft of it."""
    why = unusable(config)
    if why is not None:
        raise ValueError(why)

    vocab_size = config.model_config.get_vocab_size()
    speculative = config.speculative_config
    limit = speculative.num_speculative_tokens
    limits = BatchLimits(getattr(speculative, "num_speculative_tokens_per_batch_size", None), limit)
    line = Line(board_path(), board_user())
    board = Board(line, config.parallel_config.data_parallel_rank, vocab_size, limit)
    max_len = config.model_config.max_model_len
    hook = Hook(board, vocab_size=vocab_size, max_len=max_len, sampled=sampled, grammar=grammar, limits=limits)
    hook.committed()
    return hook
