"""The heads of files, loaded beside their target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cloud_gateway.parts.draft_heads import KINDS
from cloud_gateway.parts.draft_heads.eagle import EagleDrafts, EagleHead
from cloud_gateway.parts.draft_heads.medusa import MedusaHeads, MedusaTensors
from cloud_gateway.parts.draft_heads.tensors import opened
from edgespec.core.errors import ModelError

if TYPE_CHECKING:
    from cloud_gateway.models.target_model.inside import StatesTarget
    from cloud_gateway.parts.draft_heads.source import Heads


def heads_beside(target: StatesTarget, digest: bytes, files: Sequence[Path]) -> Mapping[str, Heads]:
    """The heads of these files beside the target of this digest, by the name of their source. Raises ModelError."""
    heads: dict[str, Heads] = {}
    for path in files:
        kind = kind_in(path)
        if kind in heads:
            raise unusable(path, "other heads of its kind are named too")
        if kind == EagleHead.kind:
            heads[kind] = EagleDrafts(EagleHead.load(path, digest), target)
        elif kind == MedusaTensors.kind:
            heads[kind] = MedusaHeads(MedusaTensors.load(path, digest), target)
        else:
            raise unusable(path, f"it holds none of {', '.join(KINDS)}")

    return heads


def kind_in(path: Path) -> str:
    """What a file says that it holds. Raises ModelError if it cannot be read."""
    with opened(path) as file:
        facts = file.metadata() or {}
    return facts.get("kind", "")


def unusable(path: Path, why: str) -> ModelError:
    """The error for a file that is not loaded."""
    return ModelError(f"{path} in `sources.heads`: {why}; `python -m edgespec_lab.train` makes such a file.")
