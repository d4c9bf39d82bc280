"""The table [sources] of the configuration; configs/gateway.toml explains each key."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

MAX_ANSWERS = 8
"""QueueSpec's figures end there; each further answer agrees in less that the others do not have."""

QUEUED_TOKENS = 256
"""Most tokens of one of them: a later position of a queued answer agrees with the completion ever less."""
KEPT_TOKENS = 262_144
"""Tokens of earlier prompts and completions that are kept for the next request of a conversation: 2 MB."""

HeadsFile = Annotated[str, Meta(min_length=1, max_length=4000, extra={"allowed": "a path"})]


class SourceSettings(Struct, frozen=True, kw_only=True):
    """[sources]: where candidates of source `answers` and of heads beside the target come from."""

    queued_answers: Annotated[int, Meta(ge=0, le=MAX_ANSWERS)] = 0
    heads: tuple[HeadsFile, ...] = ()
