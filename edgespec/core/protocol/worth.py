"""One answer to "does this worker help?", made of the gateway's own figures, for both sides' commands and pages.

Worker and gateway print the same sentence of the same figures. What a worker counts itself, which includes candidates
that came too late, is another figure and does not enter here.
"""

from __future__ import annotations

from edgespec.core.protocol.messages import Books

MIN_TOKENS = 200
"""Tokens from which on a share is judged: about three short completions."""
MIN_SHARE = 0.1
"""Share of the tokens below which a worker is not worth its electricity: it then saves less than every tenth pass."""
LATE = 0.5
"""Share of late frames from which on lateness is the cause."""


def share(books: Books) -> float:
    """Share of the tokens that the worker wrote; 0 without tokens."""
    return books.accepted / max(books.tokens, 1)


def late_share(books: Books) -> float:
    """Share of the worker's frames that came too late; 0 without frames."""
    return books.late / max(books.frames, 1)


def judged(books: Books) -> bool:
    """Whether there are enough tokens for a judgement."""
    return books.tokens >= MIN_TOKENS


def helps(books: Books) -> bool:
    """Whether the worker is worth it, as far as the figures say."""
    return share(books) >= MIN_SHARE


def why_not(books: Books) -> str:
    """Why a worker does not help."""
    if not books.frames:
        return "none of its frames arrived"
    if late_share(books) >= LATE:
        return f"{late_share(books):.0%} of its frames came too late"

    if not books.verified:
        return "none of its candidates was verified"
    accepted = books.accepted / books.verified
    return f"the target accepted {accepted:.0%} of the {books.verified} candidates that were verified"


def verdict(books: Books) -> str:
    """The sentence for a worker's admin and the gateway's operator."""
    if not books.tokens:
        return "no completion has ended yet in which it drafted"

    wrote = f"wrote {share(books):.0%} of the tokens ({books.accepted} of {books.tokens})"
    if not judged(books):
        return f"{wrote}: too few to judge"
    if helps(books):
        return f"{wrote} and so saved {books.accepted} passes of the target: it helps"
    return f"{wrote}: not worth it now, because {why_not(books)}"
