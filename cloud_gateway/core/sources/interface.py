"""What a source of candidates is asked and returns, and the table [sources] of the configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Protocol

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


ROOT = -1
"""In place of a suggestion's parent: the last committed token."""


class Suggestion(Struct, frozen=True, array_like=True):
    """One candidate. `parent`: index of an earlier suggestion of the same list, or ROOT."""

    parent: int
    token: int
    chance: float
    """Calibrated probability that the target chooses it where its parent was accepted, in (0, 1]."""


class DraftSource(Protocol):
    """One request's source. What it suggests depends on the committed tokens alone."""

    @property
    def name(self) -> str:
        """As in `policies.settings.SourceName`."""

    @property
    def why(self) -> str | None:
        """Why it suggested nothing when it was last asked; None where it did."""

    def committed(self, tokens: Sequence[int]) -> None:
        """The prompt, at first, or what follows it: the next committed tokens."""

    def propose(self, room: int) -> Sequence[Suggestion]:
        """At most `room` candidates after the committed tokens, parents first; none where they would not pay."""


class RequestSource(Protocol):
    """A source that a request brings itself, by one of its parameters. Policy `adaptive` asks it beside the others."""

    @property
    def name(self) -> str:
        """Of the source, in `usage.edgespec.sources`."""

    def begin(self, prompt: Sequence[int]) -> DraftSource:
        """What one completion asks; called once for each, on the engine's thread or the event loop. No model work."""
