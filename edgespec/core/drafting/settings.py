"""The table [draft] of the worker's configuration as far as it concerns drafting.

Names, ranges and defaults stand here only; configs/worker.toml explains each.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from edgespec.core.protocol.messages import MAX_NODES

MAX_STEP_LEAVES = 16
"""Leaves of one draft step, where nobody says how many: llama.cpp's context is made for so many, and which number up to
it pays off follows from the measured curve."""
MAX_REQUESTS = 64
"""Requests drafted for at once: each takes some of the 256 sequences of a context of llama.cpp."""


class DraftSettings(Struct, frozen=True, kw_only=True):
    """Of [draft]: Algorithm 2's parameters, and bounds of the draft model. 0: chosen by rule and measured model."""

    context: Annotated[int, Meta(ge=256, le=1_048_576)] = 4096
    order: Literal["best-first", "algorithm2"] = "best-first"
    branching: Annotated[int, Meta(ge=0, le=MAX_NODES)] = 0
    theta: Annotated[float, Meta(ge=0, le=100)] = 0.5
    sequences: Annotated[int, Meta(ge=0, le=32)] = 0
    requests: Annotated[int, Meta(ge=1, le=MAX_REQUESTS)] = 8
    prefill_batch: Annotated[int, Meta(ge=1, le=8192)] = 256
    prefix_cache: bool = True


DEFAULTS = DraftSettings()
