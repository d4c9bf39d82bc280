"""The policies beside which others are measured: `colocated`, `colocated-tree`, `rolling-k` and `amusd`.

Co-located speculation drafts a chain or a tree (SpecInfer) at the gateway alone. A tree is worth much by itself, so
that a gain of the tree must not read as a gain of the network. `rolling-k` is WANSpec's Algorithm 1 with the K of the
cluster post, `amusd` the Algorithm 1 of AMUSD.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cloud_gateway.part import GatewayPart

if TYPE_CHECKING:
    from cloud_gateway.core.policies.registry import PolicyMaker


def _colocated() -> PolicyMaker:
    from cloud_gateway.parts.baselines.colocated import Colocated

    return Colocated


def _colocated_tree() -> PolicyMaker:
    from cloud_gateway.parts.baselines.colocated import ColocatedTree

    return ColocatedTree


def _rolling_k() -> PolicyMaker:
    from cloud_gateway.parts.baselines.rolling_k import RollingWanSpec

    return RollingWanSpec


def _amusd() -> PolicyMaker:
    from cloud_gateway.parts.baselines.amusd import Amusd

    return Amusd


PART = GatewayPart(
    "baselines",
    policies={
        "colocated": _colocated,
        "colocated-tree": _colocated_tree,
        "rolling-k": _rolling_k,
        "amusd": _amusd,
    },
    example=Path(__file__).with_name("gateway.toml"),
)
