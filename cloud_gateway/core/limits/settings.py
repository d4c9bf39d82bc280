"""The table [limits] of the configuration: bounds on one API key.

Names, ranges and defaults stand here only; configs/gateway.toml explains each.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

QUEUE_LIMIT = 64
"""Completions that may wait for a slot."""


class ClientBounds(Struct, frozen=True, kw_only=True):
    """[limits]: bounds on each API key."""

    key_tokens_per_minute: Annotated[int, Meta(ge=0, le=2**53)] = 0
