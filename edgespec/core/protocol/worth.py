"""One answer to "does this worker help?", made of the gateway's own figures, for both sides' commands and pages.

Worker and gateway print the same sentence of the same figures. What a worker counts itself, which includes candidates
that came too late, is another figure and does not enter here.
"""

from __future__ import annotations

from msgspec import Struct

from edgespec.core.protocol.messages import Books, WorkerTimes

MIN_TOKENS = 200
"""Tokens from which on a share is judged: about three short completions."""
MIN_SHARE = 0.1
"""Share of the tokens below which a worker is not worth its electricity: it then saves less than every tenth pass."""
LATE = 0.5
"""Share of late frames from which on lateness is the cause."""


class WorkerFigures(Struct, frozen=True):
    """The gateway's figures of one worker, over requests that have ended; the fields of `Books` and `WorkerTimes`."""

    tokens: int = 0
    accepted: int = 0
    verified: int = 0
    frames: int = 0
    late: int = 0
    spent_ms: int = 0
    alone_ms: int = 0

    @property
    def books(self) -> Books:
        """The counts, as the worker is sent them."""
        return Books(self.tokens, self.accepted, self.verified, self.frames, self.late)

    @property
    def times(self) -> WorkerTimes:
        """The times, as the worker is sent them."""
        return WorkerTimes(self.spent_ms, self.alone_ms)

    def __add__(self, other: WorkerFigures) -> WorkerFigures:
        """The figures of both together."""
        return WorkerFigures(
            tokens=self.tokens + other.tokens,
            accepted=self.accepted + other.accepted,
            verified=self.verified + other.verified,
            frames=self.frames + other.frames,
            late=self.late + other.late,
            spent_ms=self.spent_ms + other.spent_ms,
            alone_ms=self.alone_ms + other.alone_ms,
        )


NOTHING = WorkerFigures()


def figures_of(books: Books, times: WorkerTimes | None = None) -> WorkerFigures:
    """The figures that a worker was sent; an older gateway sends no times."""
    sent = times or WorkerTimes(0, 0)
    return WorkerFigures(
        books.tokens,
        books.accepted,
        books.verified,
        books.frames,
        books.late,
        sent.spent,
        sent.alone,
    )


def share(figures: WorkerFigures) -> float:
    """Share of the tokens that the worker wrote; 0 without tokens."""
    return figures.accepted / max(figures.tokens, 1)


def late_share(figures: WorkerFigures) -> float:
    """Share of the worker's frames that came too late; 0 without frames."""
    return figures.late / max(figures.frames, 1)


def judged(figures: WorkerFigures) -> bool:
    """Whether there are enough tokens for a judgement."""
    return figures.tokens >= MIN_TOKENS


def helps(figures: WorkerFigures) -> bool:
    """Whether the worker is worth it, as far as the figures say."""
    return share(figures) >= MIN_SHARE


def why_not(figures: WorkerFigures) -> str:
    """Why a worker does not help."""
    if not figures.frames:
        return "none of its frames arrived"

    if late_share(figures) >= LATE:
        return f"{late_share(figures):.0%} of its frames came too late"

    if not figures.verified:
        return "none of its candidates was verified"
    accepted = figures.accepted / figures.verified
    return f"the target accepted {accepted:.0%} of the {figures.verified} candidates that were verified"


def verdict(figures: WorkerFigures) -> str:
    """The sentence for a worker's admin and the gateway's operator."""
    if not figures.tokens:
        return "no completion has ended yet in which it drafted"

    wrote = f"wrote {share(figures):.0%} of the tokens ({figures.accepted} of {figures.tokens}){took(figures)}"
    if not judged(figures):
        return f"{wrote}: too few to judge"

    if not helps(figures):
        return f"{wrote}: not worth it now, because {why_not(figures)}"

    saved_s = (figures.alone_ms - figures.spent_ms) / 1000
    passes = f"{wrote} and so saved {figures.accepted} passes of the target"
    if figures.alone_ms and saved_s <= 0:
        return f"{passes}, but no time: it helps the target, not who waits"

    if figures.alone_ms:
        return f"{passes} and {readable(saved_s)}: it helps"
    return f"{passes}: it helps"


def took(figures: WorkerFigures) -> str:
    """The time of its completions beside the gateway alone; empty if the gateway has not sent times."""
    if not figures.alone_ms:
        return ""

    return f" in {figures.spent_ms / figures.alone_ms:.2f} of the time that the gateway alone would take"


def readable(seconds: float) -> str:
    """A duration in the unit that reads best."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
