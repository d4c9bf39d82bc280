"""The served model, and the limits of requests that the operator configures."""

from __future__ import annotations

from dataclasses import dataclass, field

from cloud_gateway.api.options import ClientOptions
from cloud_gateway.core.limits.quota import KeyLimits


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The model in `/v1/models`. `context` and `vocab_size` in tokens, `created` in Unix seconds."""

    id: str
    created: int
    context: int
    vocab_size: int
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on one request, and on the time that the gateway waits for its client."""

    max_tokens: int = 4096
    """Maximum tokens of one completion."""
    default_tokens: int = 512
    """Maximum tokens of a completion where a request sets none, and the context has room."""
    max_choices: int = 8
    """Maximum completions of one request: its `n` times its prompts."""
    max_request_tokens: int = 16384
    """Maximum tokens of all completions of one request together, where `max_tokens` alone does not allow more."""
    max_body_bytes: int = 4 * 2**20
    read_timeout_s: float = 30.0
    """For the whole request body to arrive."""
    keepalive_s: float = 10.0
    """Silence on a stream after which a comment is sent."""
    write_timeout_s: float = 20.0
    """After which a client that does not read its stream is disconnected."""
    key: KeyLimits = field(default_factory=KeyLimits)
    """Limits of each API key."""
    key_running: int | None = None
    """Slots that one API key may hold while other keys exist; None for all."""
    options: ClientOptions = field(default_factory=ClientOptions)
