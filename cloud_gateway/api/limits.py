"""The served model as clients see it, and what the operator lets them ask for."""

from __future__ import annotations

from dataclasses import dataclass, field

from cloud_gateway.api.options import ClientOptions
from cloud_gateway.core.limits.quota import KeyLimits


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The model as clients see it. `context` and `vocab_size` in tokens, `created` in Unix seconds."""

    id: str
    created: int
    context: int
    vocab_size: int
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Limits:
    """What one client may ask for, and for how long it is waited for."""

    max_tokens: int = 4096
    """Most tokens of one answer."""
    default_tokens: int = 512
    """Tokens of an answer where a request names no limit, as far as the context goes."""
    max_choices: int = 8
    """Most answers of one request: its `n`, times its prompts."""
    max_request_tokens: int = 16384
    """Most tokens of all answers of one request together, where `max_tokens` alone does not allow more."""
    max_body_bytes: int = 4 * 2**20
    read_timeout_s: float = 30.0
    """For the whole request body to arrive."""
    keepalive_s: float = 10.0
    """Silence on a stream after which a comment is sent."""
    write_timeout_s: float = 20.0
    """After which a client that does not read its stream is given up."""
    key: KeyLimits = field(default_factory=KeyLimits)
    """Of each API key."""
    key_running: int | None = None
    """Slots that one API key may hold while there are others; None for all."""
    options: ClientOptions = field(default_factory=ClientOptions)
