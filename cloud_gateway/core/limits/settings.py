"""The tables [limits] and [link] of the configuration as far as they bound clients and peers.

Names, ranges and defaults stand here only; configs/gateway.toml explains each.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct


class ClientBounds(Struct, frozen=True, kw_only=True):
    """[limits]: bounds on the connections, requests and memory of API clients."""

    connections: Annotated[int, Meta(ge=4, le=100_000)] = 1024
    unproven_connections: Annotated[int, Meta(ge=2, le=100_000)] = 256
    unproven_per_source: Annotated[int, Meta(ge=0, le=100_000)] = 0
    connections_per_s: Annotated[float, Meta(ge=1, le=100_000)] = 1000.0
    head_timeout_s: Annotated[float, Meta(ge=0.1, le=300)] = 10.0
    idle_timeout_s: Annotated[float, Meta(ge=1, le=3600)] = 75.0
    key_running: Annotated[int, Meta(ge=0, le=1024)] = 0
    key_waiting: Annotated[int, Meta(ge=0, le=100_000)] = 32
    key_body_kb: Annotated[int, Meta(ge=4096, le=4_194_304)] = 16384
    key_tokens_per_minute: Annotated[int, Meta(ge=0, le=2**53)] = 0


class LinkBounds(Struct, frozen=True, kw_only=True):
    """Of [link]: bounds on the connections to the link port."""

    connections: Annotated[int, Meta(ge=4, le=100_000)] = 1024
    unproven_connections: Annotated[int, Meta(ge=2, le=10_000)] = 64
    unproven_per_source: Annotated[int, Meta(ge=1, le=10_000)] = 16
    connections_per_s: Annotated[float, Meta(ge=0.1, le=10_000)] = 20.0
