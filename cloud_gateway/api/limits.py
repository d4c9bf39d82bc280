"""The served model, and the limits of requests that the operator configures."""

from __future__ import annotations

from dataclasses import dataclass

from cloud_gateway.core.limits.quota import KeyLimits
from cloud_gateway.core.limits.settings import ClientBounds
from cloud_gateway.core.requests.options import RequestBounds


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

    api: RequestBounds
    key: KeyLimits
    """Limits of each API key."""
    key_running: int | None
    """Slots that one API key may hold while other keys exist; None for all."""
    max_choices: int = 8
    """Maximum completions of one request: its `n` times its prompts."""
    max_request_tokens: int = 16384
    """Maximum tokens of all completions of one request together, where `max_tokens` alone does not allow more."""
    max_body_bytes: int = 4 * 2**20
    read_timeout_s: float = 30.0
    """For the whole request body to arrive."""
    write_timeout_s: float = 20.0
    """After which a client that does not read its stream is disconnected."""

    @staticmethod
    def of(api: RequestBounds, clients: ClientBounds, slots: int) -> Limits:
        """The configured limits. One key may hold all slots but one."""
        return Limits(api, KeyLimits.of(clients, slots), max(1, slots - 1))
