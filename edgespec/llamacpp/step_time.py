"""Measures how many leaves one draft step should evaluate, which depends on the format of the weights.

In llama.cpp on a CPU, Q4_1 gains nothing from batches: each further leaf costs as much as a step of its own. Q4_0
evaluates eight leaves in about three times the time of one, and a GPU sixteen in the time of one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack

from edgespec.core.drafting.ranking import Asked
from edgespec.core.drafting.settings import MAX_STEP_LEAVES
from edgespec.llamacpp.drafter import Drafter

WIDTHS = (2, 4, 8, 16)
CHEAP = 1.3
"""Maximum duration of a step over several leaves, relative to a step over one leaf."""
_PROMPT = 32
_REPEATS = 3


def measured_curve(
    drafter: Drafter,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[int, float]:
    """Seconds of one step by the number of its leaves: the minimum of `timed_steps`."""
    curve = dict[int, float]()
    for leaves, seconds in timed_steps(drafter, clock):
        curve[leaves] = min(seconds, curve.get(leaves, seconds))

    return curve


def timed_steps(
    drafter: Drafter,
    clock: Callable[[], float] = time.perf_counter,
) -> Generator[tuple[int, float], None, None]:
    """Leaves and seconds of some twenty steps, one after another: up to the leaves that one request may have, and those
    that all may have together.

    Nothing is left in the drafter if the caller closes the iterator after any of them.
    """
    per_request = drafter.sequences
    max_leaves = min(drafter.together, per_request * drafter.requests)
    names = [f"calibration {number}" for number in range(math.ceil(max_leaves / per_request))]
    narrow = [width for width in WIDTHS if width < per_request]
    widths = dict.fromkeys([1, *narrow, per_request, max_leaves])
    prompt = [token % drafter.vocab_size for token in range(1, _PROMPT)]

    with ExitStack() as opened:
        for name in names:
            drafter.open(name, prompt, b"calibration")  # in the same cells
            opened.callback(drafter.close, name, keep=False)
            drafter.step(name, [()], 1)  # reads the prompt, and the weights for the first time

        for number, leaves in enumerate(widths):
            counts = [min(per_request, leaves - before) for before in range(0, leaves, per_request)]
            leaves_of = dict(zip(names, counts))
            for repeat in range(_REPEATS):
                first = 100 * number + repeat * leaves
                yield leaves, _step_s(drafter, leaves_of, first, clock)


def affordable_leaves(curve: Mapping[int, float]) -> int:
    """The largest number of one request's leaves up to which a step costs at most CHEAP single ones."""
    best = 1
    for leaves in sorted(curve):
        if curve[leaves] > CHEAP * curve[1] or leaves > MAX_STEP_LEAVES:
            break
        best = leaves

    return best


def _step_s(
    drafter: Drafter,
    leaves_of: Mapping[str, int],
    first: int,
    clock: Callable[[], float],
) -> float:
    """The time of a step over so many new leaves of each request, whose tokens begin with `first`."""
    asked: list[Asked] = []
    for name, leaves in leaves_of.items():
        paths = [((first + leaf) % drafter.vocab_size,) for leaf in range(leaves)]
        asked.append(Asked(name, paths))

    began = clock()
    drafter.step_together(asked)
    return clock() - began
