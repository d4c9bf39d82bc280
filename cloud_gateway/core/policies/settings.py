"""The table [policy] of the configuration, which every policy takes as it is; a request replaces fields of it.

Ranges and defaults stand here only: the configuration, the chat API and the policies read them from here.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from edgespec.core.protocol.messages import MAX_DEPTH, MAX_SHARES
from edgespec.core.protocol.ranges import Range

SOURCES = ("lookup",)
"""The sources of the core, which `sources.asking.MAKERS` makes; parts bring others."""
Prefer = Literal["latency", "balanced", "offload"]

MAX_K = 16
"""Greatest run depth: a chain that deep is hardly ever right to its end."""
K = Range(1, MAX_K)
PHI = Range(0, 100)
"""Tokens, and nats; requests may choose them within the same ranges."""
Phi = Literal["learnt"] | Annotated[float, PHI.meta]
MAX_VERIFY_NODES = 512
"""A frame's maximum of nodes: a pass over more would take longer than any draft saves."""


class PolicySettings(Struct, frozen=True, kw_only=True):
    """[policy]: parameters of the policies; each uses those that it has. configs/gateway.toml explains them."""

    name: str = "adaptive"
    """Of the core's policies (registry.py), or of those that a part brings."""
    k: Annotated[int, K.meta] = 2
    """Depth of the candidate tree, in tokens, at which it is verified."""
    phi: Phi = "learnt"
    """Entropy (nats) of the target above which the worker counts as being on another path; "learnt": policy `adaptive`
    learns from frames how likely it is at each entropy (entropy.py)."""
    verify_nodes: Annotated[int, Meta(ge=1, le=MAX_VERIFY_NODES)] = 16
    """Maximum candidates of one request in one pass."""
    depth: Annotated[int, Meta(ge=1, le=MAX_DEPTH, extra={"fixed": True})] = MAX_DEPTH
    """Maximum levels verified at once; with k it is the printed algorithm's result.length <= k + 1. No key of
    gateway.toml, since `verify_nodes` limits a pass first: the simulator sets it for the paper's figures."""
    prefer: Prefer = "balanced"
    sources: tuple[str, ...] = ("lookup",)
    """Sources of candidates without a draft model, of the core or of a part; for policies with `uses_sources`."""
    workers_per_request: Annotated[int, Meta(ge=1, le=MAX_SHARES)] = 1
    """Maximum workers that draft for one request at once, where more are idle than requests need."""
    verification: str = "shared-noise"
    """Name of a `verify.verification.Method`."""


DEFAULTS = PolicySettings()
