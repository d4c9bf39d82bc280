"""What a client asks for and what comes back, between the API and the engine; and what the operator allows of it.

Names, ranges and defaults of these keys of [api] stand here only; configs/gateway.toml explains each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from cloud_gateway.core.policies.policy import LearntLimit
from cloud_gateway.core.policies.settings import K, Phi, PolicySettings, Prefer
from cloud_gateway.core.sources.interface import RequestSource
from cloud_gateway.core.verify.interface import Constraint, RowReader
from edgespec.core.errors import ClientError
from edgespec.core.pairing.groups import DEFAULT_GROUPS
from edgespec.core.protocol.messages import Sampling

Offload = Literal["auto", "never"]
Finish = Literal["stop", "length", "cancelled", "error"]


class Speculation(Struct, frozen=True):
    """How one request is drafted and verified; the API's `edgespec`. None means: as the gateway is configured."""

    policy: str | None = None
    """One of `Choices.policies`."""
    k: Annotated[int, K.meta] | None = None
    phi: Phi | None = None
    prefer: Prefer | None = None
    sources: tuple[str, ...] | None = None
    offload: Offload | None = None
    verification: str | None = None

    def over(self, configured: PolicySettings) -> PolicySettings:
        """The configured settings with the fields that the request replaces."""
        names = {"policy": "name", **{name: name for name in ("k", "phi", "prefer", "sources", "verification")}}
        asked = {own: getattr(self, name) for name, own in names.items()}
        return replace(configured, **{name: value for name, value in asked.items() if value is not None})


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One answer to generate. `tokens` is the rendered prompt."""

    tokens: Sequence[int]
    max_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    stop: Sequence[str] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    """Of so many tokens none is one that ends a completion; `stop` ends it all the same."""
    speculation: Speculation = field(default_factory=Speculation)
    brought: Sequence[RequestSource] = ()
    """Sources of candidates that its parameters bring."""
    constraint: Constraint | None = None
    cache_scope: bytes = b""
    """Requests of equal scope may continue each other's prefixes in every model's cache; empty: this one none."""
    row_reader: RowReader | None = None
    key: str = ""
    """Id of the API key that asks; keys take turns (cloud_gateway/core/limits/turns.py)."""
    id: str = ""
    """Of the API request (its `x-request-id`), for the audit log."""
    key_name: str = ""
    groups: frozenset[str] = frozenset(DEFAULT_GROUPS)
    """Groups of workers that may draft for it, where `speculation.offload` allows any."""
    barred: str = ""
    """Why its API key may use no worker; empty if it may."""
    learn: bool = False
    """Whether workers that draft for it may keep its text to learn from it."""
    max_running: int | None = None
    """Slots that this key may hold at once; None for all."""

    @property
    def why_off(self) -> str | None:
        """Why no worker may draft for it, whatever its policy; None if workers may."""
        if self.speculation.offload != "never":
            return None
        return self.barred or "the request asked for it"


@dataclass(slots=True)
class Times:
    """Seconds of one completion."""

    queued_s: float = 0.0
    prefill_s: float = 0.0
    local_s: float = 0.0
    """Time of the local draft's passes, its catch-up included."""
    decode_s: float = 0.0
    """From the end of the prompt's reading to the last token: every pass that gave tokens is in it."""
    before_worker_s: float = 0.0
    """From there to the first useful frame of a worker; 0 where that came before the first token."""
    total_s: float = 0.0
    """From the slot to the last token: prompt and answer."""
    host_s: float = 0.0
    """Gateway time in rounds outside the models' passes."""


