"""The table [sources] of the configuration; configs/gateway.toml explains each key."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

MAX_ANSWERS = 8
"""QueueSpec's figures end there; each further answer agrees in less that the others do not have."""


HeadsFile = Annotated[str, Meta(max_length=4000, extra={"allowed": '"" for none, or a path'})]


class SourceSettings(Struct, frozen=True, kw_only=True):
    """[sources]: where candidates of the sources `answers`, `medusa` and `eagle` come from."""

    queued_answers: Annotated[int, Meta(ge=0, le=MAX_ANSWERS)] = 0
    queued_tokens: Annotated[int, Meta(ge=1, le=4096)] = 256
    kept_tokens: Annotated[int, Meta(ge=0, le=1 << 24)] = 262_144
    medusa: HeadsFile = ""
    eagle: HeadsFile = ""

    @property
    def heads(self) -> list[str]:
        """The files of heads that are named."""
        return [file for file in (self.medusa, self.eagle) if file]
