"""Heads over the target's hidden states, as the sources `medusa` and `eagle`: safetensors files in `sources.heads`.

They need a target that shows its states, which one in torch does. `python -m edgespec_lab.train` makes such files.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from cloud_gateway.part import GatewayPart
from edgespec.core.errors import ModelError
from edgespec.shared.folders import expand
from edgespec.shared.part import Settings
from edgespec.shared.settings import Removed, Section

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cloud_gateway.core.sources.interface import SourceMakers
    from cloud_gateway.models.headers import Need
    from cloud_gateway.models.target_model import Target

KINDS = ("medusa", "eagle")
"""What a file may hold, each the name of the source that asks it."""
FLOAT32_BYTES = 4

HeadsFile = Annotated[str, Meta(min_length=1, max_length=4000, extra={"allowed": "a path"})]


class HeadsSection(Section, frozen=True, kw_only=True):
    """[sources]: the files of heads."""

    heads: tuple[HeadsFile, ...] = ()


class HeadsBeside:
    """The `StateSources` of this part."""

    def check(self, engine: str, settings: Settings) -> None:
        if files(settings) and engine != "torch":
            raise ModelError(
                "`sources.heads` needs the engine torch: set `target.engine` to it, or leave the key empty."
            )

    def need(self, settings: Settings) -> Need:
        from cloud_gateway.models.headers import Need

        need = Need(0, 0)
        for file in files(settings):
            need += heads_need(file)
        return need

    def load(self, target: Target, digest: bytes, settings: Settings) -> SourceMakers:
        from cloud_gateway.parts.draft_heads.source import source_maker

        paths = files(settings)
        if not paths:
            return {name: source_maker(name, None) for name in KINDS}

        from cloud_gateway.models.target_model.inside import StatesTarget
        from cloud_gateway.parts.draft_heads.beside import heads_beside

        assert isinstance(target, StatesTarget)  # held by `check`
        heads = heads_beside(target, digest, paths)
        return {name: source_maker(name, heads.get(name)) for name in KINDS}


def files(settings: Settings) -> Sequence[Path]:
    """The files of `sources.heads`."""
    return [expand(file) for file in settings.of(HeadsSection).heads]


def heads_need(path: Path) -> Need:
    """Memory of the heads of a file; those with a `qkv` keep keys, values and the target's state of each token.

    Raises ModelError.
    """
    from cloud_gateway.models.headers import Need, tensor_shapes

    shapes = tensor_shapes(path)
    numbers = sum(math.prod(shape) for shape in shapes.values())

    match shapes.get("qkv"):
        case [_, attention_heads, size, width]:
            kept = 2 * attention_heads * size + width
        case _:
            kept = 0
    return Need(FLOAT32_BYTES * numbers, FLOAT32_BYTES * kept)


LISTED = Removed("list the file in `sources.heads`.", ("",))
PART = GatewayPart(
    "draft_heads",
    {"sources": HeadsSection},
    removed={"sources.medusa": LISTED, "sources.eagle": LISTED},
    example=Path(__file__).with_name("gateway.toml"),
    sources=KINDS,
    state_sources=HeadsBeside(),
    own_engine_only=("sources.heads",),
)
