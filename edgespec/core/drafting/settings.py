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


PREFILL_BATCH = 256
"""Maximum tokens of a prompt in one batch. A batch takes a tenth of a second at most, as the latest one was measured;
more tokens in one are hardly faster."""
FIXED = {"fixed": True}
"""A constant of the rules, no key of worker.toml: simulator, replays and tests vary it as the paper does."""


class DraftSettings(Struct, frozen=True, kw_only=True):
    """Of [draft]: the rule with its parameters, and bounds of the draft model."""

    context: Annotated[int, Meta(ge=256, le=1_048_576)] = 4096
    order: Literal["best-first", "algorithm2"] = "best-first"
    branching: Annotated[int, Meta(ge=0, le=MAX_NODES, extra=FIXED)] = 0
    """b: maximum children of a node; 0: the rule's own, 4 for best-first and 2 for Algorithm 2."""
    theta: Annotated[float, Meta(ge=0, le=100, extra=FIXED)] = 0.5
    """θ: entropy (nats) below which Algorithm 2 gives a node one child. It is the entropy that remains given the noise
    and the pair's usual disagreement (docs/numerics.md), so that 0.5 suits small and large models."""
    sequences: Annotated[int, Meta(ge=0, le=32, extra=FIXED)] = 0
    """s: maximum leaves of one draft step; 0: chosen by the measured times of steps, which fits any model."""
    requests: Annotated[int, Meta(ge=1, le=MAX_REQUESTS)] = 8


DEFAULTS = DraftSettings()
