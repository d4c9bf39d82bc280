"""Borders in text that no token crosses, so that what stands before one is cut into tokens in one way only.

A position between the bytes x and y is a border if no vocabulary entry contains x directly followed by y. Byte pair
encoding, also SentencePiece's, merges neighbours into entries, so it never joins both sides: encode(a + b) = encode(a)
+ encode(b). A Unigram model takes the entries of the highest sum, which are those of both sides; between equally good
ones ("\\n\\n" + "\\n" and "\\n" + "\\n\\n") rounding chooses, so its cut of a piece may be another that is as good.

The steps before the merges must come to the same, too: the patterns that cut text into words first. So y is a space
behind something that is no white space, or a line's end behind a letter or digit of ASCII: there every pattern in use
begins a new word, and looks no further back. Words of byte-level tokenizers and of SentencePiece begin with their
space, so that there is a border at the end of nearly every word.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

_WHITE = frozenset(b" \t\n\v\f\r\x85\xa0")
"""White space, and the last byte of every white space outside ASCII whose bytes could be confused with it."""
_WIDE_SPACES = "\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
_LAST_OF_WIDE = frozenset(space.encode()[-1] for space in _WIDE_SPACES)
_WORD_ENDS = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")


class Borders:
    """The borders that several vocabularies have in common."""

    def __init__(self, *vocabularies: Iterable[bytes | None]) -> None:
        """`vocabularies`: the bytes of each token; None for control tokens, which always stand alone."""
        joined = np.zeros((256, 256), bool)
        for pieces in vocabularies:
            known = [piece for piece in pieces if piece]
            every = np.frombuffer(b"".join(known), np.uint8)
            inside = np.ones(len(every), bool)
            inside[np.cumsum([len(piece) for piece in known], dtype=int) - 1] = False
            pairs = inside[:-1].nonzero()[0]
            joined[every[pairs], every[pairs + 1]] = True
        possible = np.zeros((256, 256), bool)
        possible[:, ord(" ")] = True
        possible[sorted(_WHITE | _LAST_OF_WIDE), ord(" ")] = False
        possible[sorted(_WORD_ENDS), ord("\n")] = True
        joined |= ~possible
        self._joined: list[bytes] = [row.tobytes() for row in joined]

    def between(self, before: int, after: int) -> bool:
        """Whether there is a border between these two bytes."""
        return not self._joined[before][after]

    def parted(self, text: bytes, begin: int = 0) -> list[bytes]:
        """The text in segments, at the borders from byte `begin` on; the last segment may go on."""
        ends = [i for i in range(max(begin, 1), len(text)) if not self._joined[text[i - 1]][text[i]]]
        return [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)])]
