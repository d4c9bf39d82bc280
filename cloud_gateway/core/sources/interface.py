"""What a source of candidates is asked, and what it returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

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
