"""Measures how many leaves one draft step should evaluate, which depends on the format of the weights.

In llama.cpp on a CPU, Q4_1 gains nothing from batches: each further leaf costs as much as a step of its own. Q4_0
evaluates eight leaves in about three times the time of one, and a GPU sixteen in the time of one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from edgespec.llamacpp.drafter import Drafter

WIDTHS = (2, 4, 8, 16)
CHEAP = 1.3
"""Maximum duration of a step over several leaves, relative to a step over one leaf."""
_PROMPT = 32
_REPEATS = 3


def step_curve(drafter: Drafter, clock: Callable[[], float] = time.perf_counter) -> dict[int, float]:
    """Seconds of one step by the number of its leaves, up to `drafter.sequences`; runs some hundred draft steps."""
    vocabulary = drafter.vocab_size
    drafter.open("calibration", [token % vocabulary for token in range(1, _PROMPT)])
    drafter.step("calibration", [()], 1)  # reads the prompt, and the weights for the first time
    widths = [1, *(width for width in WIDTHS if width < drafter.sequences), drafter.sequences]
    curve = {}
    for number, leaves in enumerate(dict.fromkeys(widths)):
        curve[leaves] = _step_s(drafter, leaves, 100 * number, clock)
    drafter.close("calibration", keep=False)
    return curve


def affordable_leaves(curve: Mapping[int, float]) -> int:
    """The largest number of leaves up to which a step costs at most CHEAP single ones."""
    best = 1
    for leaves in sorted(curve):
        if curve[leaves] > CHEAP * curve[1]:
            break
        best = leaves
    return best


def _step_s(drafter: Drafter, leaves: int, first: int, clock: Callable[[], float]) -> float:
    """The minimum time of a few steps over this many new leaves."""
    times = []
    for repeat in range(_REPEATS):
        start = first + repeat * leaves
        paths = [((start + leaf) % drafter.vocab_size,) for leaf in range(leaves)]
        began = clock()
        drafter.step("calibration", paths, 1)
        times.append(clock() - began)
    return min(times)
