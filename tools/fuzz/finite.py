"""No object of ours may hold, anywhere, what is not a number: it would spoil every later decision."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np

PACKAGES = ("cloud_gateway.", "edgespec.")
MAX_OBJECTS = 100_000


def check_finite(root: object) -> None:
    """Raises AssertionError naming where a number is none. Infinities may be meant (a time that never comes)."""
    waiting: list[tuple[str, object]] = [(type(root).__name__, root)]
    known: set[int] = set()
    while waiting and len(known) < MAX_OBJECTS:
        name, one = waiting.pop()
        if isinstance(one, float):
            assert not math.isnan(one), f"{name} is not a number"
        elif isinstance(one, np.ndarray):
            assert not np.isnan(one).any(), f"{name} holds what is not a number"
        elif id(one) not in known:
            known.add(id(one))
            waiting += [(f"{name}.{label}", part) for label, part in _parts(one)]


def _parts(one: object) -> Iterable[tuple[object, object]]:
    if isinstance(one, Mapping):
        return one.items()
    if isinstance(one, list | tuple) or type(one).__name__ == "deque":
        return enumerate(one)  # type: ignore[arg-type]
    if not type(one).__module__.startswith(PACKAGES):
        return ()
    slots = [slot for kind in type(one).__mro__ for slot in getattr(kind, "__slots__", ())]
    return [(name, getattr(one, name)) for name in (*slots, *getattr(one, "__dict__", ())) if hasattr(one, name)]
