"""Follows a completion through the text that was predicted for it, and says what comes next there."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

WINDOW = 32
"""Tokens behind the last place that was right in which a single token is looked for after a divergence. Two tokens in
a row are looked for in the whole prediction."""


class Predicted:
    """The tokens of a prediction, and the places of each pair of neighbours. Completions of one request share it."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = tokens
        self._after_pair: dict[tuple[int, int], list[int]] = {}
        """Two tokens -> the positions right behind them, ascending."""
        for position in range(2, len(tokens) + 1):
            pair = (tokens[position - 2], tokens[position - 1])
            self._after_pair.setdefault(pair, []).append(position)

    def after_pair(self, pair: tuple[int, int], anchor: int) -> int | None:
        """The position behind this pair that comes first after `anchor`, or else the last one before it."""
        positions = self._after_pair.get(pair)
        if positions is None:
            return None
        index = bisect_left(positions, anchor)
        return positions[min(index, len(positions) - 1)]

    def after_token(self, token: int, anchor: int) -> int | None:
        """The position behind this token within the window that begins at `anchor`."""
        window = self.tokens[anchor : anchor + WINDOW]
        if token not in window:
            return None
        return anchor + list(window).index(token) + 1


class Follower:
    """One completion's place in its prediction.

    After a divergence the place is found again by the last two tokens, anywhere; else by the last one, nearby; else the
    prediction is taken to go on behind as many tokens as the completion has put in the place of its own.
    """

    def __init__(self, predicted: Predicted) -> None:
        self._predicted = predicted
        self._anchor = 0
        """Behind the last token that was right."""
        self._last: int | None = None
        self.place = 0
        """Position of the token that is expected next."""
        self.run = 0
        """Tokens in a row that were right up to this place; a place that no second token has confirmed has 1."""
        self.right = 0
        """Tokens of the completion that were the expected ones, or by which the place was found again."""

    @property
    def expected(self) -> int | None:
        """The next token by the prediction; None behind its end."""
        tokens = self._predicted.tokens
        if self.place < len(tokens):
            return tokens[self.place]
        return None

    def ahead(self, room: int) -> Sequence[int]:
        """At most `room` tokens that are expected next."""
        return self._predicted.tokens[self.place : self.place + room]

    def append(self, token: int) -> None:
        """The completion goes on with this token."""
        previous = self._last
        self._last = token
        if token == self.expected:
            self.place += 1
            self.run += 1
            self.right += 1
            self._anchor = self.place
            return

        if previous is not None:
            place = self._predicted.after_pair((previous, token), self._anchor)
            if place is not None:
                self.place = place
                self.run = 2
                self.right += 1
                self._anchor = place
                return

        # The next token confirms this place or does not, so the anchor stays.
        place = self._predicted.after_token(token, self._anchor)
        self.place = self.place + 1 if place is None else place
        self.run = 1
