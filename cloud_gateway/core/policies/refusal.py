"""Why policy `adaptive` did not ask the local draft in a round, with the figures that decided it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

Kind = Literal["step", "candidates", "worker", "budget", "backlog", "reading"]
SENTENCES: Mapping[Kind, str] = {
    "step": "a draft step takes {cost:.1f} ms, and what it finds would save {gain:.1f} ms",
    "candidates": "to read other sources' candidates takes {cost:.1f} ms, and to draft after them saves {gain:.1f} ms",
    "worker": "the worker's next candidates save {cost:.1f} ms, drafting here {gain:.1f} ms",
    "budget": "`policy.prefer` leaves it no more passes while a worker drafts",
    "backlog": "it has to read for {cost:.1f} ms first, and saves {gain:.1f} ms over the tokens to come",
    "reading": "it was still reading the committed tokens",
}


class Refusal(NamedTuple):
    """One round's reason. Seconds."""

    kind: Kind
    cost_s: float = 0.0
    """What drafting takes, or what is gained without it."""
    gain_s: float = 0.0
    """What drafting is expected to save, or what plain decoding takes."""
    sharers: int = 0
    """Other requests in the same passes, for which tokens count less and waits more."""

    def __str__(self) -> str:
        sentence = SENTENCES[self.kind].format(cost=1000 * self.cost_s, gain=1000 * self.gain_s)
        return f"{sentence} (other requests in the same passes: {self.sharers})" if self.sharers else sentence
