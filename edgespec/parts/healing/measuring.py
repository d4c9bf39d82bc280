"""Two drafts compared as a worker runs them: the shipped drafter steps through what the target wrote.

Both answer the same places in turns, so that a busy machine slows both.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import msgspec

from edgespec.llamacpp.drafter import Drafter
from edgespec.parts.healing.target import Passage

AMONG = 4
"""Children of a node that are looked at."""


class Figures(msgspec.Struct, frozen=True):
    """The match rates and the step time of one draft on the held-back text."""

    tokens: int
    right: float
    """Share of the target's tokens that are the draft's most probable one."""
    among_four: float
    claimed: float
    """Mean probability that the draft gives its most probable token; equal to `right` if it is calibrated."""
    step_ms: float

    @property
    def right_tokens_a_second(self) -> float:
        return self.right / self.step_ms * 1000


@dataclass
class _Tally:
    """Progress of one draft."""

    right: int = 0
    among: int = 0
    claimed: float = 0.0
    seconds: list[float] = field(default_factory=list)


def measured_both(
    before: Path,
    after: Path,
    passages: Sequence[Passage],
    threads: int,
) -> tuple[Figures, Figures]:
    """The figures of two drafts. Raises ModelError."""
    drafters = [
        Drafter(
            path,
            threads=threads,
        )
        for path in (before, after)
    ]
    tallies = [_Tally(), _Tally()]

    for passage in passages:
        for drafter in drafters:
            drafter.open("held", passage.prompt)
        for place, token in enumerate(passage.completion):
            # Each is first in every second turn: the other one has just emptied the processor's caches.
            turn = list(zip(drafters, tallies, strict=True))
            if place % 2:
                turn.reverse()
            for drafter, tally in turn:
                # The first step of a request also reads its prompt.
                _step(
                    drafter,
                    tally,
                    token,
                    timed=place > 0,
                )
        for drafter in drafters:
            drafter.close("held", keep=False)

    for drafter in drafters:
        drafter.shutdown()
    total = sum(passage.written for passage in passages)
    figures = [_figures(tally, total) for tally in tallies]
    return figures[0], figures[1]


def _step(
    drafter: Drafter,
    tally: _Tally,
    token: int,
    *,
    timed: bool,
) -> None:
    """One step below the committed tokens, and the commit of the target's token."""
    began = time.perf_counter()
    proposal = drafter.step(
        "held",
        [()],
        AMONG,
    )[0]
    taken = time.perf_counter() - began

    if timed:
        tally.seconds.append(taken)
    tally.right += proposal.tokens[0] == token
    tally.among += token in proposal.tokens
    tally.claimed += math.exp(-proposal.costs[0])
    drafter.commit("held", [token])


def _figures(tally: _Tally, total: int) -> Figures:
    return Figures(
        tokens=total,
        right=tally.right / total,
        among_four=tally.among / total,
        claimed=tally.claimed / total,
        step_ms=1000 * median(tally.seconds),
    )


def is_better(before: Figures, after: Figures) -> bool:
    """Whether the second draft is right more often, and makes more right tokens a second."""
    if after.right <= before.right:
        return False
    return after.right_tokens_a_second > before.right_tokens_a_second


def table(before: Figures, after: Figures) -> str:
    """Both in two lines."""
    titles = ("draft", "right", "among four", "claimed", "ms a step", "right tokens a second")
    lines = [f"{titles[0]:8} " + " ".join(f"{title:>{len(title) + 2}}" for title in titles[1:])]
    for name, figures in (("before", before), ("after", after)):
        cells = (
            f"{figures.right:.3f}",
            f"{figures.among_four:.3f}",
            f"{figures.claimed:.3f}",
            f"{figures.step_ms:.2f}",
            f"{figures.right_tokens_a_second:.1f}",
        )
        aligned = [
            f"{cell:>{len(title) + 2}}"
            for cell, title in zip(
                cells,
                titles[1:],
                strict=True,
            )
        ]
        lines.append(f"{name:8} " + " ".join(aligned))

    return "\n".join([*lines, f"over {before.tokens} tokens of the target that nothing was learnt from"])
