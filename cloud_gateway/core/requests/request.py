"""What a client asks for and what comes back, between the API and the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from edgespec.core.errors import EdgespecError
from edgespec.core.pairing.groups import DEFAULT_GROUPS
from edgespec.core.protocol.messages import Sampling

Offload = Literal["auto", "never"]
Method = Literal["shared-noise", "rejection"]
"""How sampled tokens are verified (cloud_gateway/core/verify/verification.py)."""
Finish = Literal["stop", "length", "cancelled", "error"]


class ConstraintError(EdgespecError):
    """This answer's constraint leaves no token; it ends with an error, and no other answer does."""


class Constraint(Protocol):
    """What one answer may say, token by token (a grammar's place). Its own object for each answer."""

    def __call__(self, path: Sequence[int]) -> NDArray[np.bool_] | None:
        """A mask over the vocabulary of what may follow the committed tokens and then `path`; None allows all.

        Raises ConstraintError where nothing may.
        """

    def allowed(self, path: Sequence[int]) -> int:
        """How many tokens of `path`, one by one, may follow the committed ones, the end of the answer aside."""

    def forced(self, path: Sequence[int]) -> Sequence[int]:
        """Tokens that are all but certain to come after the committed ones and then `path`; none where it is broken."""

    def committed(self, tokens: Sequence[int]) -> None:
        """The answer has grown by these tokens. Raises ConstraintError where they break it."""


@dataclass(frozen=True, slots=True)
class Speculation:
    """How one request may be sped up. None means: as the gateway's configuration says."""

    policy: str | None = None
    """`wanspec`, `adaptive`, `colocated`, `plain`."""
    k: int | None = None
    phi: float | None = None
    offload: Offload = "auto"
    verification: Method | None = None


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One answer to generate. `tokens` is the rendered prompt."""

    tokens: Sequence[int]
    max_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    stop: Sequence[str] = ()
    ignore_eos: bool = False
    speculation: Speculation = field(default_factory=Speculation)
    constraint: Constraint | None = None
    cache_scope: bytes = b""
    """Requests of equal scope may continue each other's prefixes in every model's cache; empty: this one none."""
    top_logprobs: int | None = None
    """So many alternatives to report for each token, 0 for the token's own log-probability alone; None: nothing."""
    key: str = ""
    """Id of the API key that asks; keys take turns (cloud_gateway/core/limits/turns.py)."""
    id: str = ""
    """Of the API request (its `x-request-id`), for the audit log."""
    key_name: str = ""
    groups: frozenset[str] = frozenset(DEFAULT_GROUPS)
    """Groups of workers that may draft for it, where `speculation.offload` allows any."""
    most_running: int | None = None
    """Slots that this key may hold at once; None for all."""


@dataclass(slots=True)
class Usage:
    """What an answer cost and who helped; becomes `usage.edgespec` in the API."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    rounds: int = 0
    """Verify passes of the target after the prefill."""
    drafted: dict[str, int] = field(default_factory=dict)
    """Candidate tokens verified, by source (`worker`, `local`, `grammar`)."""
    accepted: dict[str, int] = field(default_factory=dict)
    """Candidate tokens that the target emitted too, by source."""
    local_draft_passes: int = 0
    """Forward passes of a draft model at the gateway."""
    frames: dict[str, int] = field(default_factory=lambda: {"received": 0, "used": 0, "stale": 0, "rejected": 0})
    fallbacks: int = 0
    """Times that the controller took up drafting itself while a worker was there."""
    policy: str = "plain"
    verification: Method = "shared-noise"
    why_off: str | None = None
    """Why speculation, or offloading, was off; None while it was on."""
    workers: list[str] = field(default_factory=list)
    """Names of the workers that were given the prompt, first one first."""
    why: str | None = None
    """Why the gateway drafted though a worker was there, where the policy says so."""
    queued_s: float = 0.0
    prefill_s: float = 0.0
    local_s: float = 0.0
    """Time of the local draft's passes, its catch-up included."""
    decode_s: float = 0.0
    """From the first token to the last."""
    before_worker_s: float = 0.0
    """From the first token to the worker's first useful frame: until then it was reading the prompt."""
    before_worker_tokens: int = 0
    """Tokens of the answer at that moment."""
    total_s: float = 0.0
    """From the slot to the last token: prompt and answer."""
    host_s: float = 0.0
    """Gateway time in rounds outside the models' passes."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural log-probabilities of the target's own distribution: raw logits, temperature 1, no constraint."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """The most probable tokens with theirs, best first; of equals the lower token first."""


class TokensEvent(Struct, frozen=True):
    """New answer tokens, at least one."""

    tokens: Sequence[int]
    logprobs: Sequence[TokenLogprob] | None = None
    """One for each token, where the request asked for them."""


class DoneEvent(Struct, frozen=True):
    """The end of an answer. `error` is one sentence where `finish` is `error`."""

    finish: Finish
    usage: Usage
    error: str | None = None


Event = TokensEvent | DoneEvent
