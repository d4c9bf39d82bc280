"""The target as its own draft: `local_draft.model = "self"`, with the layers of `local_draft.layers`.

It needs a target in torch of the Llama family, and takes no memory for weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from cloud_gateway.part import GatewayPart
from cloud_gateway.process.config import LocalDraftSection
from edgespec.core.errors import ModelError
from edgespec.shared.part import Settings
from edgespec.shared.settings import Section

if TYPE_CHECKING:
    from cloud_gateway.models.drafts import IdlingDraft
    from cloud_gateway.models.target_model import Target

MODEL = "self"
"""The value of `local_draft.model`."""


class LayersSection(Section, frozen=True, kw_only=True):
    """[local_draft]: the layers that draft, counted from 0."""

    layers: tuple[Annotated[int, Meta(ge=0, le=1023)], ...] = ()


def layer_conflicts(settings: Settings) -> Iterator[tuple[str, str]]:
    """The draft needs layers."""
    draft = settings.of(LocalDraftSection)
    if draft.model != MODEL:
        return

    if not settings.of(LayersSection).layers:
        yield "local_draft.layers", f'layers of the target if `local_draft.model` is "{MODEL}"'


class OwnLayers:
    """The `DraftMaker` of this part."""

    def check(self, engine: str) -> None:
        if engine != "torch":
            raise ModelError(
                f'`local_draft.model` is "{MODEL}", which needs the engine torch: set `target.engine` to "torch", or '
                "name a GGUF file as the draft."
            )

    def make(self, target: Target, settings: Settings, requests: int) -> IdlingDraft:
        from cloud_gateway.models.target_model.inside import LayersTarget
        from cloud_gateway.parts.self_draft.draft import SelfDraft

        assert isinstance(target, LayersTarget)  # held by `check`
        return SelfDraft(target, settings.of(LayersSection).layers, requests=requests)


PART = GatewayPart(
    "self_draft",
    {"local_draft": LayersSection},
    check=layer_conflicts,
    example=Path(__file__).with_name("gateway.toml"),
    drafts={MODEL: OwnLayers()},
)