@dataclass(slots=True)
class Usage:
    """What an answer cost and who helped; becomes `usage.edgespec` in the API."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    rounds: int = 0
    """Verify passes of the target after the prefill."""
    undrafted_rounds: int = 0
    """Those of them that verified candidates, and none that a draft model proposed."""
    drafted: dict[str, int] = field(default_factory=dict)
    """Candidate tokens verified, by source (`worker`, `local`, `grammar`, or of `SOURCES`, or one that
    the request brought), a draft first."""
    accepted: dict[str, int] = field(default_factory=dict)
    """Candidate tokens that the target emitted too, by source."""
    sources: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Of each source without a draft model: candidates `proposed`, `verified`, `accepted`, those that drafts proposed
    too included, the `seconds` that asking it took, and `why` it proposed nothing when last asked (None: it did)."""
    local_draft_passes: int = 0
    """Forward passes of a draft model at the gateway."""
    frames: dict[str, int] = field(default_factory=lambda: {"received": 0, "used": 0, "stale": 0, "rejected": 0})
    fallbacks: int = 0
    """Times that the controller took up drafting itself while a worker was there."""
    guard: dict[str, dict[str, int]] = field(default_factory=dict)
    """How often policy `adaptive` entered each of the guard's modes, by reason (core/policies/guard.py)."""
    phi: LearntLimit | None = None
    """The limit on the target's entropy that policy `adaptive` learnt for the worker."""
    policy: str = "plain"
    verification: str = "shared-noise"
    why_off: str | None = None
    """Why speculation, or offloading, was off; None while it was on."""
    by_worker: dict[str, dict[str, int]] = field(default_factory=dict)
    """Of each worker that was given the prompt, by name, first one first: `frames` received, nodes that its model
    `evaluated` for them, candidates that it was the first to bring (`fresh`), and how many of those were `verified` and
    `accepted`."""
    why: str | None = None
    """Why the gateway drafted though a worker was there, where the policy says so."""
    why_not_local: str | None = None
    """Why the local draft made no pass in the latest round that had a use for one; None where it did."""
    before_worker_tokens: int = 0
    """Tokens of the completion at the first useful frame of a worker."""
    cached_tokens: int = 0
    """Tokens of the prompt that the slot held already."""
    times: Times = field(default_factory=Times)

    @property
    def workers(self) -> list[str]:
        """Names of the workers that were given the prompt, first one first."""
        return list(self.by_worker)


def added(left: Any, right: Any) -> Any:
    """Sums of counts and times, also in what holds them; of texts the first one is kept."""
    if isinstance(left, Usage | Times):
        pairs = {one.name: (getattr(left, one.name), getattr(right, one.name)) for one in fields(left)}
        return type(left)(**{name: added(*pair) for name, pair in pairs.items()})
    if isinstance(left, dict):
        both = left.keys() & right.keys()
        return left | right | {key: added(left[key], right[key]) for key in both}

    if isinstance(left, int | float):
        return left + right
    return left or right


class TokensEvent(Struct, frozen=True):
    """New answer tokens, at least one."""

    tokens: Sequence[int]
    readings: Sequence[object] | None = None
    """Results of the request's `RowReader`, one for each token, if it has a reader."""


class DoneEvent(Struct, frozen=True):
    """The end of an answer. `error` is one sentence where `finish` is `error`, or `cancelled` by the engine's end."""

    finish: Finish
    usage: Usage
    error: str | None = None
    refusal: ClientError | None = None
    """With `finish` `error`: what the client gets in the place of a 500."""


Event = TokensEvent | DoneEvent


class Extension(Speculation, frozen=True, forbid_unknown_fields=True):
    """The parameter `edgespec`: fields of `Speculation`, and two more."""

    ignore_eos: bool | None = None
    usage: bool | None = None
    """Whether the response has `usage.edgespec`. Workers' names are in it if the operator allows this option."""


OPTIONS = Extension.__struct_fields__
if TYPE_CHECKING:
    ClientOption = str
else:
    ClientOption = Literal[OPTIONS]
ALWAYS = {"offload": ("never",), "usage": (True, False)}
"""Values that every client may send: keeping a prompt from workers needs no permission, and figures show no names."""


Alias = Annotated[str, Meta(min_length=1, max_length=100, extra={"allowed": "a name of at most 100 characters"})]
Origin = Annotated[
    str, Meta(pattern=r"^(\*|https?://[^/\s]+)\Z", extra={"allowed": '"*" or an origin such as "https://chat.example"'})
]


class RequestBounds(Struct, frozen=True, kw_only=True):
    """Of [api]: bounds on one request."""

    max_tokens: Annotated[int, Meta(ge=1, le=1_048_576)] = 512
    """Maximum tokens of a completion where a request sets none, and the context has room."""
    max_tokens_limit: Annotated[int, Meta(ge=1, le=1_048_576)] = 4096
    """Maximum tokens of one completion."""
    stream: Literal["as-made", "even"] = "as-made"
    client_options: tuple[ClientOption, ...] = ("offload", "ignore_eos")
    model_alias: tuple[Alias, ...] = ()
    """Further names by which requests may ask for the model."""
    cors: tuple[Origin, ...] = ()
    """Origins of web pages that may use the API; "*" for any."""
    prefix_cache: bool = True
    """Whether models keep what they computed of an ended request for later ones of the same key."""

    def check(self, requested: Extension | None) -> None:
        """Raises ClientError 400 naming an option that the operator has not allowed."""
        if requested is None:
            return

        for name in OPTIONS:
            value = getattr(requested, name)
            if value is not None and name not in self.client_options and value not in ALWAYS.get(name, ()):
                raise ClientError(
                    f"The value of 'edgespec.{name}' is the choice of this gateway's operator: leave it out, or ask "
                    f'the operator to add "{name}" to `api.client_options`.',
                    param=f"edgespec.{name}",
                    code="option_not_allowed",
                )
