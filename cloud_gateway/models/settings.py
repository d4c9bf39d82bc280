"""The table [target] of the configuration as far as every target engine takes it.

Names, ranges and defaults stand here only; configs/gateway.toml explains each.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct


class TargetSettings(Struct, frozen=True, kw_only=True):
    """Of [target]: sizes of the KV cache and of its batches."""

    slots: Annotated[int, Meta(ge=1, le=1024)] = 4
    context: Annotated[int, Meta(ge=256, le=1_048_576)] = 4096
    kv_tokens: Annotated[int, Meta(ge=0, le=1_073_741_824)] = 0


PREFILL_CHUNK = 128
"""Maximum tokens of a prompt that one pass reads: more are hardly faster in one, and delay what runs beside it."""
DEFAULTS = TargetSettings()
