"""Source `lookup`: what followed, in prompt and completion, where the text was as it ends now."""

from __future__ import annotations

from collections.abc import Sequence

from cloud_gateway.core.sources.interface import Suggestion
from cloud_gateway.core.sources.rates import Rates, likeliest
from cloud_gateway.core.sources.suffixes import Suffixes


class Lookup:
    """One request's source."""

    name = "lookup"

    def __init__(self, prompt_len: int) -> None:
        """`prompt_len`: tokens that teach nothing, since the target did not choose them."""
        self.rate = Rates()
        self._suffixes = Suffixes()
        self._unlearnt = prompt_len
        self.why = self.rate.refusal(0)

    def committed(self, tokens: Sequence[int]) -> None:
        """Extends the text, and compares each token of the completion with what would have been suggested."""
        for token in tokens:
            if self._unlearnt:
                self._unlearnt -= 1
            elif match := self._suffixes.match:
                right = any(token == self._suffixes.following(end, 0) for end in self._suffixes.earlier())
                self.rate.learn(match, right=right)
            self._suffixes.append(token)

    def propose(self, room: int) -> Sequence[Suggestion]:
        """The most likely continuations of the longest match, by their survival."""
        match = self._suffixes.match
        self.why = self.rate.refusal(match)
        if self.why is not None:
            return ()
        found = likeliest(self.rate, match, list(self._suffixes.earlier()), self._suffixes.following, room)
        self.why = None if found else f"no continuation of a match of {match} tokens is likely enough"
        return found
