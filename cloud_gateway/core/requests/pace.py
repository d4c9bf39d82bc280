"""The time that completions take with a worker, beside the estimate for the gateway alone.

A round's reference is what its tokens take at this gateway without a worker, by the measured curves: the better of
plain decoding and co-located k = 2. Where no worker drafts, the time that rounds took is measured against the same
reference, and corrects it. So time that the curves do not have, for example the host's, counts on both sides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

MIN_TOKENS = 200
"""Tokens without a worker from which on their measured ratio is used."""
REMEMBERED = 4000.0
"""Tokens that the ratio is measured over: about a hundred completions."""


class Span(NamedTuple):
    """One round, or the sum of several."""

    tokens: int
    spent_s: float
    reference_s: float
    """What the gateway alone takes for the tokens, by its curves."""

    def plus(self, other: Span) -> Span:
        """Both together."""
        return Span(
            self.tokens + other.tokens,
            self.spent_s + other.spent_s,
            self.reference_s + other.reference_s,
        )


NO_TIME = Span(0, 0.0, 0.0)


@dataclass(slots=True)
class PaceAlone:
    """How long rounds without a worker take, relative to their reference."""

    tokens: float = 0.0
    spent_s: float = 0.0
    reference_s: float = 0.0

    def add(self, span: Span) -> None:
        """Takes in rounds in which no worker drafted."""
        kept = min(1.0, REMEMBERED / max(self.tokens + span.tokens, 1.0))
        self.tokens = (self.tokens + span.tokens) * kept
        self.spent_s = (self.spent_s + span.spent_s) * kept
        self.reference_s = (self.reference_s + span.reference_s) * kept

    @property
    def ratio(self) -> float:
        """Time relative to the reference; 1 until enough was measured."""
        if self.tokens < MIN_TOKENS or self.reference_s <= 0:
            return 1.0
        return self.spent_s / self.reference_s

    def alone_s(self, span: Span) -> float:
        """What the gateway alone is estimated to take for the tokens of these rounds."""
        return span.reference_s * self.ratio
